"""What every tier of the tests shares."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import sampled
from triton import knobs
from triton.runtime.cache import FileCacheManager

from laneloom.emulator import program

COMPILE_TIER = Path(__file__).parent / "compile"


class KernelCache(FileCacheManager):
    """Triton's cache without a folder for each file: to remove one takes 3 to 10 ms on some disks, 8 times a kernel.

    And without the text of MLIR's modules, 30 ms a kernel: no test reads it, and one that did would find no such file.
    """

    def put(self, data, filename, binary=True) -> str:
        if not isinstance(data, str | bytes):
            return ""
        path = os.path.join(self.cache_dir, filename)
        partial = f"{path}.{uuid.uuid4()}"
        with open(partial, "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
        os.replace(partial, path)  # nobody sees half a file
        return path

    def put_group(self, filename, group) -> str:
        for name in [name for name, path in group.items() if not path]:
            del group[name]
        return super().put_group(filename, group)


def pytest_configure(config: pytest.Config) -> None:
    """A Triton cache of this checkout's own.

    Triton keys its cache by source, not by file: another checkout's cache would bring that one's paths into messages.
    """
    cache = getattr(config, "cache", None)  # pytest -p no:cacheprovider has none
    if cache is None:
        checkout = crc32(str(config.rootpath).encode())
        os.environ["TRITON_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), f"laneloom-triton-{checkout:08x}")
    else:
        os.environ["TRITON_CACHE_DIR"] = str(cache.mkdir("triton"))
    knobs.cache.manager_class = KernelCache
    if "PYTEST_XDIST_WORKER" in os.environ:
        atexit.register(os._exit, 0)  # the last that is called: see pytest_unconfigure


def pytest_unconfigure() -> None:
    """xdist's workers end without five last looks for garbage and without taking their modules apart: after a whole run
    that takes longer than the ten seconds for which xdist waits. What was registered since they began is done."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """What is imported and collected stays: looking for garbage in between takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collectstart() -> None:
    """Not where xdist only hands out tests: that process needs no torch, and workers start when it is configured."""
    streams_without_a_driver()


@functools.cache
def streams_without_a_driver() -> None:
    """torch built for CUDA asks the driver for a stream; without a GPU, Hopper's kernels run on a CPU model, which has
    none. Before laneloom keeps the function."""
    with suppress(ImportError):
        import torch

        if hasattr(torch._C, "_cuda_getCurrentRawStream") and not torch.cuda.is_available():
            torch._C._cuda_getCurrentRawStream = lambda device: 0


@pytest.hookimpl(tryfirst=True)  # what is left out need not be put in order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The cases that the marks `turning` and `covering` leave, or those of each kernel once."""
    if sampled.EVERYTHING:
        return
    tests: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for name, cases in tests.items():
        kept = cases
        if sampled.KERNELS or COMPILE_TIER in cases[0].path.parents:
            of_dtypes = not sampled.KERNELS and cases[0].get_closest_marker("each_dtype") is not None
            axes = (*sampled.NAMING, *sampled.DTYPES) if of_dtypes else sampled.NAMING
            kept = [kept[n] for n in sampled.of_kernels(name, [case.callspec.params for case in kept], axes)]
        if (marker := cases[0].get_closest_marker("turning")) is not None:
            kept = [kept[n] for n in sampled.turning(name, [case.callspec.params for case in kept], *marker.args)]
        if (marker := cases[0].get_closest_marker("covering")) is not None:
            together = marker.kwargs.get("together", 1)
            kept = [kept[n] for n in sampled.covering([case.callspec.params for case in kept], together)]
        left_out |= set(cases).difference(kept)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules and tests stay for the whole run: walking them again and again takes a tenth of its processor time."""
    gc.freeze()  # with what little is garbage: to look for it takes most of a second
    gc.set_threshold(500_000, 20, 100)


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache of CodeObjects for the whole run and all its processes, so that no test reads or writes the user's."""
    former = os.environ.get("LANELOOM_CACHE_DIR")
    path = tmp_path_factory.getbasetemp()
    path = (path.parent if "PYTEST_XDIST_WORKER" in os.environ else path) / "laneloom-cache"
    os.environ["LANELOOM_CACHE_DIR"] = str(path)
    yield path
    if former is None:
        del os.environ["LANELOOM_CACHE_DIR"]
    else:
        os.environ["LANELOOM_CACHE_DIR"] = former


@pytest.fixture(scope="module", autouse=True)
def programs_of_this_file() -> Iterator[None]:
    """What another file emulated is not needed again, and millions of its objects make every search for tensors, and
    every collection, slower."""
    yield
    program._loaded.clear()


@pytest.fixture
def poisoned_allocations() -> Iterator[None]:
    """torch.empty is filled with NaN or the largest integer: an element that no kernel writes is wrong. Seeded."""
    torch = pytest.importorskip("torch")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(before)
