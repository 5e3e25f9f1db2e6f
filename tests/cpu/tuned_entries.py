"""Entries of tuned tables, as the tests of the tables and of the tuner want them."""

from __future__ import annotations

from laneloom.gpu import get_gpu
from laneloom.ops.matmul import tuned
from laneloom.ops.matmul.problem import MatmulProblem

GPU = get_gpu("gfx1151")
PROBLEM = MatmulProblem.contiguous(200, 200, 200)
FASTER = "wmma:block_m=32,block_n=32,block_k=64,num_warps=1,waves_n=1"


def entry(
    problem=PROBLEM, config=FASTER, *, gain=2.0, objective="measured", origin="cache", time_us=10.0, torch_us=None,
    gpu="",
):
    return tuned.TunedEntry(
        problem.key, tuned.kind_of(problem), tuned.sizes_of(problem), config, time_us, time_us * gain, objective,
        {"date": "2026-11-20", "gpu": gpu}, torch_us, origin,
    )  # fmt: skip


def put(one, gpu=GPU):
    path = tuned.cache_path(one.key, gpu.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tuned.render_table([one], gpu.name))
    tuned.forget()
    return path
