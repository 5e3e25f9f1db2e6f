"""Reading machine code: kinds and widths, loops, order, overlap."""

from __future__ import annotations

import pytest

from laneloom.errors import ArgumentError
from laneloom.isa.analysis import (
    Loop,
    analyze,
    analyze_listing,
    hot_loop,
    instruction_mix,
    loads_are_wide,
    matrix_overlap,
    narrow_loads,
    order,
    waits,
)
from laneloom.isa.listing import Kind, parse_instruction, parse_listing
from laneloom.isa.ptx import parse_ptx

G = "global_load_b128 v[0:3], v[8:9], off"
L = "ds_load_b128 v[4:7], v10"
S = "ds_store_b128 v11, v[0:3]"
W = "v_wmma_f32_16x16x16_f16 v[16:23], v[0:7], v[8:15], v[16:23]"


def loop_of(*body: str, target: str = "gfx1151") -> Loop:
    lines = [f'\t.amdgcn_target "amdgcn-amd-amdhsa--{target}"', ".LBB0_1:", *(f"\t{line}" for line in body)]
    found = hot_loop("\n".join([*lines, "\ts_cbranch_scc1 .LBB0_1", "\ts_endpgm", ""]))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "kind", "width", "accesses"),
    [
        (W, Kind.MATRIX, 0, 1),
        ("v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]", Kind.MATRIX, 0, 1),
        ("v_swmmac_f32_16x16x32_f16 v[0:7], v[8:11], v[12:19], v20", Kind.MATRIX, 0, 1),
        ("v_dual_fmac_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5", Kind.DUAL, 0, 1),
        ("v_fma_f32 v0, v1, v2, v3", Kind.VALU, 0, 1),
        ("s_add_co_i32 s0, s0, 32", Kind.SALU, 0, 1),
        ("s_load_b64 s[0:1], s[2:3], 0x0", Kind.SCALAR_LOAD, 8, 1),
        ("s_load_dwordx4 s[0:3], s[2:3], 0x0", Kind.SCALAR_LOAD, 16, 1),
        (G, Kind.GLOBAL_LOAD, 16, 1),
        ("global_load_dwordx2 v[0:1], v[2:3], off", Kind.GLOBAL_LOAD, 8, 1),
        ("global_load_u16 v0, v[2:3], off", Kind.GLOBAL_LOAD, 2, 1),
        ("global_load_d16_hi_b16 v0, v[2:3], off", Kind.GLOBAL_LOAD, 2, 1),
        ("buffer_load_ubyte v0, v1, s[0:3], 0 offen", Kind.GLOBAL_LOAD, 1, 1),
        ("buffer_load_dwordx4 v1, s[0:3], 0 offen lds", Kind.GLOBAL_TO_LDS, 16, 1),
        ("global_load_lds_dwordx4 v[0:1], off", Kind.GLOBAL_TO_LDS, 16, 1),
        ("flat_load_b32 v0, v[2:3]", Kind.GLOBAL_LOAD, 4, 1),
        ("buffer_store_b64 v[0:1], v2, s[0:3], 0 offen", Kind.GLOBAL_STORE, 8, 1),
        ("global_atomic_add_f32 v[0:1], v2, off", Kind.ATOMIC, 4, 1),
        (L, Kind.LDS_LOAD, 16, 1),
        ("ds_read_u16_d16_hi v0, v1", Kind.LDS_LOAD, 2, 1),
        ("ds_read_b64_tr_b16 v[0:1], v2", Kind.LDS_LOAD, 8, 1),
        ("ds_load_2addr_b64 v[0:3], v4 offset1:1", Kind.LDS_LOAD, 8, 2),
        ("ds_read2st64_b64 v[0:3], v4 offset1:16", Kind.LDS_LOAD, 8, 2),
        ("ds_store_2addr_stride64_b32 v0, v1, v2", Kind.LDS_STORE, 4, 2),
        ("ds_write_b8 v0, v1", Kind.LDS_STORE, 1, 1),
        ("ds_bpermute_b32 v0, v1, v2", Kind.LDS_OTHER, 0, 1),
        ("scratch_store_b32 off, v0, s32", Kind.SCRATCH, 4, 1),
        ("s_waitcnt vmcnt(0)", Kind.WAIT, 0, 1),
        ("s_wait_loadcnt_dscnt 0x0", Kind.WAIT, 0, 1),
        ("s_wait_alu 0xfffd", Kind.OTHER, 0, 1),
        ("s_barrier_signal -1", Kind.BARRIER, 0, 1),
        ("buffer_gl0_inv", Kind.OTHER, 0, 1),
        ("global_inv scope:SCOPE_SE", Kind.OTHER, 0, 1),
        ("s_delay_alu instid0(VALU_DEP_1)", Kind.OTHER, 0, 1),
        ("s_endpgm", Kind.OTHER, 0, 1),
    ],
)
def test_kind_and_width(text: str, kind: Kind, width: int, accesses: int):
    instruction = parse_instruction(text)
    assert (instruction.kind, instruction.width_bytes, instruction.accesses) == (kind, width, accesses)


