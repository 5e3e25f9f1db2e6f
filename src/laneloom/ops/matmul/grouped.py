"""`laneloom.grouped_matmul`: rows in groups, each against a matrix of its own, or K in groups, in one launch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ...gpu import Gpu
from ..scalars import shown
from ..target import active_gpu, check_ends_rise, gpu_for_arrays, gpu_for_tensor
from ..traced import loaded
from . import api
from .config import MatmulConfig, plan
from .config_cluster import ClusterConfig
from .config_hopper import TMA_BYTES
from .dtypes import check_arithmetic, outputs, words
from .execute import check_distinct, matrix_of_groups, overlap, pointer_to, schedule_of
from .gemm import check_block_dtypes, check_term
from .plan_groups import kind_of, plan_groups
from .presets import named_config
from .problem import DTYPE_BYTES, SCALE_BLOCK, BlockScales, Epilogue, MatmulProblem

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray

_ON_TENSORS = f"{__package__}.torch_grouped"  #: the module that has the operator


def grouped_matmul(
    a: Operand,
    b: Operand,
    ends: Operand,
    *,
    scale_a: Operand | None = None,
    scale_b: Operand | None = None,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    config: MatmulConfig | str | None = None,
) -> Any:
    """C[m, :] = A[m, :] B[g] for every row m of group g: those from ends[g - 1] (0 for the first) up to ends[g]. Where
    b has two axes K lies in groups: C[g] = sum over the k of group g of A[:, k] B[k, :], the gradient of the former b.

    a: [M, K]; b: [G, K, N], K of 1 at least, or [K, N]. Torch tensors on the GPU that Triton drives, or on the CPU
        inside `laneloom.emulated`; numpy arrays only there. On AMD: any strides, up to 1024 groups of rows; fp16, bf16,
        fp8, bf8 and 8-bit integers as `matmul` multiplies them, on CDNA fp32 as well, from CDNA 2 on fp64. On Hopper:
        fp16, bf16, or fp8 and bf8 in every pairing, read where they lie if pitches are whole 16 bytes: a of rows in
        groups and 8-bit operands along K (b as the transpose of [G, N, K]), others along either axis; else copied.
    ends: [G], int32, where a is, not decreasing (not checked on a GPU). It is read by the kernel alone: nothing waits
        for the GPU, and a CUDA graph may be replayed with other ends. Rows from ends[G - 1] on are not written; what is
        past M, or K, is ignored. A group without any k has zeros.
    scale_a, scale_b: fp32, any strides, both or neither, of rows in groups. [M] and [G, N]: C[m, n] is
        multiplied by scale_a[m] scale_b[g, n] before it is rounded. On Hopper, of 8-bit operands, also of blocks of 128
        along K, as `gemm` has them: [M, ceil(K / 128)], and [G, ceil(K / 128), N] or [G, ceil(K / 128), ceil(N / 128)].
    out: [M, N], or [G, M, N] of K in groups, where the result goes. It must share no memory with a, b and ends.
    out_dtype: torch's or numpy's dtype, as for `matmul`: fp32, fp16 or bf16 of halves and 8-bit floats, a's by default,
        fp32 for 8-bit ones.
    precision: None, or of rows in groups of fp8 and bf8 "promoted", as for `matmul`.
    config: what runs, a config or its text, of the schedule `wmma`, `mfma` or `dot` on AMD and `hopper_cluster` on
        Hopper; by default it is planned for groups about as large as each other.

    Products are exact and sums FP32, in an order that depends on the config alone; one rounding to out_dtype; integers,
    fp32 and fp64 as in `matmul`. The same call gives the same bits. Gradients of a and b, of any order, are grouped
    products too, of what has no scales and is not of 8 bits; rows of no group get zeros.

    Raises ArgumentError for operands that do not fit together, UnsupportedError for what the GPU has no schedule for.
    Source: Gale, Narayanan, Young, Zaharia, "MegaBlocks" (products of experts without padding).
    """
    named = named_config(config)
    if named is not None and not isinstance(named, MatmulConfig):
        raise ArgumentError(f"config: expected a config or its text, got {shown(config)}, which plans single products")
    config = named
    if isinstance(a, np.ndarray):
        return _grouped_arrays(a, b, ends, scale_a, scale_b, out, out_dtype, precision, config)
    if "torch" not in sys.modules:
        raise ArgumentError(f"a: expected a torch tensor or a numpy array, got {type(a).__name__}")
    import torch

    optional = (("out", out), ("scale_a", scale_a), ("scale_b", scale_b))
    given = (pair for pair in optional if pair[1] is not None)
    for name, operand in (("a", a), ("b", b), ("ends", ends), *given):
        if not isinstance(operand, torch.Tensor):
            raise ArgumentError(f"{name}: expected a torch tensor, got {type(operand).__name__}")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {shown(out_dtype)}")
    torch_grouped = loaded(_ON_TENSORS)
    if torch_grouped is None:
        from . import torch_grouped
    if precision is not None:
        check_precision("fp8", precision)  # which may be no word at all
    text = None if config is None else config.text
    if out is None:
        return torch_grouped.grouped_operator(a, b, ends, out_dtype, scale_a, scale_b, False, precision, text)
    check_tensor_out(a, b, ends, out, out_dtype)
    torch_grouped.grouped_out_operator(a, b, ends, out, scale_a, scale_b, precision, text)
    return out


def check_precision(dtype_a: str, precision: str | None) -> None:
    """Raise ArgumentError for what groups of `dtype_a` cannot be multiplied in."""
    if not (precision is None or (isinstance(precision, str) and precision in ("ieee", "promoted"))):
        raise ArgumentError(f"precision: expected None, 'ieee' or 'promoted', got {shown(precision)}")
    check_arithmetic(dtype_a, precision, None)


def _grouped_arrays(a, b, ends, scale_a, scale_b, out, out_dtype, precision, config) -> np.ndarray:
    optional = {"out": out, "scale_a": scale_a, "scale_b": scale_b}
    for name, operand in (("b", b), ("ends", ends), *optional.items()):
        if not isinstance(operand, np.ndarray) and (name not in optional or operand is not None):
            raise ArgumentError(f"{name}: expected a numpy array, as a is, got {type(operand).__name__}")
    gpu = gpu_for_arrays(a=a, b=b, ends=ends, **optional)
    check_shapes(a, b)
    check_scale_shapes(a, b, scale_a, scale_b)
    check_scales_on(gpu, scale_a)
    check_ends(b, ends, ends.dtype == np.int32 and ends.flags.c_contiguous)
    names = api.operand_dtypes(a, b, None)
    check_precision(names[0], precision)
    asked = out.dtype if out_dtype is None and out is not None else out_dtype
    has_scales = scale_a is not None
    wanted = api.output_dtype(a, names[0], asked, has_scales)
    names = (*names, check_output(names[0], api.dtype_name("out_dtype", wanted), has_scales))
    a, b, ends = (api.addressed(x) for x in (a, b, ends))
    if has_scales:
        for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
            check_term(name, api.known_name(scale.dtype), "")
        scale_a, scale_b = (np.ascontiguousarray(scale, np.float32) for scale in (scale_a, scale_b))
    shape = result_shape(a, b, ends)
    if out is None:
        out = np.empty(shape, wanted)
    api.check_array_out(out, shape, wanted)
    # Where a kernel cannot walk over it, rows of no group keep what is there.
    result = out if api.addressable(out) else out.astype(wanted, order="C")
    check_apart(result, a, b, ends, scale_a, scale_b)
    prepare_launch(a, b, result, names, config, scale_a, scale_b, precision)(a, b, result, ends, scale_a, scale_b)
    if result is not out:
        out[...] = result
    return out


def check_apart(out: Any, *operands: Any) -> None:
    """Raise ArgumentError for a result that shares memory with an operand, or whose elements share an address."""
    if any(operand is not None and overlap(out, operand) for operand in operands):
        raise ArgumentError("out: expected memory of its own, got some that it shares with another operand")
    check_distinct(out)


def check_tensor_out(a: Any, b: Any, ends: Any, out: Any, out_dtype: Any = None) -> None:
    """Raise ArgumentError for a tensor that the result, of `out_dtype` if that is given, cannot go into."""
    from ..operators import check_strided

    check_strided("out", out)
    check_shapes(a, b)
    shape, wanted = result_shape(a, b, ends), out_dtype or out.dtype
    if tuple(out.shape) != tuple(shape) or out.device != a.device or out.dtype != wanted:
        got = f"{list(out.shape)} of {out.dtype} on {out.device}"
        raise ArgumentError(f"out: expected {list(shape)} of {wanted} on {a.device}, got {got}")


def check_shapes(a: Any, b: Any) -> None:
    """Raise ArgumentError for a and b that are no rows and matrices for them, nor two matrices."""
    if a.ndim != 2 or b.ndim not in (2, 3) or a.shape[1] != b.shape[-2]:
        k = a.shape[1] if a.ndim == 2 else "K"
        got = f"{list(a.shape)}, {list(b.shape)}"
        raise ArgumentError(f"b: expected [G, {k}, N] or [{k}, N] for a of [M, K], got {got}")


def result_shape(a: Any, b: Any, ends: Any) -> tuple[int, ...]:
    """Of operands whose shapes are checked."""
    return (a.shape[0], b.shape[2]) if b.ndim == 3 else (ends.shape[0], a.shape[0], b.shape[1])


def check_ends(b: Any, ends: Any, are_numbers: bool) -> None:
    """Raise ArgumentError unless `ends` has a number for each matrix of b, or for any groups of K. are_numbers: it has
    contiguous int32."""
    if not are_numbers or ends.ndim != 1 or (b.ndim == 3 and ends.shape[0] != b.shape[0]):
        wanted = f"{b.shape[0]} contiguous" if b.ndim == 3 else "a contiguous list of"
        raise ArgumentError(f"ends: expected {wanted} int32, got {ends.dtype} of {list(ends.shape)}")


def check_devices(a: Any, b: Any, ends: Any) -> None:
    """Raise ArgumentError for tensors that are not all in one place."""
    for name, x in (("b", b), ("ends", ends)):
        if x.device != a.device:
            raise ArgumentError(f"{name}: expected a tensor on {a.device}, as a is, got one on {x.device}")


def check_scales(a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
    """Raise for tensors of scales that do not fit the operands."""
    from .torch_op import known_name

    check_scale_shapes(a, b, scale_a, scale_b)
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale is None:
            continue
        check_term(name, known_name(scale.dtype), "")
        if scale.device != a.device:
            raise ArgumentError(f"{name}: expected a tensor on {a.device}, as a is, got one on {scale.device}")


def check_scales_on(gpu: Gpu, scale_a: Any) -> None:
    """Raise UnsupportedError for scales of blocks that a GPU has no schedule for."""
    if scale_a is not None and scale_a.ndim == 2 and gpu.vendor == "amd":
        raise UnsupportedError(f"scale_a: scales of blocks in grouped products run on Hopper only, not {gpu.name}")


def check_scale_shapes(a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
    """Raise for scales that are neither of a's rows and the columns of b's matrices nor of their blocks along K."""
    if scale_a is scale_b is None:
        return
    if b.ndim == 2:
        raise UnsupportedError("scale_a: expected none, scales go with groups of rows, not of K")
    (m, k), (groups, _, n) = a.shape, b.shape
    known = {"scale_a": [(m,)], "scale_b": [(groups, n)]}
    if any(scale.ndim == dims for scale, dims in ((scale_a, 2), (scale_b, 3)) if scale is not None):
        blocks = -(-k // SCALE_BLOCK)
        known = {"scale_a": [(m, blocks)], "scale_b": [(groups, blocks, x) for x in (n, -(-n // SCALE_BLOCK))]}
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        shapes = " or ".join(str(list(shape)) for shape in known[name])
        if scale is None or tuple(scale.shape) not in known[name]:
            got = "none" if scale is None else list(scale.shape)
            raise ArgumentError(f"{name}: expected {shapes}, as both operands have scales or neither, got {got}")


def result_dtype(
    a: Any, b: Any, ends: Any, out_dtype: Any, scale_a: Any = None, scale_b: Any = None, precision: Any = None
) -> torch.dtype:  # fmt: skip
    """torch's dtype of the result. Checks the operands and it."""
    import torch

    from .torch_op import dtype_name, operand_dtypes, output_dtype

    check_shapes(a, b)
    check_scales(a, b, scale_a, scale_b)
    check_ends(b, ends, ends.dtype == torch.int32 and ends.is_contiguous())
    gpu = gpu_for_tensor("a", a)
    check_devices(a, b, ends)
    kind, _ = operand_dtypes(a, b, None)
    check_precision(kind, precision)
    if scale_a is not None and scale_a.ndim == 2:
        check_block_dtypes(kind)
    check_scales_on(gpu, scale_a)
    wanted = output_dtype(kind, out_dtype, scale_a is not None)
    check_output(kind, dtype_name("out_dtype", wanted), scale_a is not None)
    return wanted


