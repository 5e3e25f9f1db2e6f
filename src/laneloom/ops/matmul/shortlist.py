"""The configs of a product on Hopper that are worth measuring: the model's shortest estimates, and one of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ...gpu import Gpu
from .config_cluster import ClusterConfig
from .config_hopper import HopperConfig, tma_reads
from .plan_cluster import cluster_configs
from .plan_hopper import STREAMED_ROWS, candidates, tiled
from .problem import MatmulProblem

MOST_RANKED = 600  #: estimates among which the shortest of every kind is looked for


def shortlist(
    problem: MatmulProblem, gpu: Gpu, most: int, *, gluon: bool = True
) -> Iterator[HopperConfig | ClusterConfig]:
    """The `most` shortest estimates of each schedule, and the shortest of hopper_cluster with every number of rows,
    transposed or not, and in every cluster; what else the plan thinks of. gluon: of schedule hopper as well."""
    if gluon:
        for config, _ in candidates(problem, gpu):
            if isinstance(config, HopperConfig) and config.why_invalid(problem, gpu) is None:
                yield config
                if config.swapped or config.block_n <= STREAMED_ROWS:
                    for stages, more in ((4, 2), (4, 3), (6, 2), (8, 2)):
                        yield config.with_knobs(stages=stages, programs=more * gpu.compute_units)
    for config, _ in sorted(tiled(problem, gpu), key=lambda pair: pair[1])[: most if gluon else 0]:
        if config.why_invalid(problem, gpu) is None:
            yield config
    if not (tma_reads(problem, "a") and tma_reads(problem, "b")):
        return
    kinds: set[tuple[int | bool, ...]] = set()
    for number, (config, _) in enumerate(islice(cluster_configs(problem, gpu), MOST_RANKED)):
        uneven = config.tiles_n > 0
        own = {
            (config.swapped, config.block_m, config.line, uneven),
            (config.cluster_m, config.cluster_n, config.cluster_k, uneven),
        }  # fmt: skip
        if number < most or own - kinds:
            yield config
        kinds |= own
