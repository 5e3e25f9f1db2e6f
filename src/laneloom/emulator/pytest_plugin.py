"""The pytest plugin: `pytest --emulate gfx1151` runs a suite of Triton kernels as machine code of an absent GPU.

The emulator is Triton's active driver from collection to the end, and each test runs inside an `emulated` of its own.
Where torch is installed, tests that say device="cuda" run unchanged (`cuda_on_cpu`). Nothing happens without --emulate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import pytest

from ..errors import LaneloomError
from ..isa.words import counted


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options. `--strict` is pytest's own: beside --emulate it means --emulate-strict as well."""
    group = parser.getgroup("laneloom", "run Triton kernels without a GPU")
    group.addoption("--emulate", metavar="GPU", help="Run Triton kernels as code of this GPU, such as gfx1151.")
    group.addoption(
        "--emulate-strict", action="store_true",
        help="Stop at registers used before their wait, races, undefined values, broken barriers.",
    )  # fmt: skip
    group.addoption(
        "--emulate-seed", type=int, default=0, metavar="N", help="Run waves and workgroups in an order that N fixes."
    )
    group.addoption(
        "--emulate-bounds", choices=["view", "storage", "hardware"], default="view",
        help="Check accesses against the tensors that are passed, or against all of the storage behind them; hardware "
        "also lets loads past the end of LDS give 0 and drops stores.",
    )  # fmt: skip
    group.addoption(
        "--emulate-sums", choices=["hardware", "exact"], default="hardware",
        help="Matrix instructions add as was measured on silicon, or in float64, rounded once, which is faster.",
    )  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Turn the emulator on before any conftest.py is imported: many import a package that asks for its GPU."""
    _turn_on(early_config, early_config.known_args_namespace)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """As above, where a conftest.py named this plugin."""
    _turn_on(config, config.option)


def _turn_on(config: pytest.Config, option: Any) -> None:
    gpu, asked, seed = option.emulate, bool(option.emulate_strict), int(option.emulate_seed or 0)
    if gpu is None:
        if asked or seed:
            raise pytest.UsageError("--emulate-strict and --emulate-seed need --emulate GPU")
        return
    if "," in gpu:
        raise pytest.UsageError(f"--emulate takes one GPU, got {gpu}: run pytest once for each")
    if config.pluginmanager.has_plugin("laneloom-run"):
        return
    strict = asked or "--strict" in config.invocation_params.args
    try:
        how = {"strict": strict, "seed": seed, "bounds": option.emulate_bounds, "sums": option.emulate_sums}
        session = EmulatedSession(gpu, how)
    except LaneloomError as error:
        raise pytest.UsageError(f"--emulate: {error}") from None
    config.add_cleanup(session.close)
    config.pluginmanager.register(session, "laneloom-run")


class EmulatedSession:
    """One run of pytest under the emulator."""

    def __init__(self, gpu: str, how: dict[str, Any]):
        from ..gpu import get_gpu
        from .driver import emulated

        self.gpu, self.how = get_gpu(gpu), how
        self.kernels: set[str] = set()
        self.launches = self.instructions = 0
        self._stack = ExitStack()
        self._stack.enter_context(emulated(self.gpu, **how))
        if find_spec("torch"):
            from .cuda_on_cpu import cuda_on_cpu

            self._stack.enter_context(cuda_on_cpu(self.gpu))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Each test, its fixtures included, inside an `emulated` of its own."""
        from .driver import emulated

        with emulated(self.gpu, **self.how) as emulation:
            try:
                return (yield)
            finally:
                self.kernels |= {record.kernel for record in emulation.launches}
                self.launches += len(emulation.launches)
                self.instructions += emulation.instructions

    def pytest_report_header(self) -> str:
        """What the run emulates."""
        mode = ", strict" if self.how["strict"] else ""
        order = f", seed {self.how['seed']}" if self.how["seed"] else ""
        return f"laneloom: Triton kernels run as {self.gpu.name} ({self.gpu.family}) code on the CPU{mode}{order}"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker of pytest-xdist hands its counts to the controller."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["laneloom"] = [sorted(self.kernels), self.launches, self.instructions]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """The counts of a worker of pytest-xdist."""
        kernels, launches, instructions = getattr(node, "workeroutput", {}).get("laneloom", ((), 0, 0))
        self.kernels |= set(kernels)
        self.launches += launches
        self.instructions += instructions

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One line: what ran."""
        mode = " in strict mode" if self.how["strict"] else ""
        launches = "1 launch" if self.launches == 1 else f"{self.launches:,} launches"
        terminalreporter.write_line(
            f"laneloom: {self.gpu.name}: {launches} of {counted(len(self.kernels), 'kernel')}{mode}, "
            f"{counted(self.instructions, 'wave-instruction')}",
            yellow=self.launches == 0,
        )

    def close(self) -> None:
        """Put back what was active before."""
        self._stack.close()
