"""A launch's profile as facts: sums, what dominates, the listing with its counts. Text, JSON and page show these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..isa.analysis import Loop, hot_loop
from ..isa.listing import Kind
from ..isa.words import counted

if TYPE_CHECKING:
    from ..emulator.counters import InstructionProfile, Profile
    from ..emulator.launch import LaunchRecord
    from .product import Product

LDS = (Kind.LDS_LOAD, Kind.LDS_STORE, Kind.LDS_OTHER)
_COUNTS = (
    "executed", "idle_lanes", "requested_bytes", "transactions", "lines", "lds_clocks", "conflicts", "matrix_flops",
    "vector_flops",
)  # fmt: skip


def facts(product: Product, record: LaunchRecord) -> dict[str, Any]:
    """Everything that a profile says of one launch, as JSON can hold it; counts of 0 are left out of the listing."""
    profile = profile_of(record)
    hot = hot_loop(record.asm, record.kernel)
    executed = max(profile.total("executed"), 1)
    inside = [ins for ins in profile.instructions if is_inside(ins, hot)]
    return {
        "kernel": record.kernel,
        "grid": list(record.grid),
        "workgroup_size": record.workgroup_size,
        "executed": profile.total("executed"),
        "kinds": {str(kind): count for kind, count in profile.kinds.items()},
        "hot_loop": None if hot is None else {
            "label": hot.label, "lines": list(hot.lines),
            "executed_share": sum(ins.executed for ins in inside) / executed,
        },
        "matrix_flops": profile.total("matrix_flops"),
        "vector_flops": profile.total("vector_flops"),
        "lds": {
            "clocks": profile.total("lds_clocks"), "conflict_clocks": profile.conflicts,
            "bytes": profile.total("requested_bytes", LDS),
        },
        "global": {
            "requested_bytes": profile.requested_bytes, "transactions": profile.transactions,
            "footprint_bytes": profile.footprint_bytes, "floor_bytes": product.problem().bytes,
            "coalescing": profile.coalescing,
        },
        "intensity": profile.intensity,
        "balance": balance(product),
        "idle_lane_share": profile.idle_share,
        "splits": profile.splits,
        "source_lines": [{"source": source, "executed": count} for source, count in source_lines(profile)],
        "instructions": [
            {"line": ins.line, "text": ins.text, "kind": str(ins.kind), "source": ins.source}
            | {name: getattr(ins, name) for name in _COUNTS if getattr(ins, name)}
            for ins in profile.instructions
        ],
    }  # fmt: skip


def profile_of(record: LaunchRecord) -> Profile:
    """The profile of a launch that was made with profile=True."""
    assert record.profile is not None
    return record.profile


def is_inside(ins: InstructionProfile, loop: Loop | None) -> bool:
    """Whether an instruction belongs to the loop."""
    return loop is not None and loop.lines[0] <= ins.line <= loop.lines[1]


def balance(product: Product) -> float | None:
    """FLOP per byte above which the GPU's peak and not its memory limits a product: both from the GPU table."""
    peak = product.gpu.peak_tflops.get(product.dtype)
    return peak * 1000 / product.gpu.bandwidth_gbs if peak else None


def source_lines(profile: Profile) -> list[tuple[str, int]]:
    """Python lines by the wave-instructions that came of them, most first."""
    sums: dict[str, int] = {}
    for ins in profile.instructions:
        name = ins.source or "no line"
        sums[name] = sums.get(name, 0) + ins.executed
    return sorted(((name, count) for name, count in sums.items() if count), key=lambda item: -item[1])


