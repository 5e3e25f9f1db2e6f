"""The files that a product's time depends on: what its schedule runs on the GPU, followed from the schedule's module.

Followed are imports from `device` and from what kernels in CUDA C++ share, and names of CUDA C++ files. Modules that
only launch kernels are followed and do not count: what they decide is in a record's config, or shows on the host.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ..ops.matmul.config import SCHEDULES

PACKAGE = Path(__file__).parents[1]
KERNELS = PACKAGE / "ops/matmul/kernels"
_DEVICE = PACKAGE / "device"
_WRITERS = (PACKAGE / "codegen/wgmma.py",)  #: write the text of device functions
_SHARED = (*(PACKAGE / f"ops/matmul/{name}.py" for name in ("tma_operand", "parts_of_k")), *_WRITERS)
_DEVICE_FUNCTION = re.compile(r"^@(triton|gluon)\.jit\b", re.MULTILINE)


def _imports(path: Path, tree: ast.Module) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            module = path.parents[node.level - 1].joinpath(*node.module.split(".")).with_suffix(".py")
            if module in _SHARED or (module.parent == _DEVICE and module.exists()):
                yield module


def _cuda(path: Path, tree: ast.Module) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith((".cu", ".cuh")):
            yield from (file for file in (path.with_name(node.value), _DEVICE / node.value) if file.exists())


@lru_cache
def schedule_sources(schedule: str) -> tuple[Path, ...]:
    """The files of device code that a schedule's kernels are made of, by path; none of a schedule that is no more."""
    found: set[Path] = set()
    seen: set[Path] = set()
    ahead = [KERNELS / f"{schedule}.py"] if schedule in SCHEDULES else []
    while ahead:
        if (path := ahead.pop()) in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        found.update(_cuda(path, tree))
        if path in _WRITERS or _DEVICE_FUNCTION.search(text):
            found.add(path)
        ahead += _imports(path, tree)
    return tuple(sorted(found))


def config_sources(text: str | None) -> tuple[Path, ...]:
    """The sources of the schedule of a config's text; of every schedule on Hopper where a record does not say."""
    if text:
        return schedule_sources(text.partition(":")[0])
    hopper = (schedule_sources(name) for name in SCHEDULES if name.startswith("hopper"))
    return tuple(sorted({path for sources in hopper for path in sources}))
