"""CDNA's names for what the emulator knows by RDNA's, and its accumulation registers as rows of the vector file.

LLVM prints gfx9's own mnemonics for gfx942 and gfx950: `ds_read_b128` for `ds_load_b128`, `global_load_dwordx4` for
`global_load_b128`, `v_addc_co_u32` for `v_add_co_ci_u32`; assemblers take most of them for gfx11 and gfx12 too.
Registers a[0:n] stand behind a kernel's v[0:m] in one file, from `.amdhsa_accum_offset` on; CDNA 1 has a second file,
whose registers stand behind those of the first here.
Source: CDNA 3 ISA guide; LLVM AMDGPUUsage, "Code Object Kernel Descriptor".
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from ..gpu import Gpu
from ..isa.parse import Instruction, Listing, Operand
from .aliases import ALIASES
from .gfx9_modes import indexed, selects
from .literals import lengthen

_WIDTHS = {"": "b32", "x2": "b64", "x3": "b96", "x4": "b128"}
_NARROW = {"ubyte": "u8", "sbyte": "i8", "ushort": "u16", "sshort": "i16"}
_HALVES = {"ubyte": "u8", "sbyte": "i8", "short": "b16"}
_STORED = {"byte": "b8", "short": "b16"}
_ATOMICS = {
    "swap": "swap_b", "cmpswap": "cmpswap_b", "add": "add_u", "sub": "sub_u", "smin": "min_i", "umin": "min_u",
    "smax": "max_i", "umax": "max_u", "and": "and_b", "or": "or_b", "xor": "xor_b", "inc": "inc_u", "dec": "dec_u",
    "csub": "csub_u", "fcmpswap": "cmpswap_f", "fmin": "min_f", "fmax": "max_f",  # RDNA 2's
}  # fmt: skip
_EXACT = {
    "v_addc_co_u32": "v_add_co_ci_u32", "v_subb_co_u32": "v_sub_co_ci_u32", "v_subbrev_co_u32": "v_subrev_co_ci_u32",
    "v_add_u16": "v_add_nc_u16", "v_sub_u16": "v_sub_nc_u16", "v_add_i16": "v_add_nc_i16", "v_sub_i16": "v_sub_nc_i16",
    "v_mul_lo_i32": "v_mul_lo_u32", "v_exp_legacy_f32": "v_exp_f32", "v_log_legacy_f32": "v_log_f32",
    # CDNA 5 renames what works on code addresses; loads that watch, or serve a cluster, are loads for one workgroup.
    "s_get_pc_i64": "s_getpc_b64", "s_set_pc_i64": "s_setpc_b64", "s_swap_pc_i64": "s_swappc_b64",
    "s_call_i64": "s_call_b64", "s_get_shader_cycles_u64": "s_memtime",
    **{f"{space}_load_monitor_b{n}": f"{space}_load_b{n}" for space in ("global", "flat") for n in (32, 64, 128)},
    **{f"cluster_load_b{n}": f"global_load_b{n}" for n in (32, 64, 128)},
    "v_accvgpr_read_b32": "v_mov_b32", "v_accvgpr_write_b32": "v_mov_b32", "v_accvgpr_mov_b32": "v_mov_b32",
    "v_accvgpr_read": "v_mov_b32", "v_accvgpr_write": "v_mov_b32",
    "ds_write_src2_b32": "ds_swap_src2_b32", "ds_write_src2_b64": "ds_swap_src2_b64",
}  # fmt: skip
_MEMORY = re.compile(r"(global|flat|buffer|scratch)_(load|store|atomic)_(\w+)$")
_FORMAT = re.compile(r"t?buffer_(load|store)_(d16_|d16_hi_)?format_(d16_|d16_hi_)?([xyzw]+)$")


def _memory(space: str, way: str, tail: str) -> str:
    """The tail of a load, store or atomic, as RDNA 3 spells it."""
    if way == "atomic":
        wide = tail.endswith("_x2")
        if new := _ATOMICS.get(tail.removesuffix("_x2")):
            return f"{new}{64 if wide else 32}"
        return tail
    if match := re.fullmatch(r"dword(x[234])?", tail):
        return _WIDTHS[match[1] or ""]
    if tail == "dword_addtid":
        return "addtid_b32"
    if way == "load":
        if tail.startswith("lds_"):
            return f"lds_{_memory(space, way, tail.removeprefix('lds_'))}"
        if tail in _NARROW:
            return _NARROW[tail]
        if match := re.fullmatch(r"(ubyte|sbyte|short)_d16(_hi)?", tail):
            return f"d16{match[2] or ''}_{_HALVES[match[1]]}"
    elif match := re.fullmatch(r"(byte|short)(_d16_hi)?", tail):
        return f"{match[2][1:] + '_' if match[2] else ''}{_STORED[match[1]]}"
    return tail


@cache
def modern(name: str) -> str:
    """RDNA 3's name for a mnemonic of gfx9; the same where RDNA 3 has no other."""
    if name in _EXACT:
        return _EXACT[name]
    if match := _FORMAT.match(name):
        return f"buffer_{match[1]}_{match[2] or match[3] or ''}format_{match[4]}"
    if match := _MEMORY.match(name):
        return f"{match[1]}_{match[2]}_{_memory(*match.groups())}"
    if name.startswith("ds_"):
        tail = name[3:]
        tail = re.sub(r"^wrxchg2st64_rtn_", "storexchg_2addr_stride64_rtn_", tail)
        tail = re.sub(r"^wrxchg2_rtn_", "storexchg_2addr_rtn_", tail)
        tail = re.sub(r"^wrxchg_", "storexchg_", tail)
        tail = re.sub(r"^cmpst_", "cmpstore_", tail)
        for old, new in (("read", "load"), ("write", "store")):
            tail = re.sub(rf"^{old}2st64_", f"{new}_2addr_stride64_", tail)
            tail = re.sub(rf"^{old}2_", f"{new}_2addr_", tail)
            tail = re.sub(rf"^{old}_", f"{new}_", tail)
        return f"ds_{tail}"
    # The legacy forms differ in what they do to the other half of their register.
    return name if "legacy" in name else ALIASES.get(name, name)


