"""Machine code of the transposes: 16-byte accesses, and between them what each way of exchanging says it is."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from sampled import rarely

from laneloom.codegen import CodeObject
from laneloom.gpu import get_gpu
from laneloom.isa.listing import Kind, parse_listing
from laneloom.ops.transpose.config import FragmentsConfig, TilesConfig
from laneloom.ops.transpose.execute import code_object
from laneloom.ops.transpose.layouts import _told_apart
from laneloom.ops.transpose.problem import TransposeProblem

GPUS = (*rarely("gfx1100"), "gfx1151", "gfx1201")
#: what is exchanged between lanes for one 16-byte load of each: by cndmask (registers) and by perm (inside them)
EXCHANGE = {1: (8, 8), 2: (8, 4), 4: (8, 0), 8: (4, 0)}


def compiled(gpu: str, size: int, config=None) -> CodeObject:
    code = code_object(TransposeProblem.contiguous(512, 512, element_bytes=size), get_gpu(gpu), config)
    assert code.spills == 0
    return code


def counts(code: CodeObject) -> Counter[str]:
    return Counter(i.mnemonic for i in parse_listing(code.asm).instructions)


def widths(code: CodeObject, *kinds: Kind) -> set[int]:
    return {i.width_bytes for i in parse_listing(code.asm).instructions if i.kind in kinds}


@pytest.mark.covering
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("gpu", GPUS)
def test_tiles_through_lds(gpu, size):
    code = compiled(gpu, size)
    assert code.lds_bytes > 0
    memory = (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.LDS_LOAD, Kind.LDS_STORE)
    assert widths(code, *memory) == {16}, "whole 16 bytes on all four ways"


@pytest.mark.covering
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_tiles_between_lanes(gpu, size):
    code = compiled(gpu, size, TilesConfig(block_r=64, block_c=64, num_warps=4, through="lanes"))
    found = counts(code)
    assert code.lds_bytes == 0
    assert not any(name.startswith(("ds_", "s_barrier")) for name in found)
    assert widths(code, Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE) == {16}
    # the code has the tile twice, whole and masked
    loads = sum(n for name, n in found.items() if name.startswith("global_load"))
    registers, insides = EXCHANGE[size]
    assert len(re.findall(r"v_cndmask_b32\S* .*row_xmask", code.asm)) == loads * registers
    assert found["v_perm_b32"] >= loads * insides


@pytest.mark.covering
@pytest.mark.parametrize(("by", "size", "matrix", "each"), [
    ("iu8", 1, "v_wmma_i32_16x16x16_iu8", 1), ("iu8", 2, "v_wmma_i32_16x16x16_iu8", 2),
    ("f16", 2, "v_wmma_f16_16x16x16_f16", 1), ("bf16", 2, "v_wmma_f32_16x16x16_bf16", 1),
])  # fmt: skip
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_product_with_the_identity(gpu, by, size, matrix, each):
    chunks = 4
    code = compiled(gpu, size, FragmentsConfig(block_r=64, chunks=chunks, num_warps=4, by=by))
    found = counts(code)
    assert code.lds_bytes == 0
    assert {name: n for name, n in found.items() if "wmma" in name} == {matrix: each * chunks}
    assert not any("permlane" in name or "bpermute" in name or "dpp" in name for name in found)
    loads = {"gfx1151": 16, "gfx1201": 8 * size}[gpu]  # RDNA 3 holds a row of 16 elements in a lane
    assert widths(code, Kind.GLOBAL_LOAD) == {loads}
    assert widths(code, Kind.GLOBAL_STORE) == {8 * size}


@pytest.mark.covering
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_fragments_between_lanes(gpu, size):
    """A fragment's registers after one exchange per bit: the last, on RDNA 4, swaps the half waves' inner halves."""
    chunks = 4
    code = compiled(gpu, size, FragmentsConfig(block_r=64, chunks=chunks, num_warps=4, by="lanes"))
    found = counts(code)
    registers = {"gfx1151": 16, "gfx1201": 8}[gpu] * size // 4
    assert code.lds_bytes == 0
    assert not any("wmma" in name or name.startswith("ds_") for name in found)
    assert found["v_permlanex16_b32"] == (registers * chunks if gpu == "gfx1201" else 0)
    whole = registers.bit_length() - 1  # bits of an element's number that are bits of its register's
    assert len(re.findall(r"v_cndmask_b32\S* .*row_xmask", code.asm)) == whole * registers * chunks
    assert found["v_perm_b32"] >= {1: 2, 2: 1}[size] * registers * chunks


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [512, 4096])
def test_hopper(size, rows):
    code = code_object(TransposeProblem.contiguous(rows, rows, element_bytes=size), get_gpu("sm_90a"))
    assert code.num_warps == (2 if rows == 512 else 8 if size == 1 else 4)
    assert code.spills == 0
    assert code.lds_bytes > 0 or rows == 512  # small tiles change places by shuffles
    wait, release = (code.asm.index(f"griddepcontrol.{what}") for what in ("wait", "launch_dependents"))
    assert wait < release < min(code.asm.index(what) for what in ("ld.global", "st.global"))
    assert set(re.findall(r"ld\.global\.(\S+)", code.asm)) == {"v4.b32"} if size < 8 else {"v2.b64"}


def test_triton_makes_no_row_of_a_lanes_number():
    """Triton 3.6 made `or(tid << 28, ...)` in 64 bits of rows and columns, and took its upper half for a row."""
    tile = TilesConfig(block_b=1, block_r=4, block_c=32, num_warps=1)
    for batch, rows, columns, size, config in ((1, 12, 32, 1, None), (2, 12, 32, 1, None), (1, 32, 48, 8, tile)):
        problem = TransposeProblem.contiguous(rows, columns, element_bytes=size, batch=batch)
        asm = code_object(problem, get_gpu("sm_90a"), config).asm
        assert "st.global" in asm
        assert not [by for by in re.findall(r"mul\.wide\.u32\s+%rd\d+, %r\d+, (\d+)", asm) if int(by) >= 1 << 20]


@pytest.mark.parametrize(("lanes", "told_apart"), [
    ("r4 r8 c4 c8 c16", "r4 r8 c16 c8 c4"),  # c = lane & 28: its bits from the other end
    ("c4 c8 c16 c32 r16", "r16 c4 c8 c16 c32"),  # r = lane & 16, one bit: in front
    ("r4 r8 c1 c2 c4", "r4 r8 c1 c2 c4"),
    ("c1 c2 c4 c8 c16", "c1 c2 c4 c8 c16"),
])  # fmt: skip
def test_lanes_told_apart(lanes, told_apart):
    given = [(word[0], int(word[1:])) for word in lanes.split()]
    found = _told_apart(given)
    assert " ".join(f"{axis}{bit}" for axis, bit in found) == told_apart
    assert _told_apart(found) == found