@pytest.mark.parametrize(
    ("text", "fmas"),
    [
        ("v_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v5", 2),
        ("v_dual_fmac_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5", 1),
        ("v_dual_mov_b32 v0, v1 :: v_dual_add_f32 v3, v4, v5", 0),
        ("v_fmac_f32_e32 v0, v1, v2", 1),
        ("v_fmaak_f32 v0, v1, v2, 0x1", 1),
        ("v_fma_mix_f32 v0, v1, v2, v3", 1),
        ("v_pk_fma_f16 v0, v1, v2, v3", 2),
        ("v_mad_u64_u32 v[0:1], null, v2, s1, v[4:5]", 0),
        (W, 0),
    ],
)
def test_multiply_adds(text: str, fmas: int):
    assert parse_instruction(text).fmas == fmas


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s_waitcnt vmcnt(0)", {"WAIT": 0}),
        ("s_waitcnt vmcnt(3) lgkmcnt(0)", {"WAIT": 3, "LW": 0}),
        ("s_waitcnt 0", {"WAIT": 0, "LW": 0}),
        ("s_waitcnt_vscnt null, 0x0", {"SW": 0}),
        ("s_wait_loadcnt 0x4", {"WAIT": 4}),
        ("s_wait_dscnt 0x6", {"LW": 6}),
        ("s_wait_loadcnt_dscnt 0x203", {"WAIT": 2, "LW": 3}),
        ("s_wait_storecnt_dscnt 0x100", {"SW": 1, "LW": 0}),
        ("s_wait_kmcnt 0x0", {}),
        ("s_wait_idle", {"WAIT": 0, "LW": 0, "SW": 0}),
        ("s_waitcnt vmcnt(0x3) & lgkmcnt(1+1)", {"WAIT": 3, "LW": 2}),
        ("s_waitcnt vmcnt_sat(9) expcnt(1)", {"WAIT": 9}),
        ("s_waitcnt_vscnt null, 1<<2", {"SW": 4}),
        ("s_wait_loadcnt 1+1", {"WAIT": 2}),
        ("s_waitcnt 0xc07", {"WAIT": 3, "LW": 0}),
        ("s_barrier", {}),
    ],
)
def test_waits(text: str, expected: dict[str, int]):
    assert waits(parse_instruction(text)) == expected


def test_a_wait_by_number_is_of_its_generation():
    number = parse_instruction("s_waitcnt 0x3f70")
    assert waits(number, "gfx942") == {"WAIT": 0}
    assert waits(number, "gfx1100") == {"WAIT": 15, "LW": 55}


