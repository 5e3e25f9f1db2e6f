"""`laneloom.transform3d`: what users call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import Transform3dConfig

if TYPE_CHECKING:
    import torch


def transform3d(
    coeffs: torch.Tensor,
    matrix: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    transpose: bool = False,
    accumulate: bool = False,
    config: Transform3dConfig | None = None,
) -> torch.Tensor:
    """R[..., a', b', c'] = sum over a, b, c of X[..., a, b, c] T0[a, a'] T1[b, b'] T2[c, c'].

    coeffs: X, [..., K, K, K] on a GPU, float64, float32, complex128 or complex64. Any number of tensors, 0 included; where
        a tensor [K, K, K] is not dense, or the batch axes do not flatten to one stride, X is copied first.
    matrix: T, [K, K] for all three axes or [3, K, K], with any strides; real, of coeffs' precision.
    out: where R goes, of coeffs' shape and dtype; it may overlap coeffs (the result is then made elsewhere and copied). It
        takes no part in autograd.
    transpose: T[a', a] in place of T[a, a'], which inverts the transform of an orthogonal T.
    accumulate: add R to what `out` holds.
    config: what runs; by default `plan` chooses: the fused kernel for every K up to 30 and 32 on Hopper, three batched
        products of torch otherwise.

    float64 is computed in float64. The fused kernel computes float32 in float64 too, and rounds after the second and the
    third contraction. The same call gives the same bits. Gradients of coeffs and matrix are transforms by the same
    operator; second derivatives work as well.

    Raises ArgumentError for operands that do not fit together or are not on a GPU, UnsupportedError for other dtypes or
    without the extra `cuda` where the fused kernel was planned, InvalidConfigError for a config that cannot do this.
    Source: Beylkin et al., "Multiresolution quantum chemistry"; the transform of MADNESS (mtxmq).
    """
    from .torch_op import transform_tensors

    text = None if config is None else config.text
    return transform_tensors(coeffs, matrix, out, transpose=transpose, accumulate=accumulate, config=text)
