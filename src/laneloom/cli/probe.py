"""The kernel by which `laneloom doctor` sees whether compiling and emulating work."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled_sum(x_ptr, y_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    """out[i] = scale x[i] + y[i] for i < n."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, scale * x + y, mask=mask)
