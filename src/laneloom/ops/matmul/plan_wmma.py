"""The order in which RDNA's configs are tried for a problem. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...gpu import GPUS, Gpu
from ...isa.words import counted
from .config import MatmulConfig
from .config_fma import FmaConfig
from .config_wmma import CoopConfig, PingpongConfig, WideConfig, WmmaConfig, lds_element_bytes
from .problem import DTYPE_BYTES, MatmulProblem
from .tile_orders import footprint

CONFIGS: dict[str, type[MatmulConfig]] = {
    "wmma": WmmaConfig, "wmma_coop": CoopConfig, "wmma_pingpong": PingpongConfig,
    "wmma_wide": WideConfig, "fma": FmaConfig,
}  # fmt: skip

Tile = WmmaConfig | FmaConfig

#: Block tiles with their waves, and the share of the matrix units' rate that their LDS traffic is taken to allow: the
#: fewer rows and columns a wave has, the more often it reads each of them.
TILES = (
    (WmmaConfig(block_m=128, block_n=128, block_k=32), 1.0),
    (WmmaConfig(block_m=128, block_n=64, block_k=32), 0.85),
    (WmmaConfig(block_m=64, block_n=128, block_k=32), 0.85),
    (WmmaConfig(block_m=64, block_n=64, block_k=32), 0.65),
    (WmmaConfig(block_m=32, block_n=64, block_k=32, num_warps=2), 0.5),
    (WmmaConfig(block_m=64, block_n=32, block_k=32, num_warps=2, waves_n=1), 0.5),
    (WmmaConfig(block_m=32, block_n=32, block_k=32, num_warps=1, waves_n=1), 0.45),
)


#: Before the first of TILES, where an operand is contiguous along its rows: the same work, in wider stores to LDS.
TURNED = (WideConfig(block_m=128, block_n=128, block_k=32), 1.02)
#: For at most 16 rows or columns: one side is one matrix instruction wide, and the other operand streams past it.
SKINNY = (
    (WmmaConfig(block_m=16, block_n=128, block_k=64, waves_n=4), 0.3),
    (WmmaConfig(block_m=128, block_n=16, block_k=64, waves_n=1), 0.3),
    (WmmaConfig(block_m=16, block_n=32, block_k=64, num_warps=1, waves_n=1), 0.25),
    (WmmaConfig(block_m=32, block_n=16, block_k=64, num_warps=1, waves_n=1), 0.25),
)
SKINNY_SIDE = 16
#: For FP32 and FP64, whose rate is that of the multiply-adds.
FMA_TILES = {
    "fp32": (
        (FmaConfig(block_m=128, block_n=128, block_k=8), 1.0),
        (FmaConfig(block_m=64, block_n=128, block_k=8, num_warps=4), 0.8),
        (FmaConfig(block_m=64, block_n=64, block_k=8, num_warps=4), 0.6),
        (FmaConfig(block_m=32, block_n=32, block_k=8, num_warps=1), 0.45),
    ),
    "fp64": (
        (FmaConfig(block_m=64, block_n=64, block_k=4, num_warps=4), 1.0),
        (FmaConfig(block_m=32, block_n=32, block_k=4, num_warps=2), 0.9),
        (FmaConfig(block_m=16, block_n=32, block_k=4, num_warps=1), 0.8),
    ),
}
LDS_ROW_BYTES = 64  #: of a tile, whatever the dtype; of a skinny one twice as many
SPLITS = (1, 2, 4, 8, 16, 32, 64)  #: parts of K
LEAST_STEPS = 4  #: K-tiles of a part
STREAMS = (1, 2, 4)  #: programs of a compute unit that share the last round of tiles

# The model behind the order of candidates. Rough figures of what hides what: nothing here is measured.
STEP_S = 0.6e-6  #: a K-tile takes at least the latency of its loads, however many programs share a compute unit
EXTRA_STEPS = 3  #: K-tiles that a program's beginning and end cost
LAUNCH_S = 4e-6  #: what a second launch costs
MOST_FILL = 0.9  #: of rounds that stream-K is for: the timing model has it behind where they are fuller
DRAIN = 1.05  #: of stream-K, whose launches wait for each other's slowest workgroup
UNHIDDEN = 0.1  #: of what is hidden behind something longer
MOST_TOGETHER = 8  #: programs on a compute unit
#: dtype -> the peak that it runs at, where that is another's
RATES = {"uint8": "int8", "uint4": "int4", "bf8": "fp8"}


def tiles_for(problem: MatmulProblem, gpu: Gpu) -> list[tuple[Tile, float]]:
    """The tiles that the dtypes and sizes allow, with their shares."""
    if problem.dtype_a in FMA_TILES:
        return list(FMA_TILES[problem.dtype_a])
    block_k = LDS_ROW_BYTES // lds_element_bytes(problem, gpu)
    tiles: list[tuple[Tile, float]] = [(replace(config, block_k=block_k), share) for config, share in TILES]
    if DTYPE_BYTES[problem.dtype_a] == 2 and problem.layout != "nt":
        tiles.insert(0, TURNED)
    if min(problem.m, problem.n) <= SKINNY_SIDE:
        tiles += [(replace(config, block_k=k), share) for config, share in SKINNY for k in (2 * block_k, block_k, 32)]
    return tiles


def _with_splits(problem: MatmulProblem, config: Tile, gpu: Gpu) -> Iterator[Tile]:
    """The config, and where its tiles are few or fill their last round badly, K in parts for it."""
    yield config
    if type(config) is not WmmaConfig:
        return
    steps = -(-problem.k_stored // config.block_k)
    if _tiles(problem, config) < PROGRAMS_PER_UNIT * gpu.compute_units:
        yield from (replace(config, split_k=parts) for parts in SPLITS[1:] if parts * LEAST_STEPS <= steps)
    if _fill(problem, config, gpu) > MOST_FILL:
        return
    for each in STREAMS:
        shared = replace(config, stream_k=each)
        shares = shared.shares(problem, gpu)
        if each <= _room(problem, config, gpu) and shares.workers > shares.shared > 0:
            yield shared


def _fill(problem: MatmulProblem, config: MatmulConfig, gpu: Gpu) -> float:
    """Of the last round of tiles and those before it, where each workgroup processor has a tile at a time."""
    tiles, units = _tiles(problem, config), gpu.compute_units // 2
    return tiles / (-(-tiles // units) * units)


def _tiles(problem: MatmulProblem, config: MatmulConfig) -> int:
    return problem.batches * -(-problem.m // config.block_m) * -(-problem.n // config.block_n)


def peak_of(dtype: str, gpu: Gpu) -> float:
    """TFLOP/s or TOP/s of products of operands of a dtype; that of fp16 for those that become fp16 first."""
    peaks = gpu.peak_tflops or GPUS["gfx1150"].peak_tflops  # whose figures stand for those of a GPU without any
    return peaks.get(RATES.get(dtype, dtype), peaks["fp16"])


def _room(problem: MatmulProblem, config: Tile, gpu: Gpu) -> int:
    """Programs that a compute unit has LDS for."""
    room = gpu.lds_bytes // config.lds_bytes(problem, gpu) if isinstance(config, WmmaConfig) else 4
    return min(max(1, room), MOST_TOGETHER)


def predicted_seconds(problem: MatmulProblem, config: Tile, share: float, gpu: Gpu) -> float:
    """The model's time: the busiest compute unit's K-tiles, or what memory takes at least; and adding up parts of K."""
    peak = peak_of(problem.dtype_a, gpu) * 1e12 / gpu.compute_units * share
    flops = 2 * config.block_m * config.block_n * config.block_k * problem.k // problem.k_stored
    bandwidth = gpu.bandwidth_gbs * 1e9
    tiles, room = _tiles(problem, config), _room(problem, config, gpu)
    steps = -(-problem.k_stored // config.block_k)
    parts = config.parts(problem)
    if isinstance(config, WmmaConfig) and config.stream_k:
        shares = config.shares(problem, gpu)
        together = config.stream_k
        # a share may be two pieces, with a beginning and an end each
        rounds = shares.whole // (together * gpu.compute_units)
        longest = rounds * (steps + EXTRA_STEPS) + -(-shares.units // shares.workers) + 2 * EXTRA_STEPS
        multiplied = tiles * steps / gpu.compute_units
        moved = 8 * shares.programs * config.block_m * config.block_n
        # each launch waits for the last workgroup of the one before
        seconds = moved / bandwidth + LAUNCH_S * (2 if shares.whole else 1)
        longest *= DRAIN
    else:
        programs = -(-tiles * parts // gpu.compute_units)
        together = min(programs, room)
        longest = -(-programs // together) * (-(-steps // parts) + EXTRA_STEPS)
        multiplied = programs * (-(-steps // parts) + EXTRA_STEPS)
        moved = 8 * parts * problem.batches * problem.m * problem.n
        seconds = moved / bandwidth + LAUNCH_S if parts > 1 else 0.0
    busy = longest * max(together * flops / peak, STEP_S)
    memory = problem.bytes / bandwidth
    seconds += max(busy, memory) + UNHIDDEN * (min(busy, memory) + multiplied * flops / peak)
    return seconds


#: The orders that are tried after the usual one, and by how much less memory traffic one has to have: each is a kernel
#: of its own to compile.
OTHER_ORDERS = (("grouped", 4), ("grouped", 16), ("row", 8), ("column", 8))
LESS_TRAFFIC = 0.9
PROGRAMS_PER_UNIT = 2  #: workgroups that a compute unit is taken to run at a time


def operand_traffic(problem: MatmulProblem, config: MatmulConfig, order: str, group: int, gpu: Gpu) -> int:
    """Rows of A and columns of B that the programs which run at once need from memory, if each is fetched once."""
    tiles = -(-problem.m // config.block_m), -(-problem.n // config.block_n)
    rows, columns = footprint(order, *tiles, group, PROGRAMS_PER_UNIT * gpu.compute_units)
    return rows * config.block_m + columns * config.block_n


def with_best_order(problem: MatmulProblem, config: Tile, gpu: Gpu) -> Tile:
    """The config with the tile order that asks least of memory, if that is clearly less than what its own asks."""
    own = operand_traffic(problem, config, config.order, config.group_m, gpu)
    ranked = [(operand_traffic(problem, config, *other, gpu), other) for other in OTHER_ORDERS]
    least, (order, group) = min(ranked, key=lambda pair: pair[0])
    return replace(config, order=order, group_m=group) if least < LESS_TRAFFIC * own else config


def candidates(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """Tiles, and parts of K, in the order of the model's time; larger tiles first where it gives the same."""
    known = [
        (predicted_seconds(problem, split, share, gpu), split)
        for config, share in tiles_for(problem, gpu)
        for split in _with_splits(problem, config, gpu)
    ]
    ranked = sorted(known, key=lambda pair: pair[0])
    for place, (seconds, config) in enumerate(ranked):
        tiles = _tiles(problem, config)
        useful = problem.batches * problem.m * problem.n / (tiles * config.block_m * config.block_n)
        config = with_best_order(problem, config, gpu)
        parts = config.parts(problem)
        split = f", K in {parts} parts" if parts > 1 else ""
        if isinstance(config, WmmaConfig) and config.stream_k:
            split = f", the last {config.shares(problem, gpu).shared} shared by {config.shares(problem, gpu).workers}"
        yield (
            config,
            (
                f"rank {place + 1} of {len(ranked)} by predicted time, {seconds * 1e6:.0f} us: "
                f"{counted(tiles, 'tile')} of {config.block_m} x {config.block_n} on {gpu.compute_units} units, "
                f"{useful:.0%} of them in the product{split}; {config.order} order ({config.group_m})"
            ),
        )