def test_order_of_gfx11_and_gfx12():
    gfx11 = loop_of(
        "s_waitcnt lgkmcnt(0)", "s_barrier", G, G, L, L, "s_waitcnt lgkmcnt(1)", W, W, "s_waitcnt vmcnt(1)", S,
        "s_waitcnt vmcnt(0)", S,
    )  # fmt: skip
    assert order(gfx11) == "BAR G2 L2 W2 WAIT(1) S WAIT S"
    assert order(gfx11, lds_waits=True) == "LW BAR G2 L2 LW(1) W2 WAIT(1) S WAIT S"
    gfx12 = loop_of(
        "s_wait_dscnt 0x0", "s_barrier_signal -1", "s_barrier_wait -1", "global_inv scope:SCOPE_SE", G, L, W,
        "s_wait_loadcnt_dscnt 0x0", S, target="gfx1201",
    )  # fmt: skip
    assert order(gfx12) == "BAR G L W WAIT S"
    assert order(gfx12, lds_waits=True) == "LW BAR G L W WAIT LW S"
    split = loop_of(G, "s_barrier_signal -1", W, "s_barrier_wait -1", S)
    assert order(split) == "G SIG W BAR S"


def test_order_of_a_loop_of_multiply_adds():
    pair = "v_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v5"
    assert order(loop_of(L, L, pair, pair, "v_fma_f32 v0, v1, v2, v3")) == "L2 F5"
    assert order(loop_of(L, pair, W)) == "L W"


@pytest.mark.parametrize(
    ("body", "overlap"),
    [
        ((G, G, W, W, W, W, "s_waitcnt vmcnt(0)", S), 1.0),
        ((G, G, "s_waitcnt vmcnt(0)", W, W, W, W, S), 0.0),
        ((G, W, G, W, W, W, "s_waitcnt vmcnt(0)", S), 0.75),
        ((G, G, W, W, "s_waitcnt vmcnt(1)", W, W, "s_waitcnt vmcnt(0)", S), 0.5),
        # The wait at the head is for the former iteration's loads at the end.
        (("s_waitcnt vmcnt(0)", S, G, W, W), 1.0),
        ((W, W, "s_waitcnt vmcnt(0)", S, G), 1.0),
        # Two loads stay open: each is waited for an iteration later.
        ((G, G, "s_waitcnt vmcnt(2)", S, W, W), 1.0),
        # LDS waits and stores' waits are no waits for loads.
        ((G, "s_waitcnt lgkmcnt(0)", "s_waitcnt_vscnt null, 0x0", W, W, "s_waitcnt vmcnt(0)"), 1.0),
        ((W, W), 0.0),
        ((G, "s_waitcnt vmcnt(0)"), 0.0),
    ],
)
def test_overlap_of_loads_and_matrix_instructions(body: tuple[str, ...], overlap: float):
    assert matrix_overlap(loop_of(*body)) == overlap


def test_stores_count_in_cdna_waits_and_not_in_rdna_waits():
    body = (G, "global_store_dwordx4 v[0:1], v[2:5], off", W, "s_waitcnt vmcnt(1)", W, "s_waitcnt vmcnt(0)")
    assert matrix_overlap(loop_of(*body, target="gfx942")) == 0.5
    assert matrix_overlap(loop_of(*body, target="gfx1151")) == 1.0


def test_narrow_loads():
    assert loads_are_wide(loop_of(G, L, S, W))
    half = loop_of(G, L, "ds_load_b64 v[0:1], v2", "ds_store_b32 v0, v1", W)
    assert [i.mnemonic for i in narrow_loads(half)] == ["ds_load_b64"]
    assert not loads_are_wide(half)
    assert loads_are_wide(half, width_bytes=8)
    assert not loads_are_wide(loop_of(G, "ds_load_2addr_b64 v[0:3], v4 offset1:1", W))
    assert not loads_are_wide(loop_of(G, W))
    assert not loads_are_wide(loop_of(W))


NEST = f"""
.LBB0_1:
	v_fma_f32 v0, v1, v2, v3
.LBB0_2:
	{W}
	s_cbranch_scc1 .LBB0_2
.LBB0_3:
	s_nop 0
	s_nop 0
	s_nop 0
	s_cbranch_vccnz .LBB0_3
	s_cbranch_scc0 .LBB0_1
	s_endpgm
"""


