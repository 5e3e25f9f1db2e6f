"""Problems and plans of rows in groups: how many tiles there can be, and who takes them. Pure."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from itertools import combinations_with_replacement, pairwise

import pytest

from laneloom.codegen.versions import parse_version, triton_version
from laneloom.errors import UnsupportedError
from laneloom.gpu import GPUS, get_gpu
from laneloom.ops.matmul.api import explain
from laneloom.ops.matmul.config import MOST_GROUPS, plan, plan_with_reasons
from laneloom.ops.matmul.config_direct import DirectConfig
from laneloom.ops.matmul.config_mfma import LARGE_TRITON
from laneloom.ops.matmul.config_sgemm import NaiveConfig
from laneloom.ops.matmul.config_wmma import CoopConfig, PingpongConfig, WideConfig, WmmaConfig
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem

AMD = [name for name, gpu in GPUS.items() if gpu.vendor == "amd"]
KERNELS = {"wmma": "wmma", "mfma": "mfma", "wmma3": "dot"}


def in_groups(m: int, n: int, k: int, groups: int, **more) -> MatmulProblem:
    plain = MatmulProblem.contiguous(m, n, k, batch=groups, **more)
    a, out = (replace(x, strides=(0, 0, *x.strides[2:])) for x in (plain.a, plain.out))
    return replace(plain, a=a, out=out, grouped=True)


def test_facts():
    problem = in_groups(100, 64, 32, 7, dtype="bf16", layout="tn")
    assert problem.flops == 2 * 100 * 64 * 32
    assert problem.bytes == 2 * (100 * 32 + 7 * 32 * 64 + 100 * 64)
    assert problem.key == "matmul/tn/bf16_bf16_bf16/g7_m100_n64_k32/v1_8"  # groups begin at any row
    assert replace(problem, grouped=False).vector_a == 4
    equal = problem.of_equal_groups()
    assert (equal.m, equal.batches, equal.grouped, equal.flops) == (15, 7, False, 2 * 7 * 15 * 64 * 32)
    assert equal.bytes == 2 * (7 * 15 * 32 + 7 * 32 * 64 + 7 * 15 * 64)
    assert equal.of_equal_groups() is equal


@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_as_many_tiles_as_there_can_be(groups):
    """Over all ends, of as many rows as there are or fewer, the most tiles are as many as are launched."""
    for m in (1, 2, 3, 4, 9, 12):
        most = 0
        for ends in combinations_with_replacement(range(m + 1), groups):
            most = max(most, sum(-(-(end - first) // 4) for first, end in pairwise((0, *ends))))
        assert in_groups(m, 1, 1, groups).tiles(4, 16) == most
    assert in_groups(9, 33, 1, 2).tiles(4, 16) == 3 * in_groups(9, 1, 1, 2).tiles(4, 16)


@pytest.mark.parametrize("name", AMD)
def test_the_plan_is_of_groups_of_equal_sizes(name):
    gpu = get_gpu(name)
    large = 256 if name == "gfx950" and parse_version(triton_version()) >= LARGE_TRITON else 128
    for m, groups, most in ((8192, 8, large), (256, 64, 32)):
        problem = in_groups(m, 4096, 4096, groups, dtype="bf16", layout="nt")
        chosen = plan_with_reasons(problem, gpu)
        assert chosen.config.schedule == KERNELS[gpu.matrix_instructions]
        assert chosen.config.parts(problem) == 1
        assert chosen.config.block_m <= most
        assert chosen.source == "cost model"
        assert explain(problem, gpu=name).config == chosen.config
    assert plan(in_groups(8192, 4096, 4096, 8, layout="nt"), gpu).block_m == large


@pytest.mark.parametrize("name", ["gfx1151", "gfx942", "gfx1250"])
def test_what_groups_cannot_have(name):
    gpu, problem = get_gpu(name), in_groups(64, 64, 64, MOST_GROUPS)
    config = plan(problem, gpu)
    assert "at most 1024 groups" in (config.why_invalid(in_groups(64, 64, 64, MOST_GROUPS + 1), gpu) or "")
    assert config.why_invalid(replace(problem, epilogue=Epilogue(activation="relu")), gpu) is not None
    scaled = MatmulProblem.contiguous(64, 64, 256, dtype="fp8", batch=2, scales=(1, 1))
    assert config.why_invalid(replace(scaled, grouped=True), gpu) is not None
    with pytest.raises(UnsupportedError, match="blocks: multiplies all rows"):
        plan(replace(scaled, grouped=True), gpu)


OTHERS = (
    ("gfx1151", WideConfig(block_m=128, block_n=128, block_k=32), "fp16"),
    ("gfx1151", CoopConfig(block_m=128, block_n=128, block_k=32), "fp16"),
    ("gfx1151", PingpongConfig(block_m=128, block_n=128, block_k=32), "fp16"),
    ("gfx1151", WmmaConfig(block_m=128, block_n=128, block_k=32, split_k=2), "fp16"),
    ("gfx1151", WmmaConfig(block_m=128, block_n=128, block_k=32, stream_k=1), "fp16"),
    ("gfx1151", NaiveConfig(group_m=1), "fp32"),
    ("gfx1201", DirectConfig(block_m=128, block_n=128, block_k=32, num_warps=4), "int8"),
)


@pytest.mark.parametrize(("name", "config", "dtype"), OTHERS, ids=lambda x: getattr(x, "schedule", x))
def test_other_kernels_refuse_them(name, config, dtype):
    gpu = get_gpu(name)
    problem = in_groups(512, 512, 512, 2, dtype=dtype, layout="nt" if config.schedule == "wmma_direct" else "nn")
    assert config.why_invalid(problem.of_equal_groups(), gpu) is None
    assert "rows" in (config.why_invalid(problem, gpu) or "")


def test_every_kernel_that_a_plan_knows_refuses_them_or_takes_them():
    """What can do the plain product and ignored the groups would read and write wrong rows."""
    seen = set()
    for name, family in (("gfx1151", "plan_wmma"), ("gfx942", "config_mfma"), ("gfx908", "config_mfma"),
                         ("gfx1250", "config_dot"), ("sm_90a", "plan_hopper")):  # fmt: skip
        gpu = get_gpu(name)
        candidates = import_module(f"laneloom.ops.matmul.{family}").candidates
        for kinds in ({"dtype": "bf16"}, {"dtype": "fp8"}, {"dtype": "int8"}, {"dtype": "fp64"}, {"dtype": "fp32"},
                      {"dtype": "fp32", "precision": "tf32"}, {"dtype": "fp32", "precision": "3xbf16"}):  # fmt: skip
            for m, n, k in ((4096, 4096, 4096), (1, 4096, 4096), (16, 512, 8192), (127, 255, 333)):
                problem = in_groups(m, n, k, 2, layout="nn" if kinds["dtype"] == "bf16" else "nt", **kinds)
                for config, _ in candidates(problem.of_equal_groups(), gpu):
                    seen.add(config.schedule)
                    why = config.why_invalid(problem, gpu)
                    takes = config.schedule == KERNELS.get(gpu.matrix_instructions) and config.parts(problem) == 1
                    assert why is not None or takes, config.text
    assert seen >= {
        "wmma", "wmma_wide", "fma", "mfma", "dot", "hopper", "hopper_async", "hopper_cluster", "hopper_plain",
        "hopper_precise", "hopper_registers", "hopper_rows", "hopper_stream",
    }  # fmt: skip
