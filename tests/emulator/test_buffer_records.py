"""Buffers of records: strides, elements of neighbouring records side by side, what counts as out of range."""

import numpy as np
import pytest
from test_memory_instructions import random_bytes, run

from laneloom.errors import OutOfBoundsError, UnknownInstructionError

LANE = np.arange(32)


def access(gpu: str, name: str, address: str, *, stride, records, scale=0, mode=None, element=0, together=3, **more):
    """The memory before, what `name` gives, and the memory after; `address`: code that puts each lane's record into v12
    and its offset within the record into v13, which are 0 without it."""
    image, registers = random_bytes(3)
    wide = gpu == "gfx1250"
    if wide:  # bits 6:0 of the records on top of the address
        mode, low = mode or 0, records << 25
        last = stride << 12 | scale << 26 | bool(element) << 28 | mode << 29
        put = f"s_or_b32 s5, s5, 0x{low & 0xFFFFFFFF:x}\ns_mov_b32 s6, {records >> 7}"
    else:
        swizzle = bool(element) << 31 if gpu == "gfx942" else {0: 0, 4: 1, 8: 2, 16: 3}[element] << 30
        last = (
            more.get("format", 0x14000)
            | together << 21
            | more.get("by_lane", 0) << 23
            | (3 if mode is None else mode) << 28
        )
        put = f"s_or_b32 s5, s5, 0x{stride << 16 | swizzle:x}\ns_mov_b32 s6, {records}"
    data = "v[8:11]" if name.endswith(("b128", "x4")) else "v8"
    soffset = "s9" if more.get("scalar") else "0" if gpu in ("gfx942", "gfx1151") else "null"
    own = more.get("index", True)  # whether the instruction has an index of its own
    registers_of = "v[12:13]" if own else "v13"
    body = f"""{put}
    s_mov_b32 s7, 0x{last:x}
    s_mov_b32 s9, {more.get("scalar", 0)}
    v_mov_b32 v12, 0
    v_mov_b32 v13, 0
    {address}
    {name} {data}, {registers_of}, s[4:7], {soffset} {"idxen" * own} offen offset:{more.get("offset", 0)}
    {{waits}}"""
    after, got = run(gpu, body, image, registers)
    return image.reshape(-1), got, after.reshape(-1)


def at(image, offsets):
    """The words that begin at these bytes, 0 where None stands."""
    words = [0 if o is None else int.from_bytes(image[o : o + 4].tobytes(), "little") for o in offsets]
    return np.array(words, np.uint32)


