"""Hopper's attention over a cache on a CPU model of its instructions: the kernels' own text, each launched twice.

The full product of options runs with LANELOOM_MODEL=all; two compilations of each kernel otherwise, which have every
option once.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from dataclasses import replace

import pytest
from hopper_model import COMPILER, damaged

torch = pytest.importorskip("torch")

from decode_model import Model, check, problem_of, read_before  # noqa: E402

from laneloom.ops.attention.config_decode import HopperDecodeConfig, HopperRangesConfig  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
#: options that a compilation has: narrow pages and a window, heads abreast and capped scores
NARROW = {"d": 72, "d_v": 40, "page": 16, "left": 100}
ABREAST = {"d": 24, "d_v": 40, "softcap": 2.0, "dtype": "bf16"}
RUNS = functools.partial(HopperDecodeConfig, stages=2)
RANGES = functools.partial(HopperRangesConfig, stages=2)
#: one run, a cluster, clusters that meet by memory, more parts than a thread has on their way
SHARES = [RUNS(splits=1), RUNS(splits=3, cluster=3), RUNS(splits=8, cluster=4), RUNS(splits=9)]
DIVISIONS = [RANGES(ranges=n) for n in (1, 2, 5, 13, 90)]
#: lengths, heads, of keys, queries: none, one key, a part of a tile, the whole room; more than 16 rows, which two tiles
#: have, and fewer keys than queries; more sequences than a warp has lanes
FEW = [0, 1, 77, 576], 4, 2, 1
MANY_ROWS = [300, 2, 63, 64, 65, 500], 12, 2, 3
_LENGTHS = random.Random(1)
MANY = [_LENGTHS.choice([0, 1, 60, 64, 130, 200]) for _ in range(37)], 2, 2, 1


@pytest.fixture
def model(tmp_path, monkeypatch):
    return functools.partial(Model, tmp_path, monkeypatch)


def run(model, options, *cases, abreast=1, stages=2):
    for config, (lengths, heads, kv_heads, queries) in cases:
        problem = problem_of(lengths, heads, kv_heads, queries, room=576, **options)
        check(model, problem, replace(config, abreast=abreast, stages=stages), lengths)


def test_runs(model):
    """A cluster's first program is behind the others when it shares: nobody may want what it has not left yet."""
    _, cluster, clusters, parts = SHARES

    def change(text):
        assert text.count("    share(") == 1
        return text.replace("    share(", "    if (rank == 0) fibers::sleep();\n    share(")

    run(model(change=change), NARROW, (SHARES[0], FEW), (cluster, MANY_ROWS), (clusters, MANY_ROWS), (parts, FEW))


def test_runs_of_heads_abreast(model):
    early = replace(SHARES[1], early=True)
    run(model(), ABREAST, (early, FEW), (SHARES[2], MANY_ROWS), (SHARES[3], MANY_ROWS), abreast=2, stages=3)


def test_ranges(model):
    few = [(division, FEW) for division in DIVISIONS]
    run(model(), NARROW | {"page": 64}, *few, (RANGES(ranges=7), MANY_ROWS), (RANGES(ranges=40), MANY_ROWS))


def test_ranges_of_heads_abreast(model):
    few, many = DIVISIONS[2:4]
    run(model(), ABREAST, (few, MANY_ROWS), (many, MANY_ROWS), (many, MANY), abreast=2, stages=3)


#: lengths before kernels ahead have ended: of the same tiles, of others, such as nobody has written
BEFORE = [0, 1, 78, 575], [576, 300, 0, 64], [-5, (1 << 31) - 1, 1 << 20, 576]


@pytest.mark.parametrize("before", BEFORE)
def test_lengths_that_a_kernel_ahead_writes(model, before):
    lengths, *sizes = FEW
    changed, problem = model(change=damaged(read_before(4))), problem_of(lengths, *sizes, room=576, **NARROW)
    for config in (replace(SHARES[1], early=True), DIVISIONS[3]):
        check(changed, problem, config, lengths, before=before)


EVERY = pytest.mark.skipif(os.environ.get("LANELOOM_MODEL") != "all", reason="LANELOOM_MODEL=all runs it")


@EVERY
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("left", [None, 100])
@pytest.mark.parametrize("page", [0, 16, 64, 192])
@pytest.mark.parametrize(
    ("d", "d_v", "dtype", "abreast", "stages"),
    [
        (64, 64, "bf16", 1, 3), (72, 40, "bf16", 1, 1), (128, 128, "fp16", 1, 2), (136, 256, "bf16", 1, 2),
        (24, 40, "fp16", 2, 3), (80, 80, "bf16", 2, 2),
    ],
)  # fmt: skip
def test_every_option(model, d, d_v, dtype, abreast, stages, page, left, softcap):
    options = {"d": d, "d_v": d_v, "page": page, "left": left, "softcap": softcap, "dtype": dtype}
    cases = zip([*SHARES, *DIVISIONS], itertools.cycle((FEW, MANY_ROWS)))
    run(model(), options, *cases, (DIVISIONS[3], MANY), abreast=abreast, stages=stages)


@EVERY
def test_more_sequences_than_a_warp_finds_at_once(model):
    lengths = [_LENGTHS.choice([0, 1, 64, 200]) for _ in range(1100)]
    run(model(), NARROW, *((RANGES(ranges=n), (lengths, 2, 1, 1)) for n in (7, 132)))