def spellings() -> set[str]:
    """gfx9's own names of what RDNA 3 spells otherwise, older spellings of ALU instructions (aliases.py) aside."""
    loads = ["dword", "dwordx2", "dwordx3", "dwordx4", *_NARROW]
    loads += [f"{kind}_d16{half}" for kind in _HALVES for half in ("", "_hi")]
    stores = [*loads[:4], *(f"{kind}{half}" for kind in _STORED for half in ("", "_d16_hi"))]
    spaces = ("global", "flat", "buffer", "scratch")
    names = {f"{space}_load_{tail}" for space in spaces for tail in loads}
    names |= {f"{space}_store_{tail}" for space in spaces for tail in stores}
    names |= {f"{space}_atomic_{op}{wide}" for space in spaces[:3] for op in _ATOMICS for wide in ("", "_x2")}
    formats = [(space, way, "xyzw"[:n]) for space in ("", "t") for way in ("load", "store") for n in range(1, 5)]
    names |= {f"{space}buffer_{way}_format_{part}" for space, way, part in formats}
    names |= {f"tbuffer_{way}_d16_format_{part}" for space, way, part in formats if space}
    names |= {f"{space}buffer_{way}_format_d16_{part}" for space, way, part in formats}
    names |= {f"buffer_{way}_format_d16_hi_x" for way in ("load", "store")}
    names |= {f"{space}_load_lds_{tail}" for space in ("global", "scratch") for tail in (*loads[:4], *_NARROW)}
    widths = ("b8", "b16", "b32", "b64", "b96", "b128")
    names |= {f"ds_write_{width}" for width in widths} | {f"ds_read_{width}" for width in widths}
    names |= {f"ds_write_b{bits}_d16_hi" for bits in (8, 16)}
    narrow = [f"{sign}{bits}" for sign in "ui" for bits in (8, 16)]
    names |= {f"ds_read_{kind}{half}" for kind in narrow for half in ("", "_d16", "_d16_hi")}
    two = [f"{stride}_b{bits}" for stride in ("2", "2st64") for bits in (32, 64)]
    names |= {f"ds_{way}{kind}" for way in ("read", "write") for kind in two}
    names |= {f"ds_wrxchg{kind.replace('_', '_rtn_')}" for kind in (*two, "_b32", "_b64")}
    names |= {f"ds_cmpst_{rtn}{kind}{bits}" for rtn in ("", "rtn_") for kind in "bf" for bits in (32, 64)}
    names |= {f"global_{way}_dword_addtid" for way in ("load", "store")}
    names |= {"ds_read_addtid_b32", "ds_write_addtid_b32", "ds_read_b96_tr_b6"}
    return names | {f"ds_read_b64_tr_b{bits}" for bits in (4, 8, 16)} | set(_EXACT)


