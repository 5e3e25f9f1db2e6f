"""Strict mode's undefined bits of what is chosen: by (x ^ y) & m ^ y bit by bit, a register by its number in M0."""

import numpy as np
import pytest
from test_undefined_bits import FILLS, KERNEL, WAVES, undefined, waves

from laneloom.emulator.program import Program
from laneloom.emulator.shadow import Shadow
from laneloom.isa.parse import EXEC, VCC

#: (x ^ y) & m ^ y; the result, whether its words are v or s, and the registers of x, y and m
SELECTS = [
    ("s_xor_b32 s8, s4, s5 | s_and_b32 s8, s6, s8 | s_xor_b32 s8, s8, s5", "s", (8, 4, 5, 6)),
    ("s_xor_b64 s[4:5], s[4:5], s[6:7] | s_and_b64 s[8:9], s[4:5], s[10:11] | s_xor_b64 s[6:7], s[6:7], s[8:9]", "s",
     (6, 4, 6, 10)),
    ("v_xor_b32_e32 v3, s4, v1 | v_and_b32_e32 v3, v3, v2 | v_xor_b32_e32 v8, v3, v1", "v", (8, None, 1, 2)),
    ("v_xor_b32_e32 v1, v2, v1 | v_and_b32_e32 v3, v4, v1 | v_mov_b32_e32 v4, 0 | v_xor_b32_e32 v2, v2, v3", "v",
     (2, 1, 2, 4)),
]  # fmt: skip


def shadowed(code: str, rng, u_v, u_s):
    """Run code and its guards; (group, its steps, what it started with)."""
    program = Program(KERNEL.format(code=code.replace(" | ", "\n\t")), "gfx1151", strict=True)
    block = program.blocks[0].code
    V, S = (rng.integers(0, 1 << 32, x.shape, dtype=np.uint64).astype(np.uint32) for x in (u_v, u_s))
    S[EXEC] = 0xFFFFFFFF
    g, epoch = waves(V, S, np.zeros(WAVES, bool)), np.zeros(WAVES, np.int64)
    dirty = (1 << 32) - 1, (1 << 128) - 1
    g.shadow = Shadow(u_v.copy(), u_s.copy(), np.zeros(WAVES, bool), epoch, {}, *dirty, None)
    for guard, step in zip(block.guards, block.steps, strict=True):
        if guard.follow is not None:
            guard.follow(g)
        step(g)
    return g, block.steps, V, S


def check_sound(code: str, rng) -> None:
    for _ in range(8):
        u_v, u_s = np.zeros((32, WAVES, 32), np.uint32), np.zeros((128, WAVES), np.uint32)
        u_v[1:8], u_s[4:12] = undefined(rng, (7, WAVES, 32)), undefined(rng, (8, WAVES))
        g, steps, V, S = shadowed(code, rng, u_v, u_s)
        found = []
        for _ in range(FILLS):
            fill_v, fill_s = (rng.integers(0, 1 << 32, x.shape, dtype=np.uint64).astype(np.uint32) for x in (V, S))
            other = waves(V & ~u_v | fill_v & u_v, S & ~u_s | fill_s & u_s, np.zeros(WAVES, bool))
            for step in steps:
                step(other)
            found.append((other.V, other.S))
        for V_k, S_k in found[1:]:
            assert not ((V_k ^ found[0][0]) & ~g.shadow.V).any()
            assert not ((S_k ^ found[0][1]) & ~g.shadow.S).any()


@pytest.mark.parametrize(("code", "file", "registers"), SELECTS)
def test_bits_that_two_sums_take_out_again(code, file, registers):
    result, _, y, mask = registers
    words = 1 + ("b64" in code)
    rng = np.random.default_rng(len(code))
    check_sound(code, rng)
    u_v, u_s = np.zeros((32, WAVES, 32), np.uint32), np.zeros((128, WAVES), np.uint32)
    (u_v if file == "v" else u_s)[y : y + words] = 0xFFFFFFFF
    g, _, V, S = shadowed(code, rng, u_v, u_s)
    m = (V if file == "v" else S)[mask : mask + words]
    np.testing.assert_array_equal((g.shadow.V if file == "v" else g.shadow.S)[result : result + words], ~m)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("suffix", ["_dpp", ""])
def test_sums_of_other_lanes_are_no_such_thing(place, suffix):
    """DPP, with which instructions are no select; people may leave its suffix out."""
    parts = ["v_xor_b32{} v3, v1, v2", "v_and_b32{} v3, v3, v4", "v_xor_b32{} v8, v3, v2"]
    parts = [part.format(suffix) + " row_mirror" * (k == place) for k, part in enumerate(parts)]
    if suffix:
        parts = [part if k == place else part.replace(suffix, "_e32") for k, part in enumerate(parts)]
    check_sound(" | ".join(parts), np.random.default_rng(place))


@pytest.mark.parametrize("source", ["m0", "exec_lo", "s9"])
@pytest.mark.parametrize("name", ["s_movreld_b32 s4", "v_movreld_b32 v4"])
def test_a_register_by_number_gets_the_undefined_bits_of_its_source(name, source):
    """M0 and EXEC, which say where to and in which lanes, may be the source; s9 is defined too."""
    u_v, u_s = np.zeros((32, WAVES, 32), np.uint32), np.zeros((128, WAVES), np.uint32)
    code = f"s_mov_b32 m0, 2 | {name}, {source}"
    g, *_ = shadowed(code, np.random.default_rng(0), u_v, u_s)
    assert not g.shadow.V.any()
    assert not g.shadow.S.any()


@pytest.mark.parametrize(
    ("code", "defined"),
    [
        ("v_cmp_lt_u32 v0, v1", True), ("v_cmp_lt_u32_e32 v0, v4", False), ("v_cmp_class_f32 v0, v1", True),
        ("v_cmp_gt_u32_dpp v0, v1 row_xmask:1 row_mask:0xf bank_mask:0xf", True),
        ("v_cmp_eq_u32 v0, v1 | v_add_co_ci_u32 v2, v0, v1", True), ("v_sub_co_ci_u32_e32 v2, v0, v1", False),
    ],
)  # fmt: skip
def test_vcc_that_the_text_leaves_out(code, defined):
    """VCC and v4 hold nothing before; the first source of a comparison stays what it was."""
    u_v, u_s = np.zeros((32, WAVES, 32), np.uint32), np.zeros((128, WAVES), np.uint32)
    u_v[4], u_s[VCC] = 0xFFFFFFFF, 0xFFFFFFFF
    g, *_ = shadowed(code, np.random.default_rng(0), u_v, u_s)
    assert bool(g.shadow.S[VCC].any()) == (not defined)
    assert bool(g.shadow.V[2].any()) == (not defined and "_ci_" in code)
    assert not g.shadow.V[0].any()
