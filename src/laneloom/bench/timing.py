"""Timing on an NVIDIA or AMD GPU through torch: interleaved CUDA-graph replays with rotated order and inputs.

A fixed order flatters whoever runs after the reference, and one input set that fits the L2 measures the
cache. So every candidate is captured once into a graph that walks all input sets, and each round replays all
graphs in an order rotated by one. The ratio to the reference is taken per round, where both saw the same
clocks, and its median is reported.

Sustained time (`interleave`) is the average over a graph of back-to-back launches. A GPU that comes from a
pause runs above its power limit for some 50 ms, until its clock is taken down (`bench/clocks.py` shows it), so
rounds are counted only after WARMUP_S of them. Single-launch time (`single_launch`) is that of one launch on an
idle GPU whose L2 holds other data; events and the graph's launch are inside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from .records import METHOD_SINGLE as METHOD_SINGLE
from .records import METHOD_SUSTAINED as METHOD_SUSTAINED
from .records import WARMUP_S

NOISY_FRACTION = 0.05  #: an interquartile range above this share of the median is called noisy
WARMUP_ROUNDS = 2  #: at least
GRAPH_US = 1000.0  #: a graph that takes less repeats its launches

Launch = Callable[[int], object]  #: launches the work on input set i, asynchronously


@dataclass(frozen=True)
class Timing:
    """What one candidate took, per launch."""

    median_us: float
    iqr_us: float
    ratio_to_reference: float  #: median over rounds of the reference's time / this one's; above 1 is faster
    noisy: bool

    @staticmethod
    def from_samples(samples_us: list[float], reference_us: list[float]) -> Timing:
        """Median and interquartile range of `samples_us`, with the ratio taken round by round."""
        median = statistics.median(samples_us)
        quartiles = statistics.quantiles(samples_us, n=4) if len(samples_us) > 1 else [median] * 3
        iqr = quartiles[2] - quartiles[0]
        ratio = statistics.median(r / s for r, s in zip(reference_us, samples_us, strict=True))
        return Timing(median, iqr, ratio, iqr > NOISY_FRACTION * median)


def count_sets(bytes_per_set: int, *, factor: float = 2.0, limit: int = 256) -> int:
    """Input sets to rotate through so that together they exceed the L2 by `factor`, at most `limit`, at least
    1."""
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return max(1, min(limit, -(-int(factor * l2_bytes) // max(bytes_per_set, 1))))


def _capture(launch: Launch, n_sets: int, repeats: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for i in range(n_sets):
                launch(i)
    return graph


def _relaunch(launch: Launch, i: int, _: int) -> None:
    launch(i)


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end)


def capture(
    candidates: Mapping[str, Launch],
    n_sets: int,
    graph_us: float = GRAPH_US,
    on_failure: Callable[[str, Exception], None] | None = None,
) -> dict[str, tuple[torch.cuda.CUDAGraph, int]]:
    """Warm each candidate (nothing may compile inside a capture) and capture it: name -> (graph, launches in
    it)."""
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}
    for name, launch in candidates.items():
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for i in range(min(n_sets, 2)):
                    launch(i)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            graph, repeats = _capture(launch, n_sets, 1), 1
            _replay_us(graph)
            once_us = _replay_us(graph)
            if once_us < graph_us:
                # Events resolve half a microsecond: a graph has to run far longer than that.
                repeats = min(-(-int(graph_us) // max(int(once_us), 1)), max(1, 2048 // n_sets))
                graph = _capture(launch, n_sets, repeats)
            graphs[name] = graph, n_sets * repeats
        except Exception as error:
            if on_failure is None:
                raise
            on_failure(name, error)
    return graphs


def replay_round(graphs: Mapping[str, tuple[torch.cuda.CUDAGraph, int]], number: int) -> dict[str, float]:
    """Microseconds of one launch of each candidate, all graphs replayed once, the first of them by the round's
    number."""
    names = list(graphs)
    shift = number % len(names)
    events = {}
    for name in names[shift:] + names[:shift]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graphs[name][0].replay()
        end.record()
        events[name] = start, end
    torch.cuda.synchronize()
    return {name: 1000 * start.elapsed_time(end) / graphs[name][1] for name, (start, end) in events.items()}


def interleave(
    candidates: Mapping[str, Launch],
    n_sets: int,
    *,
    reference: str | None = None,
    rounds: int = 15,
    warmup_s: float = WARMUP_S,
    graph_us: float = GRAPH_US,
    on_failure: Callable[[str, Exception], None] | None = None,
) -> dict[str, Timing]:
    """Sustained time of each candidate: name -> Timing per launch.

    `candidates[name](i)` launches that candidate on input set `i` of `n_sets`. `reference` defaults to the
    first name. Rounds do not count until `warmup_s` seconds of them have passed, at least two. Graphs shorter than
    `graph_us` repeat their launches. A candidate that raises while it is warmed or captured ends the call, or, with
    `on_failure`, is reported there and left out. Raises KeyError when the reference itself was left out.
    """
    reference = next(iter(candidates)) if reference is None else reference
    graphs = capture(candidates, n_sets, graph_us, on_failure)
    if reference not in graphs:
        raise KeyError(reference)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    number, began = 0, time.perf_counter()
    while number < WARMUP_ROUNDS or time.perf_counter() - began < warmup_s:
        replay_round(graphs, number)
        number += 1
    for later in range(number, number + rounds):
        for name, us in replay_round(graphs, later).items():
            samples[name].append(us)
    return {name: Timing.from_samples(samples[name], samples[reference]) for name in graphs}


def single_launch(
    candidates: Mapping[str, Launch], n_sets: int, *, reference: str | None = None, rounds: int = 15
) -> dict[str, Timing]:
    """Time of one launch on an idle GPU, the L2 overwritten before each: name -> Timing."""
    reference = next(iter(candidates)) if reference is None else reference
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    graphs = {}
    for name, launch in candidates.items():
        launch(0)
        torch.cuda.synchronize()
        graphs[name] = [_capture(partial(_relaunch, launch, i), 1, 1) for i in range(min(n_sets, 4))]
    for r in range(rounds):
        shift = r % len(names)
        for name in names[shift:] + names[:shift]:
            flush.fill_(r)
            torch.cuda.synchronize()
            samples[name].append(_replay_us(graphs[name][r % len(graphs[name])]))
    return {name: Timing.from_samples(samples[name], samples[reference]) for name in names}


def host_us(launch: Launch, *, calls: int = 200, rounds: int = 7) -> float:
    """Host time of one warm call, in microseconds: the median over rounds of `calls` calls without a
    synchronisation.

    The queue is drained between rounds, and a round is kept short enough that the GPU never holds the host
    back; give it a problem whose kernel is shorter than its launch.
    """
    launch(0)
    torch.cuda.synchronize()
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            launch(0)
        samples.append(1e6 * (time.perf_counter() - start) / calls)
        torch.cuda.synchronize()
    return statistics.median(samples)
