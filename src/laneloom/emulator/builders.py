"""Mnemonic -> what turns the instruction into a closure."""

from __future__ import annotations

from ..isa.parse import Instruction
from . import (  # cluster, hostcall and tables fill the tables of alu
    async_access,
    atomics,
    block_access,
    buffer_access,
    cluster,  # noqa: F401
    flat_access,
    format_access,
    gfx9_modes,
    global_access,
    global_sync,
    hostcall,  # noqa: F401
    lds_access,
    lds_barriers,
    lds_direct,
    lds_special,
    matrix,
    mfma,
    private_access,
    scalar_stores,
    tables,  # noqa: F401
    tensor_access,
    transposed,
    wmma3,
)
from .alu import SCALAR, VECTOR, Builder, Step, Target, build_scalar, build_vector

# Instructions that order, hint or delay. Waves run in order and memory is coherent here, so they change no result.
ORDERING = frozenset(
    """s_waitcnt s_waitcnt_vscnt s_waitcnt_vmcnt s_waitcnt_expcnt s_waitcnt_lgkmcnt s_waitcnt_depctr s_delay_alu
    s_clause s_nop v_nop s_sleep s_sleep_var s_setprio s_version s_code_end
    s_set_inst_prefetch_distance s_inst_prefetch s_prefetch_inst s_prefetch_inst_pc_rel s_prefetch_data
    s_buffer_prefetch_data s_icache_inv s_dcache_inv s_gl1_inv buffer_gl0_inv buffer_gl1_inv global_inv global_wb
    global_wbinv buffer_inv buffer_invl2 buffer_wbl2 buffer_wbinvl1 buffer_wbinvl1_vol
    s_set_gpr_idx_off s_set_gpr_idx_mode s_dcache_wb s_dcache_inv_vol s_dcache_wb_vol
    s_ttracedata s_ttracedata_imm s_incperflevel s_decperflevel s_set_vgpr_msb s_setprio_inc_wg s_monitor_sleep
    s_wakeup_barrier global_prefetch_b8 flat_prefetch_b8 s_wakeup s_singleuse_vdst s_prefetch_data_pc_rel ds_nop
    s_atc_probe s_atc_probe_buffer v_pipeflush v_clrexcp""".split()
)


def is_ordering(name: str) -> bool:
    """Whether an instruction only orders, hints or delays."""
    return name in ORDERING or name.startswith("s_wait_")


def build_nothing(ins: Instruction, target: Target) -> Step:
    """A closure that changes nothing."""
    return lambda g: None


def find_builder(name: str) -> Builder | None:
    """What turns an instruction of this name into a closure, None where the emulator lacks it."""
    if name in VECTOR:
        op = VECTOR[name]
        return lambda ins, t: build_vector(op, ins, t)
    if name in SCALAR:
        entry = SCALAR[name]
        return lambda ins, t: build_scalar(*entry, ins, t)
    if is_ordering(name):
        return build_nothing
    if name == gfx9_modes.INDEXED:
        return gfx9_modes.build_indexed
    if builder := wmma3.find(name):
        return builder
    if matrix.is_matrix(name):
        return lambda ins, t: matrix.build([matrix.decode(ins, t)])
    memories = (
        lds_access, lds_special, lds_direct, global_access, buffer_access, format_access, private_access, flat_access,
        atomics, block_access, global_sync,
    )  # fmt: skip
    of_gfx9 = (scalar_stores, mfma)
    of_cdna5 = (async_access, tensor_access, lds_barriers, transposed)  # and the transposing loads of CDNA 4
    for module in (*memories, *of_cdna5, *of_gfx9):
        builder = module.find(name)
        if builder:
            return builder
    return None
