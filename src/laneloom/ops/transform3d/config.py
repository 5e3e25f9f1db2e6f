"""What can be chosen for one batch of transforms: the schedules, their knobs, and `plan`, which chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from typing import Any

from ...errors import ArgumentError, UnsupportedError
from ...gpu import Gpu
from ..config_words import config_text, read_when_traced
from ..scalars import shown
from .model_hopper import CTA_RESERVED_BYTES, SM_SHARED_BYTES
from .problem import Transform3dProblem

_MAX_WARPS = 32
MOST_CTAS = 8
_MAX_ROWS_K = 64
_MOST_ROWS = 4096  #: of a program; compilers take minutes over more
_MFMA_FP64_TRITON = (3, 9)
_WIDEST_CHAINED = 16  #: K, padded, of which a tensor fits in AMD's 64 KiB of LDS
_CHAINED_VALUES = 2048  #: of the tensors of one program, where they are small


@dataclass(frozen=True, kw_only=True)
class Transform3dConfig:
    """A schedule's name; each schedule's own class adds its knobs."""

    schedule: str

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The config as one word, which `parse_config` reads back: "fused:group=2,cluster=1,..."."""
        return config_text(self)


@dataclass(frozen=True, kw_only=True)
class FusedConfig(Transform3dConfig):
    """kernels/fused.py: CTAs hold whole tensors in shared memory and transform them in place."""

    schedule: str = "fused"
    group: int = 1  #: tensors of one CTA
    cluster: int = 1  #: CTAs that hold one tensor together
    warps: int  #: of one CTA
    ctas_per_sm: int = 1  #: at least so many CTAs share an SM: limits registers, and is checked against shared memory
    bulk: bool = True  #: bulk copies in; else plain loads, for any K and alignment
    matrix_in_registers: bool = True  #: in phase A; else it is read from shared memory at each use
    unroll: int = 2  #: column tiles of phase B that a warp has in flight
    as_flat: bool = False  #: the bits that `flat` gives: sums in its order, rounded where it rounds

    def planes(self, problem: Transform3dProblem) -> int:
        """Of a tensor, in a CTA; the last one of a cluster may have fewer."""
        return -(-problem.k // self.cluster)

    def shared_bytes(self, problem: Transform3dProblem) -> int:
        """Dynamic shared memory of one CTA: tensors, matrices padded to tiles of 8, a barrier."""
        padded = -(-problem.k // 8) * 8
        tensors = -(-self.group * self.planes(problem) * problem.k**2 * problem.element_bytes // 16) * 16
        return tensors + (1 if problem.same_matrix else 3) * padded * (padded + 2) * 8 + 8

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if gpu.name != "sm_90a":
            return f"the fused schedule is CUDA C++ for sm_90a, not for {gpu.name} ({gpu.family})"
        if problem.complex_matrix:
            return "the fused kernel multiplies by a real matrix: a complex one takes four real products, not two"
        if problem.alignment < problem.element_bytes and problem.parts == 2:
            return "a complex tensor must start at a multiple of its element's size"
        if self.bulk and not problem.vector_aligned:
            return "bulk copies need an even K, or planes of whole 16 bytes, and tensors at multiples of 16 bytes"
        if min(self.group, self.cluster, self.warps, self.ctas_per_sm, self.unroll) < 1:
            return "group, cluster, warps, ctas_per_sm and unroll must be at least 1"
        last = problem.k - (self.cluster - 1) * self.planes(problem)  # planes of the last CTA
        if self.cluster > 1 and (self.group != 1 or last < 1 or self.cluster > MOST_CTAS):
            return (
                f"a cluster of at most {MOST_CTAS} CTAs shares the K={problem.k} planes of one tensor, each has "
                f"some, got cluster={self.cluster} and group={self.group}"
            )
        if self.warps > _MAX_WARPS:
            return f"a CTA has at most {_MAX_WARPS} warps, got {self.warps}"
        what = f"{self.group} tensors of K={problem.k} over {self.cluster} CTAs"
        return why_no_room(what, self.shared_bytes(problem), self.ctas_per_sm, gpu)


def why_no_room(what: str, need: int, ctas_per_sm: int, gpu: Gpu) -> str | None:
    """Why so many CTAs with `need` bytes of shared memory for `what` do not fit on an SM, or None."""
    room = min(gpu.lds_bytes, SM_SHARED_BYTES // ctas_per_sm - CTA_RESERVED_BYTES)
    if need <= room:
        return None
    return f"{ctas_per_sm} CTAs per SM leave {room} bytes of shared memory to each, {what} need {need}"


@dataclass(frozen=True, kw_only=True)
class RowsConfig(Transform3dConfig):
    """kernels/rows.py: three passes of a Triton kernel, on every GPU and in the emulator."""

    schedule: str = "rows"
    rows: int = 64  #: of one program
    num_warps: int = 4
    dot: bool = False  #: by the matrix unit

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if not 1 <= self.rows <= _MOST_ROWS or self.rows & (self.rows - 1) or self.num_warps not in (1, 2, 4, 8):
            return (
                f"rows must be a power of two up to {_MOST_ROWS}, num_warps 1, 2, 4 or 8, "
                f"got {self.rows} and {self.num_warps}"
            )
        if problem.k > _MAX_ROWS_K:
            return f"a program keeps K outputs per row in registers, which ends at K={_MAX_ROWS_K}, got K={problem.k}"
        return why_no_mfma(problem, gpu) if self.dot else None


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << (value - 1).bit_length()


def why_no_mfma(problem: Transform3dProblem, gpu: Gpu) -> str | None:
    """Why an FP64 `tl.dot` does not become matrix instructions of `gpu`; None in FP32, and on RDNA, which has none."""
    from ...codegen.versions import parse_version, triton_version

    if not problem.double:
        return None
    if gpu.is_cdna_1:
        return f"{gpu.name} has no matrix instruction of FP64, which came with CDNA 2"
    if gpu.matrix_instructions == "mfma" and parse_version(triton_version()) < _MFMA_FP64_TRITON:
        return f"Triton {triton_version()} cannot compile FP64 matrix products for CDNA, 3.9 can"
    return None


@dataclass(frozen=True, kw_only=True)
class ChainedConfig(Transform3dConfig):
    """kernels/chained.py: one pass through device memory on AMD's GPUs, matrices in registers, axes padded."""

    schedule: str = "chained"
    group: int = 1  #: tensors of one program, a power of two
    num_warps: int = 4

    @classmethod
    def for_order(cls, k: int) -> ChainedConfig:
        """What keeps a thread's share of the tensors within its registers."""
        axis = next_power_of_two(k)
        return cls(group=max(1, _CHAINED_VALUES // axis**3), num_warps=8 if axis >= _WIDEST_CHAINED else 4)

    def padded(self, k: int) -> int:
        """Length of every axis in the kernel."""
        return next_power_of_two(k)

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if gpu.vendor != "amd":
            return f"the chained schedule is for AMD's GPUs, {gpu.name} ({gpu.family}) has schedule fused"
        if problem.parts == 2:
            return "the chained schedule takes real tensors, rows takes complex ones"
        if self.group < 1 or self.group & (self.group - 1) or self.num_warps not in (1, 2, 4, 8):
            return f"group must be a power of two, num_warps 1, 2, 4 or 8, got {self.group} and {self.num_warps}"
        need = self.group * self.padded(problem.k) ** 3 * problem.element_bytes
        if need > gpu.lds_bytes:
            return (
                f"a program turns its tensors through LDS: {self.group} of K={problem.k}, padded to "
                f"{self.padded(problem.k)}, take {need} bytes of {gpu.lds_bytes}"
            )
        # CDNA 1 multiplies FP64 as RDNA does, by multiply-adds.
        return None if gpu.is_cdna_1 else why_no_mfma(problem, gpu)


@dataclass(frozen=True, kw_only=True)
class MatmulsConfig(Transform3dConfig):
    """kernels/matmuls.py: three batched products of the vendor's library, each through device memory."""

    schedule: str = "matmuls"

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if gpu.vendor != "nvidia":
            return (
                f"the products of torch are measured on NVIDIA's GPUs only, {gpu.name} ({gpu.family}) has schedule rows"
            )
        return None


#: schedule, which is its kernel file's name -> module and name of its Config
SCHEDULES: Mapping[str, tuple[str, str]] = {
    "fused": ("config", "FusedConfig"),
    "flat": ("config_flat", "FlatConfig"),
    "fma": ("config_fma", "FmaConfig"),
    "rows": ("config", "RowsConfig"),
    "matmuls": ("config", "MatmulsConfig"),
    "chained": ("config", "ChainedConfig"),
    "levels": ("config_levels", "LevelsConfig"),
    "levels_amd": ("config_levels", "AmdLevelsConfig"),
    "cublasdx": ("config_levels", "CublasdxConfig"),
    "kronecker": ("config_levels", "KroneckerConfig"),
}

#: (dtype, K) -> the knobs that were fastest on one H200 at batches of 2 GB (docs/transform3d.md, 2026-11-20).
_FP64: Mapping[int, Mapping[str, Any]] = {
    16: {"warps": 8, "ctas_per_sm": 3, "unroll": 4},
    20: {"warps": 5, "ctas_per_sm": 3, "unroll": 1},
    24: {"warps": 8, "ctas_per_sm": 2, "unroll": 3},
    28: {"cluster": 2, "warps": 7, "ctas_per_sm": 2, "unroll": 1, "matrix_in_registers": False},
    30: {"warps": 8},
    32: {"cluster": 4, "warps": 4, "ctas_per_sm": 3, "matrix_in_registers": False},
    40: {"cluster": 8, "warps": 4, "unroll": 1, "matrix_in_registers": False},
}
_FP32: Mapping[int, Mapping[str, Any]] = {  # what `flat` leaves
    16: {"warps": 4, "ctas_per_sm": 5, "unroll": 1},
    32: {"cluster": 2, "warps": 4, "unroll": 1, "matrix_in_registers": False},
}
_COMPLEX128: Mapping[int, Mapping[str, Any]] = {
    16: {"warps": 8},
    20: {"cluster": 2, "warps": 5, "ctas_per_sm": 3, "unroll": 4},
    24: {"cluster": 2, "warps": 4, "ctas_per_sm": 2, "unroll": 4},
    32: {"cluster": 8, "warps": 4, "unroll": 1, "matrix_in_registers": False},
}
_MEASURED: Mapping[str, Mapping[int, Mapping[str, Any]]] = {
    "fp64": _FP64,
    "complex64": _FP64,  # not measured; a tensor has as many bytes
    "fp32": _FP32,
    "complex128": _COMPLEX128,
}
#: The same where there are too few tensors to fill the GPU many times (N = 2048).
_MEASURED_FEW: Mapping[tuple[str, int], Mapping[str, Any]] = {
    ("fp64", 20): {"warps": 8},
    ("complex64", 20): {"warps": 8},
    ("fp32", 16): {"warps": 8, "ctas_per_sm": 4, "unroll": 1},
}
FEW_TENSORS = 4096
_MAX_FUSED_K = 48  #: above, the accumulators of a plane exceed a thread's registers


def _knobs(problem: Transform3dProblem) -> dict[str, Any]:
    """Measured knobs of a CTA with one tensor, or those of the same kind for a K that was not measured."""
    from .plan_hopper import large_knobs

    k = problem.k
    large = large_knobs(problem)
    if large is not None:
        return large
    few = _MEASURED_FEW.get((problem.dtype, k))
    if problem.count <= FEW_TENSORS and few is not None:
        return dict(few)
    if k in _MEASURED[problem.dtype]:
        return dict(_MEASURED[problem.dtype][k])
    two_tiles, three_tiles, six_planes_each = 16, 24, 22
    if k <= two_tiles:
        return {"warps": 8, "ctas_per_sm": 3}
    # Above three tiles of 8 the accumulators of a plane leave no registers for the matrix.
    return {
        "warps": 6 if k < six_planes_each else 8,
        "ctas_per_sm": 2,
        "unroll": 1,
        "matrix_in_registers": k <= three_tiles,
    }


def _how(bulk: bool) -> str:
    """How tensors come to shared memory."""
    return "bulk copies" if bulk else "plain loads, since K or the alignment forbids bulk copies"


def candidates(problem: Transform3dProblem, gpu: Gpu) -> Iterator[tuple[Transform3dConfig, str]]:
    """Configs with the reason for their place, best first."""
    if gpu.vendor == "amd":
        axis = next_power_of_two(problem.k)
        by_matrix_unit = gpu.matrix_instructions == "mfma" and not (gpu.is_cdna_1 and problem.double)
        if axis == problem.k or by_matrix_unit:
            # On RDNA and CDNA 1 FP64 arithmetic is the bound, on CDNA 2 and later memory is: there padding is free.
            yield ChainedConfig.for_order(problem.k), "each tensor is read and written once"
        if by_matrix_unit:
            precision = "FP64" if problem.double else "FP32"
            yield RowsConfig(dot=True), f"three passes, {precision} products by the matrix unit"
        from .config_levels import AmdLevelsConfig

        # The timing model puts it before `rows`, whose threads share a row and load it more than once.
        yield AmdLevelsConfig(level=3), "three passes, a row of outputs per thread, the matrix in LDS"
        yield RowsConfig(), "three passes for any strides, dtype and accumulation"
        return
    from .config_flat import comes_first
    from .config_fma import fma_config
    from .plan_hopper import FUSED_UP_TO, few_config, flat_config, fused_config

    fma = fma_config(problem, gpu)
    if fma is not None:
        yield fma, f"FP32 multiply-adds without padding, each tensor read and written once ({_how(fma.bulk)})"
    flat = flat_config(problem, gpu) if comes_first(problem) else None
    knobs = _knobs(problem)
    copies = (True, False) if problem.k <= _MAX_FUSED_K else ()
    for bulk in copies:
        few = few_config(problem, bulk, knobs.get("unroll", FusedConfig.unroll), as_flat=flat is not None)
        if few is not None:
            yield few, f"CTAs of a cluster hold a tensor together, since there are few ({_how(bulk)})"
    if flat is not None:
        how = _how(flat.bulk)
        yield flat, f"each contraction one product of all lines, each tensor read and written once ({how})"
    most = knobs.pop("ctas_per_sm", 1)
    first_cluster = knobs.pop("cluster", 1)
    two_matrices_fit = 12
    if not problem.same_matrix and problem.k > two_matrices_fit:
        knobs["matrix_in_registers"] = False
    for bulk in copies:
        reason = f"one fused kernel reads and writes each tensor once ({_how(bulk)})"
        small = fused_config(problem, gpu, bulk) if problem.k <= FUSED_UP_TO else None
        if small is not None:
            yield small, reason
        for cluster in (first_cluster, *(c for c in range(1, MOST_CTAS + 1) if c != first_cluster)):
            for ctas in range(most, 0, -1):
                yield FusedConfig(cluster=cluster, ctas_per_sm=ctas, bulk=bulk, **knobs), reason
    yield MatmulsConfig(), "no fused kernel can hold this problem, three batched products can"


@dataclass(frozen=True)
class Plan:
    """The config that runs, why it came first, and what was passed over before it."""

    config: Transform3dConfig
    reason: str
    passed_over: tuple[tuple[Transform3dConfig, str], ...]


def plan_with_reasons(problem: Transform3dProblem, gpu: Gpu) -> Plan:
    """The first valid candidate, with the reasons. Pure; raises UnsupportedError where there is none."""
    passed_over: list[tuple[Transform3dConfig, str]] = []
    for config, reason in candidates(problem, gpu):
        why = config.why_invalid(problem, gpu)
        if why is None:
            return Plan(config, reason, tuple(passed_over))
        passed_over.append((config, why))
    raise UnsupportedError(f"no transform3d schedule can do {problem.key} on {gpu.name}: {passed_over[-1][1]}")


def plan(problem: Transform3dProblem, gpu: Gpu) -> Transform3dConfig:
    """The config that `transform3d` runs when none is given. Pure; raises UnsupportedError."""
    return plan_with_reasons(problem, gpu).config


@read_when_traced
def parse_config(text: Any) -> Transform3dConfig:
    """The config whose `text` this is; knobs that are left out take their defaults.

    Raises ArgumentError for an unknown schedule or knob, a missing knob, or a value of another type.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"config: expected a config or its text, got {shown(text)}")
    schedule, _, rest = text.partition(":")
    if schedule not in SCHEDULES:
        raise ArgumentError(f"config: unknown schedule {schedule!r}, the known ones are {', '.join(SCHEDULES)}")
    module, name_of_kind = SCHEDULES[schedule]
    kind = getattr(import_module(f".{module}", __package__), name_of_kind)
    types = {f.name: str(f.type) for f in fields(kind) if f.name != "schedule"}
    knobs: dict[str, Any] = {}
    for word in filter(None, rest.split(",")):
        name, _, value = word.partition("=")
        if name not in types:
            raise ArgumentError(f"config: unknown knob {name!r} of {schedule}, the knobs are {', '.join(types)}")
        if types[name] == "int" and value.isdecimal():
            knobs[name] = int(value)
        elif types[name] == "bool" and value in ("True", "False"):
            knobs[name] = value == "True"
        else:
            raise ArgumentError(f"config: knob {name} must be of type {types[name]}, got {value!r}")
    for f in fields(kind):
        if f.name in types and f.name not in knobs and f.default is MISSING:
            raise ArgumentError(f"config: {schedule} needs its knob {f.name}, such as {schedule}:{f.name}=4")
    return kind(**knobs)