def first_accumulator(listing: Listing) -> int:
    """The number of the vector register that a[0] is here."""
    return listing.directive("accum_offset", listing.directive("next_free_vgpr", 256))


def translate(listing: Listing, gpu: Gpu) -> None:
    """Give a listing's instructions the names, and on gfx9 the register numbers, that the emulator works with."""
    if gpu.is_cdna5:
        lengthen(listing)
    first = first_accumulator(listing)
    code = listing.instructions
    mode = 0
    for k, ins in enumerate(code):
        if gpu.major == 9:
            code[k] = _translated(ins, first)
            mode = _index_mode(ins, mode)
            if mode and ins.name.startswith("v_"):
                move = None if selects(ins) else _INDEXED.get((ins.name, mode))
                code[k] = replace(code[k], name=move, written=ins.name) if move else indexed(code[k], mode)
        elif (name := modern(ins.name)) != ins.name:
            code[k] = replace(ins, name=name, written=ins.name)


_INDEX_BITS = {"SRC0": 1, "SRC1": 2, "SRC2": 4, "DST": 8}
_INDEXED = {("v_mov_b32", 1): "v_movrels_b32", ("v_mov_b32", 8): "v_movreld_b32", ("v_mov_b32", 9): "v_movrelsd_b32"}


def _index_mode(ins: Instruction, mode: int) -> int:
    """Which registers of the instructions that follow have M0 added to their numbers, which compilers do in line."""
    if ins.name == "s_set_gpr_idx_off":
        return 0
    if ins.name not in ("s_set_gpr_idx_on", "s_set_gpr_idx_mode"):
        return mode
    value = ins.operands[-1].value
    if isinstance(value, str):  # gpr_idx(SRC0,DST)
        return sum(bit for name, bit in _INDEX_BITS.items() if name in value)
    return int(value)


def _translated(ins: Instruction, accumulators: int) -> Instruction:
    name = modern(ins.name)
    operands = tuple(_vector(o, accumulators) for o in ins.operands)
    modifiers = ins.modifiers
    if "lds" in modifiers:
        name = re.sub("^(buffer|global|scratch)_load_", r"\1_load_lds_", name)
    if "bound_ctrl" in modifiers:  # before gfx11 the assembler reads 0 as the bit that is set
        modifiers = modifiers | {"bound_ctrl": "1"}
    if name.startswith("ds_cmpstore"):  # gfx9 has the value to compare with first
        operands = (*operands[:-2], operands[-1], operands[-2])
    if "_atomic_" in name and "sc0" in modifiers:
        modifiers = modifiers | {"glc": ""}
    written = ins.name if name != ins.name else ""
    return replace(ins, name=name, operands=operands, modifiers=modifiers, written=written)


def _vector(operand: Operand, accumulators: int) -> Operand:
    if operand.kind != "a":
        return operand
    return replace(operand, kind="v", index=accumulators + operand.index)
