"""Functions of fp16 under modes and modifiers, as seen on gfx1201 and gfx1100 (rocjitsu's records of hardware)."""

import numpy as np
import pytest

_MODIFIERS = {"*2": " mul:2", "*4": " mul:4", "/2": " div:2", "c": " clamp"}
#: name, operand, bits of denorm_16_64 (1: operands kept, 2: results), FP16_OVFL, modifier, result
SEEN = """
log 0001 3 0 - ce00   log 0001 0 0 - fc00   log 0001 0 1 - fbff   log 0000 3 1 - fbff   log 7c00 3 1 - 7c00
exp 4c00 3 1 - 7bff   exp 7c00 3 1 - 7c00   exp cb80 3 0 - 0200   exp cb80 1 0 - 0000   exp cb80 3 0 *4 0000
exp 4c00 0 1 /2 77ff  exp 4c00 0 0 /2 7c00  exp 4c00 3 1 /2 77ff  log fc01 0 0 c 0000   exp 7c01 0 0 *2 7e01
log bc00 0 0 c 0000   exp 11c5 3 0 - 3c01   rcp 0101 0 0 - 7c00   rcp 0101 3 0 - 7bf8   rcp 7401 0 0 - 0000
rcp 7401 3 0 - 03ff   rcp c200 0 0 - b555   rcp fc00 0 0 - 8000   rcp 0000 0 0 - 7c00   rcp 0000 0 1 - 7bff
rcp fd01 0 0 - ff01   rcp 0000 0 1 /2 77ff  rcp f001 0 0 /2 8000  rcp f001 3 0 /2 8000  rcp 7401 3 0 *2 0000
rcp fc00 0 0 *2 0000  rcp 0400 0 0 *4 7c00  rcp 0400 0 1 *4 7bff  rcp 7d00 0 0 /2 7f00  rcp c000 0 0 c 0000
sin 0001 0 0 - 0000   sin 8001 0 0 - 8000   sin 00a2 1 0 - 0000   sin 00a3 1 0 - 0400   sin 0001 3 0 - 0006
sin 7c00 0 0 - fe00   sin 8001 3 0 /2 0000  sin 2e66 0 0 /2 34b4  cos 2e66 0 0 *2 3e79  sin 7d00 0 0 c 0000"""


def rows(text: str) -> list[list[str]]:
    words = text.split()
    return [words[k : k + 6] for k in range(0, len(words), 6)]


@pytest.mark.parametrize("rounding", range(4))
def test_functions_as_seen(execute, rounding):
    for name, operand, denormals, stops, modifier, want in rows(SEEN):
        directives = f"\t\t.amdhsa_float_round_mode_16_64 {rounding}\n\t\t.amdhsa_fp16_overflow {stops}"
        code = f"s_denorm_mode {int(denormals) << 2}\nv_{name}_f16_e64 v0.l, v1.l{_MODIFIERS.get(modifier, '')}"
        x = np.full(32, int(operand, 16), np.uint16)
        got = execute(code, gpu="gfx1201", v={1: x}, directives=directives).vector(0, np.uint16)
        assert (got == int(want, 16)).all(), (name, operand, denormals, stops, modifier, hex(got[0]))


@pytest.mark.parametrize(("name", "operand", "want"), [("log", 0, 0xFBFF), ("exp", 0x4C00, 0x7BFF), ("log", 1, 0xCE00)])
def test_overflow_as_seen_on_gfx11(execute, name, operand, want):
    x = np.full(32, operand, np.uint16)
    got = execute(f"v_{name}_f16 v0, v1", gpu="gfx1151", v={1: x}, directives="\t\t.amdhsa_fp16_overflow 1")
    assert (got.vector(0, np.uint16) == want).all()
