"""Plans of transpose and gemm_chain: which schedule, for every GPU, and why; configs as text."""

from __future__ import annotations

import pytest

from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.gpu import get_gpu
from laneloom.ops.gemm_chain import config as chain
from laneloom.ops.gemm_chain.problem import ChainProblem
from laneloom.ops.matmul.problem import Matrix
from laneloom.ops.transpose import config as transpose
from laneloom.ops.transpose.problem import TransposeProblem

GPUS = ("gfx1100", "gfx1151", "gfx1201", "gfx942", "sm_90a")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4096, 4096), (262144, 16, 16), (3, 5, 100000), (7, 1, 9), (1, 9, 1)])
def test_every_transpose_has_a_valid_plan(gpu, size, shape):
    problem = TransposeProblem.contiguous(shape[1], shape[2], element_bytes=size, batch=shape[0])
    config = transpose.plan(problem, get_gpu(gpu))
    assert config.why_invalid(problem, get_gpu(gpu)) is None
    assert transpose.parse_config(config.text) == config


def test_small_matrices_share_a_program():
    config = transpose.plan(TransposeProblem.contiguous(16, 16, batch=100000), get_gpu("sm_90a"))
    assert (config.block_b, config.block_r, config.block_c) == (32, 16, 16)


def test_few_bytes_go_to_many_processors():
    """200 of 8 x 28 bytes are 50 programs of 2 KB, not two of 32."""
    for shape, tile in (((200, 8, 28), (8, 8, 32)), ((1, 1000, 1000), (1, 64, 32)), ((1, 4096, 4096), (1, 256, 128))):
        problem = TransposeProblem.contiguous(*shape[1:], element_bytes=1, batch=shape[0])
        config = transpose.plan(problem, get_gpu("sm_90a"))
        assert (config.block_b, config.block_r, config.block_c) == tile
        assert config.num_warps == (8 if shape[1] > 1000 else 2)


def test_vectors_of_a_transpose():
    problem = TransposeProblem.contiguous(64, 48)
    assert (problem.fast_axis(problem.x), problem.fast_axis(problem.y)) == ("c", "r")
    assert (problem.vector(problem.x), problem.vector(problem.y)) == (8, 8)
    odd = TransposeProblem(64, 49, 2, (1, 1), Matrix((0, 0, 49, 1)), Matrix((0, 0, 1, 64), 4))
    assert (odd.vector(odd.x), odd.vector(odd.y)) == (1, 2)
    assert problem.bytes == 2 * 64 * 48 * 2


def test_transposes_that_cannot_be():
    gpu = get_gpu("sm_90a")
    wide = TransposeProblem(8, 8, 16, (1, 1), Matrix((0, 0, 8, 1)), Matrix((0, 0, 1, 8)))
    with pytest.raises(UnsupportedError, match="1, 2, 4 or 8 bytes"):
        transpose.checked_config(wide, gpu, None)
    problem = TransposeProblem.contiguous(64, 64)
    for text, message in (
        ("tiles:through=lanes", "data-parallel primitives"), ("tiles:through=air", "lds or lanes"),
        ("fragments", "WMMA"), ("tiles:block_r=1024,block_c=1024", "lane holds at most"),
    ):  # fmt: skip
        with pytest.raises(InvalidConfigError, match=message):
            transpose.checked_config(problem, gpu, transpose.parse_config(text))
    copied = TransposeProblem(64, 64, 2, (1, 1), Matrix((0, 0, 1, 64)), Matrix((0, 0, 1, 64)))
    with pytest.raises(InvalidConfigError, match="row-major"):
        transpose.checked_config(copied, get_gpu("gfx1201"), transpose.FragmentsConfig())
    with pytest.raises(ArgumentError, match="of type int"):
        transpose.parse_config("tiles:block_r=x")


@pytest.mark.parametrize(
    ("gpu", "sizes", "schedule", "keep"),
    [
        ("gfx1201", (512, 256, 64, 256), "wmma", True), ("gfx1151", (512, 256, 512, 128), "wmma", False),
        ("gfx1151", (512, 256, 512, 512), "pair", False), ("gfx1201", (512, 4096, 16, 4096), "pair", False),
        ("sm_90a", (262144, 64, 64, 64), "hopper", True), ("sm_90a", (32768, 64, 1024, 64), "hopper", False),
        ("sm_90a", (4096, 4096, 4096, 4096), "pair", False), ("sm_90a", (8192, 4096, 64, 4096), "pair", False),
        ("sm_90a", (16, 64, 64, 64), "pair", False), ("sm_90a", (262144, 65, 64, 64), "pair", False),
    ],
)  # fmt: skip
def test_which_chain_is_fused(gpu, sizes, schedule, keep):
    problem = ChainProblem.contiguous(*sizes)
    config = chain.plan(problem, get_gpu(gpu))
    assert (config.schedule, config.keep) == (schedule, keep)
    assert chain.parse_config(config.text) == config
    assert config.flops(problem) == problem.flops, "nothing is computed twice"


def test_a_chain_that_computes_p_again_counts_it():
    problem = ChainProblem.contiguous(512, 256, 64, 256)
    config = chain.ChainConfig(schedule="wmma", block_n1=64)
    assert config.flops(problem) == 2 * 512 * 64 * (4 * 256 + 256)


def test_panels():
    problem = ChainProblem.contiguous(64, 48, 40, 72)
    assert problem.panel("a0") == (64, 48, "k", (48, 1), 8)
    assert problem.panel("b0") == (40, 48, "row", (1, 40), 8)
    assert problem.panel("b1") == (72, 40, "row", (1, 72), 8)
    assert problem.row_vector("out") == 8
    assert problem.row_vector("c1") == 1
    odd = ChainProblem.contiguous(64, 47, 37, 71)
    assert [odd.panel(name)[4] for name in ("a0", "b0", "b1")] == [1, 1, 1]
    assert problem.flops == 2 * 64 * 40 * (48 + 72)