def check_output(kind: str, name: str, has_scales: bool) -> str:
    """The word for a result's dtype, if products of `kind` are stored so. Raises UnsupportedError."""
    if name not in (known := outputs(kind, has_scales)):
        raise UnsupportedError(f"out_dtype: expected {words(known)}, got {name}")
    return name


def tensor_names(a: Any, b: Any, ends: Any, out: Any) -> tuple[str, str, str]:
    """The words for the dtypes of a, b and out. Raises ArgumentError for elements that lie between addresses."""
    from .torch_op import check_aligned, dtype_name

    check_aligned(a=a, b=b, ends=ends, out=out)
    return dtype_name("a", a.dtype), dtype_name("b", b.dtype), dtype_name("out", out.dtype)


def prepare_launch(
    a: Any, b: Any, out: Any, names: tuple[str, str, str], config: MatmulConfig | None = None, scale_a: Any = None,
    scale_b: Any = None, precision: str | None = None,
) -> Callable[..., None]:  # fmt: skip
    """What writes out for a, b, out, ends and scales that lie as these do, which are checked; names: of the dtypes."""
    from ...device.prepared import prepared_on

    if 0 in out.shape or (b.ndim == 3 and b.shape[0] == 0):
        return lambda *_: None
    if a.shape[1] == 0 and b.ndim == 2:
        return lambda a, b, out, *_: out.fill(0) if isinstance(out, np.ndarray) else out.zero_()
    if a.shape[1] == 0:
        raise ArgumentError("a: expected at least one column")
    gpu, of_k = active_gpu(), b.ndim == 2
    copy_a = copy_b = None
    if gpu.vendor != "amd":  # the copy engine's boxes begin at 16 bytes of what is contiguous, groups of rows anywhere
        eight_bits = DTYPE_BYTES[names[0]] == 1
        copy_a = copier(a, names[0], (-1, -2) if of_k and not eight_bits else (-1,))
        copy_b = copier(b, names[1], (-2,) if eight_bits else (-1, -2))
        a, b = copy_a(a) if copy_a else a, copy_b(b) if copy_b else b
    problem = problem_of_groups(a, b, out, names, scale_a, scale_b, precision)
    if gpu.family.startswith("RDNA") and names[0] in ("fp32", "fp64"):
        raise UnsupportedError(f"a: {gpu.name} multiplies groups of 16- and 8-bit numbers only, got {names[0]}")
    if config is None:
        chosen = plan(problem, gpu) if gpu.vendor == "amd" else plan_groups(problem, gpu)
    else:
        chosen = config.with_knobs(**kind_of(problem)) if isinstance(config, ClusterConfig) else config
    if (why := chosen.why_invalid(problem, gpu)) is not None:
        raise UnsupportedError(why)
    if gpu.vendor == "amd":

        def run(a: Any, b: Any, out: Any, ends: Any, scale_a: Any = None, scale_b: Any = None) -> None:
            check_ends_rise(ends)
            pointers = [pointer_to(x, name) for x, name in zip((a, b, out), names, strict=True)]
            if scale_a is not None:  # the kernels read them where they lie densely
                scales = (pointer_to(_dense(scale), "fp32") for scale in (scale_a, scale_b))
                pointers += [*[None] * 4, *scales]
            schedule_of(chosen).launch(problem, chosen, gpu, *pointers, ends=pointer_to(ends, "int32"))

        return run
    launch = prepared_on(schedule_of(chosen).prepare, problem, chosen, gpu, out.device)
    of_rows = problem.epilogue is not None

    def run_by_tma(a: Any, b: Any, out: Any, ends: Any, *scales: Any) -> None:
        a, b = copy_a(a) if copy_a else a, copy_b(b) if copy_b else b
        if of_rows:
            scales = tuple(_dense(scale) for scale in scales)
        launch(a, b, out, *[None] * 4, *(scales or (None, None)), ends)

    return run_by_tma


