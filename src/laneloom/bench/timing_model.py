"""The timing model against published figures: fit on half of them, tell the error of all.

    python -m laneloom.bench.timing_model --out results/predicted/timing.jsonl --page docs/timing-model.md

Sources of the figures: [S] Sebastien Vince, "Optimizing Matrix Multiplication on RDNA3" (2025): eight FP32 kernels at
4096^3 on an RX 7900 XTX. [W] glovepost/wmma_ops, README: kernels at 4096 x 4096 x 2048 and the adaptive one at four
sizes, FP16 to FP32 on gfx1151. What is predicted are laneloom's kernels of the same names, not those that were measured
there: they do the same by other machine code, and that difference is part of every error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .predicted import ProductSample, sample_matmul


@dataclass(frozen=True)
class Case:
    """One published figure."""

    source: str  #: "S" or "W"
    name: str
    gpu: str
    shape: tuple[int, int, int]
    dtype: str
    config: str
    published_us: float
    fitted: bool  #: whether the model's free parameters were chosen by it

    def sample(self) -> ProductSample:
        """What the emulator sees of it."""
        return sample_matmul(*self.shape, self.gpu, dtype=self.dtype, config=self.config)


_LADDER_MS = (136.006, 34.2059, 6.0341, 5.3772, 4.0994, 3.6368, 3.3314, 2.8032)
#: [W], milliseconds; matmul_adaptive is the standard kernel at this size
_VARIANTS_MS = {
    "zerocopy": 3.33, "asmOpt": 3.35, "standard": 3.36, "coop": 3.44, "native": 3.45, "kunroll": 3.75, "swizzled": 3.84,
    "noPrefetch": 3.90, "xor_optimized": 3.98, "quad": 4.04, "hilbert": 5.16, "highOcc": 6.68,
}  # fmt: skip
_SIZES_TFLOPS = {512: 12.5, 1024: 14.6, 2048: 20.0, 4096: 21.6}


def cases() -> tuple[Case, ...]:
    """Every figure; of each table, in its order, the first is fitted, the second not, and so on."""
    ladder = [
        Case("S", f"K{k}", "gfx1100", (4096, 4096, 4096), "fp32", f"sgemm_k{k}", 1000 * ms, k % 2 == 1)
        for k, ms in enumerate(_LADDER_MS, 1)
    ]
    variants = [
        Case("W", name, "gfx1151", (4096, 4096, 2048), "fp16", name, 1000 * ms, n % 2 == 0)
        for n, (name, ms) in enumerate(_VARIANTS_MS.items())
    ]
    sizes = [
        Case("W", f"adaptive {m}^3", "gfx1151", (m, m, m), "fp16", "adaptive", 2 * m**3 / tflops * 1e-6, n % 2 == 0)
        for n, (m, tflops) in enumerate(_SIZES_TFLOPS.items())
    ]
    return (*ladder, *variants, *sizes)


def errors(ratios: Sequence[float]) -> tuple[float, float]:
    """(median, worst) of |predicted / published - 1|."""
    off = [abs(r - 1) for r in ratios]
    return float(np.median(off)), max(off)
