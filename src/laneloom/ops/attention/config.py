"""What can be chosen for one attention: the schedules, their knobs, and `plan`, which chooses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from ...errors import InvalidConfigError, UnsupportedError
from ...gpu import MOST_PROGRAMS, Gpu
from .config_float8 import float8_candidates
from .plan_backward import backward_candidates
from .plan_forward import forward_candidates
from .problem import HALVES, AttentionProblem

Role = Literal["forward", "query", "key", "backward"]

_MAX_THREADS = (1 << 32) - 1  #: of a grid of AMD's
MAX_LENGTH = 1 << 30  #: queries and keys: sums of two positions and of a tile fit 32 bits
_D_RANGE, _D_STEP = (16, 512), 8


def padded(d: int, depth: int = 16) -> int:
    """The width of a tile that holds rows of d elements: the power of two from `depth` on."""
    return max(depth, 1 << (d - 1).bit_length())


def lds_room(gpu: Gpu) -> int:
    """Bytes of LDS that a program of the general schedules may take."""
    return gpu.lds_bytes if gpu.vendor == "amd" else 64 * 1024


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The general schedule (kernels/forward.py, kernels/backward.py), for AMD and, as a fallback, NVIDIA.

    A schedule with knobs of its own, such as Hopper's to come, subclasses this one and takes its place in `candidates`.
    """

    role: Role  #: "forward": O and LSE; "query": dQ; "key": dK and dV ("backward", all three, is Hopper's)
    rows: int  #: queries (of role "key": keys) of a program
    columns: int  #: keys (of role "key": queries) of a step
    out: int  #: columns of the result that a program sums; more programs share a row where it has more
    num_warps: int  #: waves, each with rows / num_warps rows
    prefetch: bool = False  #: forward: the next keys are loaded while the values are summed
    depth: int = 16  #: columns of a step, and of a tile's rows, that there are at least: an instruction's steps of K

    @property
    def schedule(self) -> str:
        """The kernel file's name."""
        return "forward" if self.role == "forward" else "backward"

    @property
    def text(self) -> str:
        """The config as one word: "forward:rows=64,..."."""
        knobs = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.name != "role"]
        return f"{self.role}:" + ",".join(knobs)

    def parts(self, problem: AttentionProblem) -> int:
        """Programs that share a block of rows."""
        width = {"forward": problem.d_v, "query": problem.d, "key": max(problem.d, problem.d_v)}[self.role]
        return -(-width // self.out)

    def programs(self, problem: AttentionProblem) -> int:
        """Workgroups: one for each head, block of rows, and part of the result's columns."""
        heads = problem.kv_heads if self.role == "key" else problem.heads
        rows = problem.keys if self.role == "key" else problem.queries
        return problem.batch * heads * -(-rows // self.rows) * self.parts(problem)

    def lds_bytes(self, problem: AttentionProblem) -> int:
        """Most LDS of a workgroup: the rows' tiles, and those of a step that are there together."""
        width, width_v = padded(problem.d, self.depth), padded(problem.d_v, self.depth)
        if self.role == "forward":
            elements = (self.rows + self.columns) * width + self.columns * self.out
        else:
            step = max(width, width_v, self.out)
            elements = self.rows * (width + width_v) + self.columns * step
        return max(elements, self.rows * self.out) * 2

    def why_invalid(self, problem: AttentionProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        float8 = problem.dtype == "fp8" and self.role == "forward" and gpu.vendor == "amd"
        if (problem.dtype not in HALVES and not float8) or problem.out_dtype not in HALVES:
            return f"q, k and v must be fp16 or bf16, got {problem.dtype}, O {problem.out_dtype}"
        if float8 and (problem.d % 16 or problem.d_v % 16):
            return f"head dimensions of 8-bit operands must be multiples of 16, got {problem.d} and {problem.d_v}"
        for name, d in (("D", problem.d), ("D of v", problem.d_v)):
            if not _D_RANGE[0] <= d <= _D_RANGE[1] or d % _D_STEP:
                return f"{name} must be a multiple of {_D_STEP} from {_D_RANGE[0]} to {_D_RANGE[1]}, got {d}"
        if max(problem.queries, problem.keys) >= MAX_LENGTH:
            return f"queries and keys must be fewer than {MAX_LENGTH}, got {problem.queries} and {problem.keys}"
        sizes = (self.rows, self.columns, self.out, self.num_warps)
        if any(n < 1 or n & (n - 1) for n in sizes) or min(sizes[:3]) < 16:
            return f"rows, columns and out must be powers of two from 16 on, num_warps one from 1 on, got {sizes}"
        if self.depth != gpu.matrix_depth or self.columns < self.depth:
            return (
                f"{gpu.name} multiplies {gpu.matrix_depth} steps at once, which depth must be and columns have, got "
                f"{self.depth} and {self.columns}"
            )
        if self.rows != 16 * self.num_warps:
            return f"each wave has 16 rows, got rows={self.rows} and num_warps={self.num_warps}"
        need = self.lds_bytes(problem)
        if need > lds_room(gpu):
            return f"the tiles need {need} bytes of LDS, a workgroup of {gpu.name} has {lds_room(gpu)}"
        most = min(MOST_PROGRAMS, _MAX_THREADS // (gpu.wave * self.num_warps))
        if self.programs(problem) > most:
            return f"one launch has at most {most} programs, this takes {self.programs(problem)}"
        return None


def candidates(problem: AttentionProblem, gpu: Gpu, role: Role) -> list[Any]:
    """Configs of one role, best first: on sm_90a Hopper's own schedule before the general one."""
    own: list[Any] = []
    if problem.dtype == "fp8" and gpu.vendor != "amd":
        return float8_candidates(problem) if role == "forward" else []
    if gpu.matrix_instructions == "wgmma":
        own = {"forward": forward_candidates, "backward": backward_candidates}.get(role, lambda _: [])(problem)
    own_lists = {"mfma": _cdna_candidates, "wmma3": _cdna5_candidates}
    general = own_lists.get(gpu.matrix_instructions, _general_candidates)
    return own if role == "backward" else [*own, *general(problem, gpu, role)]


def _cdna_candidates(problem: AttentionProblem, gpu: Gpu, role: Role) -> list[AttentionConfig]:
    """Best first: LDS decides. 512 registers a lane hold all columns of a row's sums (docs/attention.md counts)."""
    if role == "forward":
        out = padded(problem.d_v)
        if problem.queries <= 16:
            columns = 32 if max(padded(problem.d), out) <= 128 else 16
            return [AttentionConfig(role=role, rows=16, columns=columns, out=out, num_warps=1, prefetch=True)]
    else:
        out = min(256, padded(problem.d if role == "query" else max(problem.d, problem.d_v)))
    return [
        AttentionConfig(role=role, rows=rows, columns=columns, out=out, num_warps=rows // 16, prefetch=rows > 16)
        for rows, columns in ((64, 32), (32, 16), (16, 16))
    ]


def _cdna5_candidates(problem: AttentionProblem, gpu: Gpu, role: Role) -> list[AttentionConfig]:
    """As few columns of a step as an instruction takes: up to D = 128 few registers are above v255, which take an
    instruction each time that code turns to them (docs/attention.md counts)."""
    width = padded({"forward": problem.d_v, "query": problem.d, "key": max(problem.d, problem.d_v)}[role])
    out, rows = min(128 if role == "key" else 256, width), 64
    if (problem.keys if role == "key" else problem.queries) <= 16:
        rows = 16
    depth = gpu.matrix_depth
    shared = {"columns": depth, "depth": depth, "prefetch": True}
    return [AttentionConfig(role=role, rows=rows, out=out, num_warps=rows // 16, **shared)]


def _general_candidates(problem: AttentionProblem, gpu: Gpu, role: Role) -> list[AttentionConfig]:
    """Rows, columns and out are the largest whose sums and fragments fit 256 registers (docs/attention.md counts)."""
    width = max(padded(problem.d), padded(problem.d_v))
    widest_small, widest_middle = 128, 256
    if role == "forward":
        out = min(128, padded(problem.d_v))
        width = padded(problem.d)
        if width <= widest_small and problem.queries <= 16:
            return [AttentionConfig(role=role, rows=16, columns=16, out=min(64, out), num_warps=1, prefetch=True)]
        # RDNA 3's fragments lie in both halves of a wave, twice the registers.
        twice = gpu.wmma_version == 1
        if width <= widest_small:
            prefetch = not (twice and max(width, out) == widest_small)
            return [AttentionConfig(role=role, rows=64, columns=32, out=out, num_warps=4, prefetch=prefetch)]
        if width <= widest_middle:
            columns = 16 if twice else 32
            return [AttentionConfig(role=role, rows=64, columns=columns, out=out, num_warps=4, prefetch=True)]
        return [AttentionConfig(role=role, rows=32, columns=16, out=out, num_warps=2)]
    out = min(64, padded(problem.d if role == "query" else max(problem.d, problem.d_v)))
    if width <= widest_small:
        return [AttentionConfig(role=role, rows=64, columns=32, out=out, num_warps=4, prefetch=True)]
    if width <= widest_middle:
        return [AttentionConfig(role=role, rows=32, columns=16, out=out, num_warps=2, prefetch=True)]
    return [AttentionConfig(role=role, rows=16, columns=16, out=min(32, out), num_warps=1)]


def plan(problem: AttentionProblem, gpu: Gpu, role: Role = "forward") -> Any:
    """The config that `flash_attention` runs. Pure; raises UnsupportedError where there is none."""
    why = "there is no candidate"
    for config in candidates(problem, gpu, role):
        why = config.why_invalid(problem, gpu)
        if why is None:
            return config
    raise UnsupportedError(f"no attention schedule can do {problem.key} on {gpu.name}: {why}")


def plan_backward(problem: AttentionProblem, gpu: Gpu, *, deterministic: bool = False) -> list[Any]:
    """The launches of the backward, in their order: one of Hopper's, or the query role and then the key role.

    Hopper's adds up dQ in the order of the programs, so that it is not for `deterministic`.
    """
    if not deterministic:
        for config in candidates(problem, gpu, "backward"):
            if config.why_invalid(problem, gpu) is None:
                return [config]
    return [plan(problem, gpu, "query"), plan(problem, gpu, "key")]


def checked_config(problem: AttentionProblem, gpu: Gpu, role: Role, config: Any) -> Any:
    """`config` if it can do the problem, or what `plan` chooses. Raises InvalidConfigError, UnsupportedError."""
    if config is None:
        return plan(problem, gpu, role)
    why = config.why_invalid(problem, gpu)
    if why is None and config.role != role:
        why = f"it is of role {config.role}, not {role}"
    if why is not None:
        raise InvalidConfigError(f"config: {config.text} cannot do {problem.key} on {gpu.name}: {why}")
    return config