def copier(x: torch.Tensor, dtype: str, axes: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What copies matrices that lie as x, in rows of whole lines, contiguous along the first of `axes`; None if x is
    contiguous along one of them, and lies so that Hopper's copy engine reads it."""
    from ...device.pieces import MatrixCopy, PiecesLaunch

    size = x.element_size()
    for axis in axes:
        pitches = [x.stride(i) * size for i in range(x.ndim) if i != x.ndim + axis and x.shape[i] > 1]
        across = x.shape[-3 - axis] > 1 and x.stride(-3 - axis) == 0  # rows that are one
        if x.stride(axis) == 1 and not across and not any(p % TMA_BYTES for p in (*pitches, x.data_ptr())):
            return None
    turned = axes[0] == -2
    lies = x.mT if turned else x
    groups, steps = ((1, x.shape[0]), (0, x.stride(0))) if x.ndim == 3 else ((1, 1), (0, 0))
    (rows, columns), (row, column) = lies.shape[-2:], lies.stride()[-2:]
    launch = PiecesLaunch(MatrixCopy(dtype, 1, rows, columns, (row, column), groups, steps), pdl=True)

    def copy(x: torch.Tensor) -> torch.Tensor:
        (made,) = launch(x)
        made = made[..., :columns] if x.ndim == 3 else made[0, :, :columns]
        return made.mT if turned else made

    return copy


def _dense(scale: Any) -> Any:
    """Scales, or a copy of them, side by side; arrays are so already."""
    return scale if isinstance(scale, np.ndarray) else scale.contiguous()


def problem_of_groups(
    a: Any, b: Any, out: Any, names: tuple[str, str, str], scale_a: Any = None, scale_b: Any = None,
    precision: str | None = None,
) -> MatmulProblem:  # fmt: skip
    """The problem of rows in groups, or of K in groups."""
    (m, k), (*of_b, _, n) = a.shape, b.shape
    scales = epilogue = None
    if scale_a is not None and scale_a.ndim == 1:
        epilogue = Epilogue(scale_a="row", scale_b="column")
    elif scale_a is not None:
        scales = BlockScales(
            matrix_of_groups(scale_a), matrix_of_groups(scale_b), columns=1 if scale_b.shape[2] == n else SCALE_BLOCK
        )
    batch = (1, *of_b) if of_b else (1, out.shape[0])
    x, y, z = map(matrix_of_groups, (a, b, out))
    return MatmulProblem(
        m, n, k, *names, batch, x, y, z, epilogue, precision or "ieee", scales=scales, grouped=bool(of_b),
        k_grouped=not of_b)  # fmt: skip