def conclusions(product: Product, record: LaunchRecord) -> list[tuple[str, str]]:
    """What the counts say, as (topic, sentence). None of it is a time."""
    profile = profile_of(record)
    executed = profile.total("executed")
    said = [("Executed", _executed_sentence(profile, executed))]
    hot = hot_loop(record.asm, record.kernel)
    if hot is not None and executed:
        share = sum(ins.executed for ins in profile.instructions if is_inside(ins, hot)) / executed
        said.append(("Hot loop", f"{hot.label}, lines {hot.lines[0]} to {hot.lines[1]}: {share:.0%} of all executed"))
    matrix = profile.kinds.get(Kind.MATRIX, 0)
    flops = profile.total("matrix_flops")
    if matrix:
        beside = (executed - matrix) / matrix
        wasted = flops / product.problem().flops - 1
        more = f", {wasted:.0%} more than the product needs (tiles stand over its edges)" if wasted > 0.005 else ""
        said.append(
            (
                "Arithmetic",
                f"{_si(flops, 'FLOP')} in {counted(matrix, 'matrix instruction')}{more}; {beside:.1f} others for each",
            )
        )
    if profile.total("lds_clocks"):
        said.append(("LDS", _lds_sentence(profile)))
    if profile.transactions:
        said.append(("Memory", _memory_sentence(product, profile)))
        said.append(("Intensity", _intensity_sentence(product, profile)))
    split = f"; waves parted {counted(profile.splits, 'time')}" if profile.splits else "; waves never parted"
    said.append(("Divergence", f"{profile.idle_share:.1%} of vector lanes idle{split}"))
    return said


def _executed_sentence(profile: Profile, executed: int) -> str:
    if not executed:
        return "nothing"
    parts = [f"{kind} {count / executed:.0%}" for kind, count in list(profile.kinds.items())[:5]]
    return f"{counted(executed, 'wave-instruction')}: {', '.join(parts)}"


def _lds_sentence(profile: Profile) -> str:
    clocks, extra = profile.total("lds_clocks"), profile.conflicts
    moved = _bytes(profile.total("requested_bytes", LDS))
    if not extra:
        return f"{moved} in {clocks:,} bank clocks, no bank conflicts"
    worst = max(profile.instructions, key=lambda ins: ins.conflicts)
    return (
        f"{moved} in {clocks:,} bank clocks and {extra:,} more by bank conflicts (+{extra / clocks:.0%}); "
        f"the most at line {worst.line}: {worst.text}"
    )


def _memory_sentence(product: Product, profile: Profile) -> str:
    floor = product.problem().bytes
    used = f", {profile.coalescing:.0%} of their bytes wanted" if profile.coalescing is not None else ""
    return (
        f"lanes ask for {_bytes(profile.requested_bytes)}, {profile.requested_bytes / floor:.1f} x the operands' "
        f"{_bytes(floor)}, in {counted(profile.transactions, 'line')} of 128 bytes{used}; "
        f"{_bytes(profile.footprint_bytes)} of different lines"
    )


def _intensity_sentence(product: Product, profile: Profile) -> str:
    found, ridge = profile.intensity or 0.0, balance(product)
    text = f"{found:.0f} FLOP per byte, were each line moved once"
    if ridge is None:
        return text
    limit = "arithmetic" if found > ridge else "memory"
    return f"{text}; {product.gpu.product} balances at {ridge:.0f} (GPU table), so {limit} is its limit at best"


def _bytes(n: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def _si(n: float, unit: str) -> str:
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if n >= size:
            return f"{n / size:.1f} {prefix}{unit}"
    return f"{n:.0f} {unit}"


def note(ins: InstructionProfile, lanes: int) -> str:
    """What stands beside an instruction: lines of memory, LDS conflicts, idle lanes, each per wave that executed it."""
    if not ins.executed:
        return ""
    parts: list[str] = []
    if ins.hits_global and ins.transactions:
        parts.append(counted(float(f"{ins.transactions / ins.executed:.3g}"), "line"))
    if ins.kind in LDS and ins.lds_clocks:
        parts.append(f"{ins.lds_clocks / ins.executed:.3g} clk")
        if ins.conflicts:
            parts.append(f"+{ins.conflicts / ins.executed:.3g} conflict")
    if ins.idle_lanes:
        parts.append(f"{ins.idle_lanes / (ins.executed * lanes):.0%} idle")
    return ", ".join(parts)


def costliest_global(profile: Profile, most: int) -> list[InstructionProfile]:
    """The accesses of global memory that want most lines."""
    rows = [ins for ins in profile.instructions if ins.hits_global and ins.transactions]
    return sorted(rows, key=lambda ins: -ins.transactions)[:most]


def costliest_lds(profile: Profile, most: int) -> list[InstructionProfile]:
    """The accesses of LDS that take most clocks, those with bank conflicts first."""
    rows = [ins for ins in profile.instructions if ins.lds_clocks]
    return sorted(rows, key=lambda ins: (-ins.conflicts, -ins.lds_clocks))[:most]
