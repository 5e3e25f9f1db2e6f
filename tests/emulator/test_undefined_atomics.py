"""Strict mode: bitwise atomics on words of LDS that are written in part, as atomics of 8 and 16 bits become."""

import numpy as np
import pytest
from test_strict import GPUS, LANE, POINTER, run

from laneloom.errors import HazardError

# Half a word is written; the atomic of that half is one of the whole word.
HALF = POINTER + LANE + "\tv_mov_b32_e32 v2, 0x5a0f\n\tds_store_b16 v1, v2\n\tv_mov_b32_e32 v3, {data}\n"
STORE = "\t{wait_lds}\n\tglobal_store_b32 v1, v4, s[4:5]\n"
OPERATIONS = {
    "and": (0xFFFF3333, np.bitwise_and), "or": (0x3333, np.bitwise_or), "xor": (0x3333, np.bitwise_xor),
}  # fmt: skip


def told(code, data):
    return code.replace("{data}", hex(data))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("result", ["_rtn", ""])
def test_the_written_half_stays_defined(gpu, name, result):
    data, operation = OPERATIONS[name]
    atomic = f"\tds_{name}{result}_b32 {'v4, ' if result else ''}v1, v3\n"
    new = run(told(HALF, data) + atomic + "\tds_load_u16 v4, v1\n" + STORE, gpu)
    assert (new[:64] == operation(0x5A0F, data & 0xFFFF)).all()
    if result:
        old = run(told(HALF, data) + atomic + "\t{wait_lds}\n\tv_and_b32_e32 v4, 0xffff, v4\n" + STORE, gpu)
        assert (old[:64] == 0x5A0F).all()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("after", ["", "\tds_load_b32 v4, v1\n"])
def test_the_other_half_stays_undefined(gpu, name, after):
    """In the word that was there and in the one that is there now."""
    atomic = f"\tds_{name}_rtn_b32 v4, v1, v3\n"
    with pytest.raises(HazardError, match="stores bits that nobody wrote") as caught:
        run(told(HALF, OPERATIONS[name][0]) + atomic + after + STORE, gpu)
    assert caught.value.kind == "undefined"


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("name", "data", "want"), [("and", 0x3333, 0x1203), ("or", 0xFFFF0000, 0xFFFF5A0F)])
def test_bits_that_the_atomic_makes_are_defined(gpu, name, data, want):
    got = run(told(HALF, data) + f"\tds_{name}_b32 v1, v3\n\tds_load_b32 v4, v1\n" + STORE, gpu)
    assert (got[:64] == want).all()


@pytest.mark.parametrize("gpu", GPUS)
def test_lanes_find_what_lanes_before_them_left(gpu):
    """All write one place: only the first finds bits that nobody wrote."""
    one_place = told(HALF, 0xFFFF0000) + "\tv_mov_b32_e32 v5, 0\n\tds_or_rtn_b32 v4, v5, v3\n\t{wait_lds}\n"
    but_first = "\tv_cmp_ne_u32_e32 vcc_lo, 0, v0\n\ts_and_b32 exec_lo, exec_lo, vcc_lo\n"
    got = run(one_place + but_first + STORE, gpu, threads=32)
    assert (got[1:32] == 0xFFFF5A0F).all()
    with pytest.raises(HazardError, match=r"stores bits that nobody wrote .*lane 0"):
        run(one_place + STORE, gpu, threads=32)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", ["add_u32", "max_i32", "inc_u32"])
def test_numbers_made_of_undefined_bits_are_told(gpu, name):
    with pytest.raises(HazardError, match="an atomic combines bits of LDS that nobody wrote"):
        run(told(HALF, 1) + f"\tds_{name} v1, v3\n", gpu)
