"""How hopper_decode_ranges.cu divides the keys: its own text on a CPU model, where pieces are noted, not read."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from hopper_model import COMPILER, built, damaged
from sampled import sampled

torch = pytest.importorskip("torch")

from decode_model import MODEL  # noqa: E402

from laneloom.ops.attention.hopper import source_text  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
TILE, COST, SNAP = 64, 1, 1
NUMBERS = "program batch head row0 keys begin end count which first joined".split()
#: in place of attention_hopper_decode_run.cuh; one warp does what all warps do alike
NOTES = """
#include <vector>
constexpr int K_BYTES = 0, V_BYTES = 0, Q_PITCH = 0;
struct Place {};
struct Piece { int program, batch, head, row0, keys, begin, end, count, which, first, joined; };
static std::vector<Piece> pieces;
template <bool NEAR, class... T> void stream(T&&...) {}
template <bool NEAR, class... T> void attend(T&&...) {}
template <bool VALUES, class... T> void fetch_tile(T&&...) {}
inline void note(const Run& run, const Output& to, int joined) {
  if (threadIdx.x == 0)
    pieces.push_back({blockIdx.x, run.batch, run.head, run.row0, run.keys, run.begin, run.end, to.count, to.which,
                      to.first, joined});
}
inline void note_part(const float*, const float*, int, Shared*, const Output& to, const Run& run, const Rows&) {
  note(run, to, 0);
}
inline void note_whole(const Slice&, const Output& to, const Run& run, const Rows&) { note(run, to, 1); }
#define join note_part
#define combine note_whole
#define named_sync(name, threads) __syncwarp()
"""
LAUNCH = """
extern "C" int divide(int programs, const int* lengths, int batches, int kv_heads, int group, int queries, int left,
                      int* tickets, int backwards, Piece* to, int room) {
  const int row_tiles = (queries * group + ROWS - 1) / ROWS;
  pieces.clear();
  const TensorMap map = {};
  run(programs, 32, 1, 1, 1024, backwards, 1, [=] {
    attention_hopper_decode_ranges(map, map, nullptr, nullptr, nullptr, nullptr, nullptr, tickets, lengths, nullptr,
                                   0, 0, 0, 1.0f, queries, kv_heads * group, group, row_tiles, left, 0, 1 << 30,
                                   batches);
  });
  if (pieces.size() <= room) memcpy(to, pieces.data(), pieces.size() * sizeof(Piece));
  return pieces.size();
}
// The first place of `total` that `program_at` and `border` see in different programs, or -1.
extern "C" int misplaced(int total, int grid) {
  gridDim.x = grid;
  const Ranges by = ranges_of(total);
  for (int program = 0; program < by.programs; ++program) {
    const i64 begin = (i64)total * program / by.programs, end = (i64)total * (program + 1) / by.programs;
    if (border(program, by) != begin) return begin;
    for (i64 x : {begin, begin + 1, (begin + end) / 2, end - 2, end - 1})
      if (begin <= x && x < end && program_at(x, by) != program) return x;
  }
  return -1;
}
// The first of the rows that there are at most whose query and head are not what a division says, or -1.
extern "C" int misread(int group) {
  const Rows n = {1, group, group, group, 0, 0, 0, 0};
  for (int r = 0; r < 1 << 19; ++r)
    if (query_of(r, n) != r / group || head_of(r, n) != r % group) return r;
  return -1;
}
"""


def compiled(folder, change=lambda text: text):
    constants = dict.fromkeys(("ABREAST", "STAGES", "HAS_FIRST", "CTAS"), 1)
    constants |= {"D": 8, "D_V": 8, "BF16": 0, "SOFTCAP": 0, "PAGE": 0}
    text = source_text("hopper_decode_ranges.cu", [], "attention_hopper_decode.cuh")
    beginning = f"constexpr int COST = {COST}, SNAP = {SNAP};"
    assert text.count(beginning) == 1
    return built(change(text).replace(beginning, NOTES + beginning), constants, LAUNCH, folder, MODEL)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("division"))


def check(library, lengths, programs, kv_heads=1, group=1, queries=1, left=1 << 20, backwards=False):
    row_tiles = -(-group * queries // 16)
    of_one = kv_heads * row_tiles
    units = len(lengths) * of_one
    keys, tickets = np.array(lengths, np.int32), np.zeros(units, np.int32)
    found = np.zeros((2 * (units + programs), len(NUMBERS)), np.int32)
    of_keys, of_tickets, of_found = (ctypes.c_void_p(x.ctypes.data) for x in (keys, tickets, found))
    sizes = len(lengths), kv_heads, group, queries, left
    count = library.divide(programs, of_keys, *sizes, of_tickets, int(backwards), of_found, len(found))
    assert count <= len(found)
    assert not tickets.any()
    pieces = [dict(zip(NUMBERS, map(int, x), strict=True)) for x in found[:count]]
    for piece in pieces:
        piece["unit"] = piece["batch"] * of_one + piece["head"] * row_tiles + piece["row0"] // 16
        assert piece["keys"] == lengths[piece["batch"]]
    joined = Counter(x["unit"] for x in pieces if x["joined"])
    own = sorted((x for x in pieces if not x["joined"]), key=lambda x: x["program"])
    of_units = defaultdict(list)
    for piece in own:
        of_units[piece["unit"]].append(piece)
    # Every tile once and in order, each unit's parts by the programs that have them; units one after the other.
    assert [x["unit"] for x in own] == sorted(x["unit"] for x in own)
    places = []
    for unit in range(units):
        length, parts = lengths[unit // of_one], of_units[unit]
        first = max(length - queries - left, 0) // TILE
        ends = [first, *(x["end"] for x in parts)]
        assert [x["begin"] for x in parts] == ends[:-1]
        assert ends[-1] == first + max(-(-length // TILE) - first, 1)
        assert all(x["begin"] < x["end"] for x in parts)
        assert [(x["count"], x["which"]) for x in parts] == [(len(parts), i) for i in range(len(parts))]
        assert joined[unit] == (len(parts) > 1)
        assert len({x["first"] for x in parts}) == 1
        places += [x["first"] + x["which"] for x in parts if len(parts) > 1]
    assert len(places) == len(set(places))
    assert all(0 <= place < units + programs for place in places)
    # Borders move back to a unit's begin by COST + SNAP at most, on to its end by SNAP.
    loads = Counter()
    for piece in own:
        loads[piece["program"]] += piece["end"] - piece["begin"] + COST * (piece["which"] == 0)
    total = sum(loads.values())
    ranges = min(programs, total)
    assert set(loads) <= set(range(ranges))
    if ranges > 1:
        moved = COST + 2 * SNAP
        assert all(total // ranges - moved <= loads[p] <= -(-total // ranges) + moved for p in range(ranges))


@pytest.mark.parametrize("seed", sampled(range(8)))
def test_any_lengths(library, seed):
    """None, few, more sequences than lanes, and than lanes of lanes; heads, tiles of rows and windows of any number."""
    drawn = random.Random(seed)
    for _ in range(30):
        batches = drawn.choice([1, 2, 3, 5, 31, 32, 33, 40, 64, 65, 100])
        longest = drawn.choice([1, 64, 200, 1000, 30000])
        zeros = drawn.choice([0, 0.3, 1])
        lengths = [0 if drawn.random() < zeros else drawn.randint(0, longest) for _ in range(batches)]
        check(
            library, lengths, drawn.choice([1, 2, 3, 5, 16, 33, 90]), drawn.randint(1, 3), drawn.choice([1, 5, 8]),
            drawn.randint(1, 5), drawn.choice([0, 100, 1 << 20]), drawn.random() < 0.5)  # fmt: skip


@pytest.mark.parametrize("batches", [1023, 1025, 2100])
def test_many_sequences(library, batches):
    drawn = random.Random(batches)
    lengths = [drawn.choice([0, 1, 64, 65, 700, drawn.randint(0, 5000)]) for _ in range(batches)]
    check(library, lengths, 60, 2)


def test_borders_near_begins_and_ends(library):
    """Every distance of a border from both ends of short units."""
    cases = itertools.product(range(1, 8), range(1, 8), range(1, 5), range(2, 18))
    for a, b, heads, programs in sampled(cases, every=11):
        check(library, [a * TILE, b * TILE - 1], programs, heads)


def test_places_and_borders(library):
    drawn = random.Random(1)
    totals = [drawn.randrange(1, 1 << drawn.randint(1, 31)) for _ in range(300)]
    for total in (1, 2, 3, 1023, 1024, 1025, (1 << 31) - 1, *totals):
        for programs in (1, 2, 132, 1023, 1024, drawn.randint(1, 1024)):
            assert library.misplaced(total, programs) == -1


@pytest.mark.parametrize("group", [1, 3, 7, 48, 4095, 349525, 1 << 20])
def test_queries_of_rows(library, group):
    assert library.misread(group) == -1


#: what is wrong: what stands in the kernel's text, what instead
FAULTS = {
    "a border near the end is not moved, but counted so": (
        "if (share - within <= SNAP && within > COST + SNAP)", "if (false)"),
    "a border near the end is moved, but not counted so": ("w.tiles - SNAP - 1", "w.tiles - 1"),
    "a border near the begin is moved, but not counted so": ("w.begin + COST + SNAP, by", "w.begin + COST - 1, by"),
    "a border near the begin is not moved, but counted so": (
        "else if (within > COST + SNAP)", "else if (within > COST)"),
    "parts of two heads have one place": ("w.number + begins", "begins"),
}  # fmt: skip


@pytest.mark.parametrize("name", sampled(FAULTS, every=3))
def test_faults_are_seen(tmp_path, name):
    there, instead = FAULTS[name]
    with pytest.raises(AssertionError):
        test_borders_near_begins_and_ends(compiled(tmp_path, damaged({there: instead})))
