"""The first launches of a process, at which Triton reads their options: every AMD kernel of laneloom's, small."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from own_kernels import CASES, CDNA_5, GPUS, Case
from triton.backends.amd.compiler import HIPBackend

import laneloom
from laneloom.bench import emulator as bench_emulator
from laneloom.bench import timing_cdna
from laneloom.bench import transform3d as bench_transform3d
from laneloom.bench import transpose as bench_transpose
from laneloom.cli.doctor import _emulate_probe
from laneloom.emulator.driver import ArrayArgument
from laneloom.errors import InvalidConfigError
from laneloom.pytorch.merge import merge_parts

VARIABLE = "TRITON_DEFAULT_FP_FUSION"


def _decode_in_parts(gpu: str) -> None:
    q, cache = torch.randn(1, 1, 1, 16).half(), torch.randn(1, 3000, 1, 16).half()
    laneloom.attention_decode(q, cache, cache, cache_lengths=torch.tensor([3000], dtype=torch.int32))


def _gradients_of_groups(gpu: str) -> None:
    a, b = (torch.randn(shape).half().requires_grad_() for shape in ((20, 16), (2, 16, 24)))
    laneloom.grouped_matmul(a, b, torch.tensor([5, 17], dtype=torch.int32)).sum().backward()


def _merge(gpu: str) -> None:
    old, part = torch.randn(2, 1, 1, 4, 16).half()
    lse, sums = torch.zeros(2, 1, 1, 4)
    merge_parts(old, lse, part, sums, old)


def _copies(gpu: str) -> None:
    x = torch.zeros(64, dtype=torch.float64)
    bench_transform3d.copy_tensors(x, torch.empty_like(x))
    bench_transpose._copy(x, torch.empty_like(x))


def _benchmarks(gpu: str) -> None:
    for call, _ in (bench_emulator._softmax(16), bench_emulator._attention(1, 64, 16)):
        call()
    tile = timing_cdna.Tile(16, 16, 16, waves=1, stages=1)
    timing_cdna.Case("X", "", "gfx942", (64, 32, 16), "float16", False, (tile,), 1.0).sample()


def _doctor(gpu: str) -> None:
    _emulate_probe(gpu)


#: what launches kernels that no case of the operators' has -> these
OTHERS: dict[Callable[[str], None], set[str]] = {
    _decode_in_parts: {"attention_combine"},
    _gradients_of_groups: {"clear_rows_behind"},
    _merge: {"merge_parts_kernel"},
    _copies: {"_copy_kernel"},
    _benchmarks: {"softmax_kernel", "attention_kernel"},
    _doctor: set(),
}


def _cases(gpu: str) -> dict[str, tuple[str, Case]]:
    """Of each kernel's file a case, and the GPU that it is for: this one, or one that has the kernel where it has not.
    Those for GPUS are tried on every other, whose plans take other kernels."""
    found: dict[str, tuple[str, Case]] = {}
    for case in CASES.values():
        if gpu in case.gpus or case.gpus == GPUS:
            found.setdefault(case.file, (gpu, case))
    if gpu in GPUS:
        for case in CASES.values():
            if case.gpus != CDNA_5:  # which has a run of its own, where Triton knows it
                found.setdefault(case.file, (case.gpus[0], case))
    return found


def launch_all(gpu: str) -> None:
    """Raise AssertionError with what is launched without a word on FP fusion."""
    parse: Callable[..., Any] = HIPBackend.parse_options
    unsaid: list[str] = []

    def parse_said(backend: Any, options: dict[str, Any]) -> Any:
        if "enable_fp_fusion" not in options:
            unsaid.append("asked by Triton")
        return parse(backend, options)

    HIPBackend.parse_options = parse_said
    warnings.filterwarnings("error", message=VARIABLE)

    def launch(what: str, on: str, call: Callable[[], object]) -> set[str]:
        with laneloom.emulated(on) as emulation:
            try:
                call()
            except InvalidConfigError:  # a schedule that this GPU has not
                assert on not in GPUS, what
            except UserWarning as warning:
                unsaid.append(f"{what}: {warning}")
        return {record.kernel for record in emulation.launches}

    for file, (on, case) in _cases(gpu).items():
        launch(file, on, case.make())
    for call, kernels in OTHERS.items():
        missing = kernels - launch(call.__name__, gpu, lambda call=call: call(gpu))
        assert unsaid or not missing, missing
    assert not unsaid, "\n".join(unsaid)


def launch_somebody_elses(gpu: str) -> None:
    """Triton's own default, and its warning."""
    x, out = np.full((2, 32), 3, np.float32)
    launch: Any = scaled[(1,)]
    with laneloom.emulated(gpu), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        launch(ArrayArgument(x), ArrayArgument(out), 0.5, BLOCK=32)
    assert [warning.category for warning in seen if VARIABLE in str(warning.message)] == [UserWarning]


@triton.jit
def scaled(x_ptr, out_ptr, scale, BLOCK: tl.constexpr):
    """Somebody else's kernel."""
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) * scale + 1.0)