def test_the_innermost_loop_that_works_is_hot():
    analysis = analyze(NEST)
    assert [(loop.label, loop.depth) for loop in analysis.loops] == [(".LBB0_1", 1), (".LBB0_2", 2), (".LBB0_3", 2)]
    assert analysis.hot is not None
    assert analysis.hot.label == ".LBB0_2"
    # A loop that spins inside the one with the matrix instructions does not take its place.
    spin = hot_loop(f".LBB0_1:\n\t{W}\n.LBB0_2:\n\ts_sleep 1\n\ts_cbranch_scc1 .LBB0_2\n\ts_cbranch_scc0 .LBB0_1\n")
    assert spin is not None
    assert spin.label == ".LBB0_1"
    without_matrix = hot_loop(NEST.replace(W, "s_nop 0"))
    assert without_matrix is not None
    assert without_matrix.label == ".LBB0_1"


def test_a_shared_exit_is_no_loop():
    text = (
        "\ts_cbranch_scc1 .LBB0_2\n.LBB0_1:\n\ts_endpgm\n.LBB0_2:\n\ts_nop 0\n\ts_cbranch_execz .LBB0_1\n\ts_endpgm\n"
    )
    assert hot_loop(text) is None


def test_listing_skips_directives_comments_and_other_functions():
    listing = parse_listing(
        "k: ; @k\n\t.loc 1 2 3\n; %bb.0:\n\ts_nop 0 ; padding\n.LBB0_1: // loop\n\ts_endpgm\n.Lfunc_end0:\n\ts_trap 2\n"
    )
    assert [(i.line, i.text) for i in listing.instructions] == [(4, "s_nop 0"), (6, "s_endpgm")]
    assert listing.labels == {"k": 0, ".LBB0_1": 1}


PTX = """
.version 8.7
.target sm_90a
.visible .entry copy(
	.param .u64 .ptr .global copy_param_0
)
{
	.reg .pred %p<3>;
	ld.param.b64 %rd1, [copy_param_0];
$L__BB0_1:
	// begin inline asm
	@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
	// end inline asm
	cp.async.cg.shared.global [ %r80 + 0 ], [ %rd36 + 0 ], 0x10, %r81;
	{ mbarrier.try_wait.parity.shared.b64 %p2, [%r4], %r5; }
	ld.shared.v4.b32 {%r6, %r7, %r8, %r9}, [%r10];
	wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1}, %rd2, %rd3, %p1, 1, 1, 0, 0;
	wgmma.wait_group.sync.aligned 1;
	fma.rn.f32 %f2, %f3, %f4, %f5;
	@%p2 bra $L__BB0_1;
	st.global.b16 [%rd4], %rs1;
	ret;
}
"""


def test_ptx():
    analysis = analyze_listing(parse_ptx(PTX))
    assert (analysis.listing.kernel, analysis.listing.target) == ("copy", "sm_90a")
    assert analysis.hot is not None
    assert order(analysis.hot) == "D2 WAIT L W WW(1)"
    assert analysis.mix.widths == {
        Kind.GLOBAL_TO_LDS: {"16 B": 1}, Kind.LDS_LOAD: {"16 B": 1}, Kind.GLOBAL_STORE: {"2 B": 1}
    }  # fmt: skip
    assert analysis.mix.fmas == 1
    assert narrow_loads(analysis.hot) == ()
    with pytest.raises(ArgumentError, match="AMDGCN text only"):
        matrix_overlap(analysis.hot)


def test_mix_sums_up():
    mix = instruction_mix(parse_instruction(t) for t in (G, G, L, W, "v_fma_f32 v0, v1, v2, v3"))
    assert mix.total == sum(mix.kinds.values()) == 5
    assert mix.widths[Kind.GLOBAL_LOAD] == {"16 B": 2}
    assert mix.fmas == 1
