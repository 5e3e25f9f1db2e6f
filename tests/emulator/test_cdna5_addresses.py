"""Addresses of CDNA 5: flat ones with a base in scalar registers, offsets that count in what is accessed."""

import numpy as np
import pytest
from test_memory_instructions import in_space, random_bytes, run

from laneloom.errors import UnknownInstructionError

# v12: 4 times the lane's number, of which `scale_offset` makes its 16 bytes; v13: 4 bytes before those.
START = "v_lshlrev_b32 v12, 2, v0\nv_add_nc_u32 v13, -4, v1\n"
BOTH = pytest.mark.parametrize("strict", [False, True])


@BOTH
@pytest.mark.parametrize("place", ["v1, {data}s[2:3]", "v12, {data}s[2:3] scale_offset", "v13, {data}s[2:3] offset:4"])
def test_flat_addresses_with_a_base(place, strict):
    """The register's 32 bits are signed: the first lane's offset is -4 at first."""
    image, registers = random_bytes(3)
    load = f"flat_load_b32 v8, {place.format(data='')}"
    _, got = run("gfx1250", START + load, image, registers, strict=strict)
    np.testing.assert_array_equal(got[:, :4], image[:, :4])
    store = f"flat_store_b32 {place.format(data='v8, ')}"
    after, _ = run("gfx1250", START + store, image, registers, strict=strict)
    np.testing.assert_array_equal(after[:, :4], registers[:, :4])
    np.testing.assert_array_equal(after[:, 4:], image[:, 4:])


@BOTH
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("place", ["v1, v8, s[2:3]", "v12, v8, s[2:3] scale_offset"])
def test_flat_atomics_with_a_base(place, returns, strict):
    image, registers = random_bytes(4)
    text = f"v14, {place} th:TH_ATOMIC_RETURN\n{{waits}}\nv_mov_b32 v8, v14" if returns else place
    after, got = run("gfx1250", f"{START}flat_atomic_add_u32 {text}", image, registers, strict=strict)
    old, added = (x.view(np.uint32)[:, 0] for x in (image, registers))
    np.testing.assert_array_equal(after.view(np.uint32)[:, 0], old + added)
    np.testing.assert_array_equal(got.view(np.uint32)[:, 0], old if returns else added)


@BOTH
@pytest.mark.parametrize("two", ["2", "0x40000002", "0xc0000002"])
def test_scratch_offsets_that_count_words(two, strict):
    """Compilers leave the bits out that the multiplication shifts out of 32."""
    image, registers = random_bytes(5)
    body = in_space("scratch", f"v_mov_b32 v12, {two}\nscratch_load_b32 v8, v12, off scale_offset\n"
                    "scratch_store_b32 v12, v9, off offset:-8 scale_offset")  # fmt: skip
    after, got = run("gfx1250", body, image, registers, strict=strict)
    np.testing.assert_array_equal(got[:, :4], image[:, 8:12])
    np.testing.assert_array_equal(after[:, :4], registers[:, 4:8])
    np.testing.assert_array_equal(after[:, 4:], image[:, 4:])


@pytest.mark.parametrize(
    ("gpu", "name"), [("gfx1151", "ds_add_u32"), ("gfx90a", "ds_add_u32"), ("gfx1151", "ds_store_b32")]
)
def test_the_memory_of_the_whole_launch_is_refused(gpu, name):
    image, registers = random_bytes(6)
    with pytest.raises(UnknownInstructionError, match=rf"{name} on {gpu} .*GDS.*not modelled"):
        run(gpu, f"{name} v1, v8 gds", image, registers)


@pytest.mark.parametrize("place", ["global_load_block v[8:39], v1, s[2:3]", "scratch_store_block v1, v[8:39], s4"])
def test_offsets_of_blocks_that_count_in_what_is_accessed_are_refused(execute, place):
    with pytest.raises(UnknownInstructionError, match="scale_offset"):
        execute(f"{place} scale_offset", gpu="gfx1250")
