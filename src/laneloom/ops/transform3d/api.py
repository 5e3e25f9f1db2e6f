"""`laneloom.transform3d`: what users call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ...errors import ArgumentError
from .config import Transform3dConfig, parse_config

if TYPE_CHECKING:
    import torch

_ON_TENSORS = f"{__package__}.torch_op"  #: the module that needs torch


def transform3d(
    coeffs: torch.Tensor,
    matrix: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    transpose: bool = False,
    accumulate: bool = False,
    config: Transform3dConfig | str | None = None,
) -> torch.Tensor:
    """R[..., a', b', c'] = sum over a, b, c of X[..., a, b, c] T0[a, a'] T1[b, b'] T2[c, c'].

    coeffs: X, [..., K, K, K], float64, float32, complex128 or complex64, on the GPU that Triton drives, or on the CPU
        inside `laneloom.emulated`. Any number of tensors, 0 included. X is copied first where a tensor [K, K, K] is not
        dense, or where the batch axes do not flatten to one stride.
    matrix: T, [K, K] for all three axes or [3, K, K], with any strides; of coeffs' dtype or, where that is complex, of
        its parts'.
    out: where R goes, of coeffs' shape and dtype; it may overlap coeffs (R is then made elsewhere and copied). It takes
        no part in autograd.
    transpose: T[a', a] in place of T[a, a'], never conjugated, which inverts the transform of an orthogonal T.
    accumulate: add R to what `out` holds.
    config: what runs, a config or its text; by default `plan` chooses: one fused kernel on Hopper (K up to 30, 32, most
        K up to 48), three passes elsewhere and for a complex matrix.

    float64 is computed in float64. The fused kernel computes float32 in float64 too, rounded after the second and the
    third contraction. A complex tensor takes two real transforms, or with a complex matrix products of four parts. The
    same call gives the same bits, and a tensor's result does not depend on the batch it is in. Gradients of coeffs and
    matrix are transforms by the same operator; second derivatives work as well.

    Raises ArgumentError for operands that do not fit together or are elsewhere, UnsupportedError for other dtypes and,
    on Hopper, without the extra `cuda`, InvalidConfigError for a config that cannot do this.
    Source: Beylkin et al., "Multiresolution quantum chemistry"; the transform of MADNESS (mtxmq).
    """
    torch_op = sys.modules.get(_ON_TENSORS)  # an import statement at each call takes a microsecond
    if torch_op is None:
        from . import torch_op
    if config is not None and not isinstance(config, Transform3dConfig):
        config = parse_config(config)
    for name, flag in (("transpose", transpose), ("accumulate", accumulate)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name}: expected True or False, got {flag!r}")
    text = None if config is None else config.text
    return torch_op.transform_tensors(coeffs, matrix, out, transpose=transpose, accumulate=accumulate, config=text)
