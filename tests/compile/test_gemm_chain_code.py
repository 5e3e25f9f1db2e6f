"""Machine code of the chain: P goes from accumulators to operand in registers, on RDNA 3, RDNA 4 and Hopper."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from sampled import rarely

from laneloom.codegen import CodeObject
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.gpu import get_gpu
from laneloom.isa.listing import parse_listing
from laneloom.ops.gemm_chain.config import ChainConfig, plan
from laneloom.ops.gemm_chain.execute import code_object
from laneloom.ops.gemm_chain.problem import ChainProblem

KEPT, BLOCKS = (512, 256, 64, 256), (512, 256, 512, 128)


def compiled(gpu: str, sizes, dtype="fp16", config=None, **options) -> tuple[CodeObject, ChainConfig]:
    problem = ChainProblem.contiguous(*sizes, dtype=dtype, **options)
    config = config or plan(problem, get_gpu(gpu))
    code = code_object(problem, get_gpu(gpu), config)
    assert code.spills == 0
    return code, config


def counts(code: CodeObject) -> Counter[str]:
    return Counter(i.mnemonic for i in parse_listing(code.asm).instructions)


def matrix_count(sizes, config) -> int:
    """Matrix instructions of a wave: the first product's loop and its last tile, and one tile of the second."""
    rows = config.block_m // config.num_warps
    first = 2 * rows * config.block_n0 * config.block_k
    return (first + rows * config.block_n1 * config.block_n0) // 16**3


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("sizes", [KEPT, BLOCKS], ids=["keep", "blocks"])
@pytest.mark.parametrize("gpu", [*rarely("gfx1100"), "gfx1151", "gfx1201"])
def test_p_stays_in_registers(gpu, sizes, dtype):
    code, config = compiled(gpu, sizes, dtype)
    assert config.keep == (sizes is KEPT)
    found = counts(code)
    matrix = f"v_wmma_f32_16x16x16_{'bf16' if dtype == 'bf16' else 'f16'}"
    assert {name: n for name, n in found.items() if "wmma" in name} == {matrix: matrix_count(sizes, config)}
    # LDS holds the tiles of A0, B0 and B1 and, before and after, D1 on its way out: no room for P.
    staging = 2 * ((config.block_m + config.block_n0) * config.block_k + config.block_n1 * config.block_n0)
    assert config.lds_bytes(ChainProblem.contiguous(*sizes)) == staging
    registers_of_p = config.block_m // config.num_warps * config.block_n0 // 2 // 32
    if gpu == "gfx1201":
        assert not any("permlane" in name or "bpermute" in name for name in found), "P is where it is wanted"
    else:
        assert found["v_permlanex16_b32"] == registers_of_p, "one exchange of half waves a register of P"
    assert not any("bpermute" in name for name in found)


@pytest.mark.skipif(parse_version(triton_version()) < (3, 9), reason="Triton compiles for it from 3.9 on")
@pytest.mark.parametrize("sizes", [KEPT, BLOCKS], ids=["keep", "blocks"])
def test_p_stays_in_registers_on_cdna_5(sizes):
    code, config = compiled("gfx1250", sizes)
    assert config.keep == (sizes is KEPT)
    found = counts(code)
    wmma = {name: n for name, n in found.items() if "wmma" in name}
    assert wmma == {"v_wmma_f32_16x16x32_f16": matrix_count(sizes, config) // 2}, "twice as many steps of K in each"
    assert not any("permlane" in name or "bpermute" in name for name in found), "P is where it is wanted"


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_lds_is_written_by_operands_alone(gpu):
    """Row-major A0 and K-major B0, B1: every LDS store is a whole 16 bytes of one of them or of D1's FP32 tile."""
    sizes = KEPT
    problem = ChainProblem.contiguous(*sizes)
    turned = ChainProblem(
        **{**vars(problem), "b0": type(problem.b0)((0, 0, 1, sizes[1])), "b1": type(problem.b1)((0, 0, 1, sizes[2]))}
    )
    config = plan(turned, get_gpu(gpu))
    code = code_object(turned, get_gpu(gpu), config)
    loop, tail = _before_and_after_last_matrix(code)
    threads = 32 * config.num_warps
    operands = 2 * (2 * (config.block_m + config.block_n0) * config.block_k + config.block_n1 * config.block_n0)
    assert 16 * loop["ds_store_b128"] == operands // threads
    assert sum(n for name, n in loop.items() if name.startswith("ds_store")) == loop["ds_store_b128"]
    assert tail, "D1 goes out through LDS"


def _before_and_after_last_matrix(code: CodeObject) -> tuple[Counter[str], Counter[str]]:
    instructions = parse_listing(code.asm).instructions
    last = max(n for n, i in enumerate(instructions) if "wmma" in i.mnemonic)
    names = [i.mnemonic for i in instructions]
    return Counter(names[:last]), Counter(names[last:])


@pytest.mark.parametrize("sizes", [(65536, 256, 64, 256), (16384, 128, 4096, 128)])
def test_hopper_multiplies_p_from_registers(sizes):
    code, _ = compiled("sm_90a", sizes, "bf16")
    assert code.lds_bytes <= get_gpu("sm_90a").lds_bytes
    # wgmma's first operand is a descriptor (one register, after the accumulators) or, for P, four registers in braces.
    operands = re.findall(r"wgmma\.mma_async\S+\s+\{[^}]*\},\s*(\{[^}]*\}|[^,\s]+)", code.asm)
    registers = [text for text in operands if text.startswith("{")]
    assert registers, "no wgmma takes P from registers"
    assert len(registers) < len(operands), "the first product takes A0 from shared memory"
    assert all(text.count(",") == 3 for text in registers)
    assert "cp.async.cg.shared.global" in code.asm


def test_addend_and_odd_sizes_compile():
    for gpu in ("gfx1151", "gfx1201"):
        compiled(gpu, (200, 100, 50, 70), add=True)
    compiled("sm_90a", (20000, 96, 48, 80), add=True)
    odd = plan(ChainProblem.contiguous(20000, 100, 50, 70), get_gpu("sm_90a"))
    assert odd.schedule == "pair", "what 16-byte copies cannot fetch"