@pytest.mark.parametrize(
    ("gpu", "name", "element"),
    [("gfx1151", "buffer_load_b32", 4), ("gfx1151", "buffer_load_b32", 8), ("gfx1201", "buffer_load_b32", 16),
     ("gfx942", "buffer_load_dword", 4)],
)  # fmt: skip
@pytest.mark.parametrize("together", [8, 16])
def test_elements_of_neighbouring_records_lie_side_by_side(gpu, name, element, together):
    """index_msb, offset_msb, index_lsb, offset_lsb of the ISA guides: 16 records of 16 bytes, words 0 and 2 of each."""
    image, got, _ = access(
        gpu, name, "v_lshrrev_b32 v12, 1, v0\nv_and_b32 v13, 1, v0\nv_lshlrev_b32 v13, 3, v13",
        stride=16, records=16, element=element, together=together.bit_length() - 4,
    )  # fmt: skip
    index, offset = LANE // 2, LANE % 2 * 8
    msb, lsb = index // together, index % together
    place = (msb * 16 + offset // element * element) * together + lsb * element + offset % element
    np.testing.assert_array_equal(got[:, :4].copy().view(np.uint32)[:, 0], at(image, place))


def test_an_access_across_swizzled_elements_is_refused():
    with pytest.raises(UnknownInstructionError, match=r"next element of a swizzled .*lane 0; .*_load_b128"):
        access("gfx1151", "buffer_load_b128", "v_mov_b32 v12, v0", stride=16, records=16, element=8)


def test_swizzled_buffers_of_cdna5():
    """32 records together, elements of 16 bytes; the scalar offset counts within the record; no end is looked for."""
    image, got, _ = access(
        "gfx1250", "buffer_load_b32", "v_and_b32 v12, 7, v0\nv_and_b32 v13, 1, v0\nv_lshlrev_b32 v13, 2, v13",
        stride=4, scale=1, records=1, element=16, scalar=4, offset=4,
    )  # fmt: skip
    place = LANE % 8 * 16 + 8 + LANE % 2 * 4
    np.testing.assert_array_equal(got[:, :4].copy().view(np.uint32)[:, 0], at(image, place))


@pytest.mark.parametrize(("scale", "factor"), [(0, 1), (1, 4), (2, 8), (3, 32)])
def test_stride_scale_of_cdna5(scale, factor):
    code = "v_and_b32 v12, 3, v0"
    image, got, _ = access("gfx1250", "buffer_load_b32", code, stride=4, scale=scale, records=512, offset=4)
    np.testing.assert_array_equal(got[:, :4].copy().view(np.uint32)[:, 0], at(image, LANE % 4 * 4 * factor + 4))


@pytest.mark.parametrize(
    ("gpu", "mode", "records", "words"),
    [
        ("gfx1250", 0, 64, 4), ("gfx1250", 0, 36, 2), ("gfx1250", 1, 64, 1),  # records are bytes; the record's end too
        ("gfx1201", 0, 2, 1), ("gfx1201", 0, 1, 0),  # the record's end, and its number
        ("gfx1151", 1, 2, 4), ("gfx1151", 1, 1, 0),  # its number alone
        ("gfx1151", 2, 1, 4), ("gfx1151", 2, 0, 0),  # nothing but an empty buffer
        ("gfx1201", 3, 20, 2), ("gfx1201", 3, 12, 0),  # bytes, counted from the record's begin
    ],
)  # fmt: skip
@pytest.mark.parametrize("store", [False, True])
def test_where_a_buffer_ends(gpu, mode, records, words, store):
    """16 bytes from byte 12 of record 1 of 16 bytes."""
    name = f"buffer_{'store' if store else 'load'}_b128"
    image, got, after = access(gpu, name, "v_mov_b32 v12, 1", stride=16, records=records, mode=mode, offset=12)
    if not store:
        want = at(image, [28 + 4 * k if k < words else None for k in range(4)])
        np.testing.assert_array_equal(got[0].copy().view(np.uint32), want)
        return
    changed = np.flatnonzero(after != random_bytes(3)[0].reshape(-1))
    assert set(changed) <= set(range(28, 28 + 4 * words))
    assert len(changed) > 3 * words or not words


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942"])
@pytest.mark.parametrize("element", [0, 4])
def test_the_lane_counts_as_an_index(gpu, element):
    """Beside that of the instruction, if it has one."""
    name = "buffer_load_b32" if gpu == "gfx1151" else "buffer_load_dword"
    plain = {} if gpu == "gfx1151" else {"format": 0x3000}
    for own in (False, True):
        code = "v_mov_b32 v12, 2" if own else "v_mov_b32 v13, 4"
        more = {"by_lane": 1, "element": element, "index": own, **plain}
        image, got, _ = access(gpu, name, code, stride=16, records=1 << 20, **more)
        index, offset = LANE + 2 * own, 0 if own else 4
        place = (index // 64 * 16 + offset) * 64 + index % 64 * 4 if element else index * 16 + offset
        np.testing.assert_array_equal(got[:30, :4].copy().view(np.uint32)[:, 0], at(image, place[:30]))


def test_the_format_of_gfx9_holds_more_of_the_stride_where_the_lane_counts():
    """So here records have 2^14 bytes and 16, of which only lane 0 finds its own within the memory."""
    code = "v_cmp_eq_u32 vcc, 0, v0\ns_and_b64 exec, exec, vcc"
    both = [
        access("gfx942", "buffer_load_dword", code, stride=16, records=1 << 20, by_lane=1, format=form, index=False)[1][
            0
        ]
        for form in (1 << 15, 0)
    ]
    np.testing.assert_array_equal(both[0][:4], both[1][:4])
    with pytest.raises(OutOfBoundsError, match="lane 1"):
        access("gfx942", "buffer_load_dword", "", stride=16, records=1 << 20, by_lane=1, format=1 << 15, index=False)
