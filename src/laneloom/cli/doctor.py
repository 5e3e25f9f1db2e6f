"""`laneloom doctor`: what this machine has and what it can run; every line is tried, not assumed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from .. import __version__
from ..errors import EmulationError, LaneloomError, UnsupportedError
from ..gpu import GPUS
from ..isa.words import counted
from .product import AsJson
from .terminal import new_console, print_json

OK, ABSENT, BROKEN = "ok", "absent", "broken"
_STYLES = {OK: ("ok", "green"), ABSENT: ("--", "dim"), BROKEN: ("BROKEN", "bold red")}
_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_EMULATED_FOR_CHECK = ("gfx1151", "gfx1201")  # one of each generation that the emulator knows


@dataclass
class Finding:
    """One line of the report. `absent` is no fault: it says what this machine does without."""

    section: str
    name: str
    status: str
    detail: str
    facts: dict[str, Any] = field(default_factory=dict)  #: the same for programs


def doctor(as_json: AsJson = False) -> None:
    """Report what this machine has and can run.

    Exit 1, with the reasons, when something is broken.
    """
    console = new_console(stderr=as_json)
    findings: list[Finding] = []
    spinner = console.status("Looking") if console.is_terminal else None
    if spinner is not None:
        spinner.start()
    try:
        for finding in examine():
            findings.append(finding)
            if spinner is not None:
                spinner.update(f"{finding.section} {finding.name}: {finding.status}")
    finally:
        if spinner is not None:
            spinner.stop()
    broken = [f for f in findings if f.status == BROKEN]
    if as_json:
        print_json({"ok": not broken, "laneloom": __version__, "findings": [asdict(f) for f in findings]})
    else:
        _show(findings, broken)
    if broken:
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Every finding, in the report's order."""
    yield from _software()
    yield from _present_gpus()
    if find_spec("triton") is not None and not _interpreting():
        with _private_caches():
            for name in GPUS:
                yield _compiled(name)
            for name in _EMULATED_FOR_CHECK:
                yield _tried("emulate", name, lambda name=name: _emulate_probe(name))
        yield _tried("cache", "laneloom", _code_cache)
        yield _tried("cache", "triton", _triton_cache)


def _tried(section: str, name: str, check: Callable[[], tuple[str, dict[str, Any]]]) -> Finding:
    """The finding of `check`, which gives detail and facts; whatever it raises is what is broken."""
    try:
        detail, facts = check()
    except LaneloomError as error:
        return Finding(section, name, BROKEN, str(error))
    except Exception as error:  # a doctor reports every failure, foreseen or not
        return Finding(section, name, BROKEN, f"{type(error).__name__}: {error}")
    return Finding(section, name, OK, detail, facts)


def _software() -> Iterator[Finding]:
    cores = os.cpu_count() or 1
    version = platform.python_version()
    python = OK if sys.version_info >= (3, 11) else BROKEN
    wanted = "" if python == OK else "; laneloom needs 3.11 or newer"
    machine = f"{platform.system()} {platform.machine()}, {cores} {'core' if cores == 1 else 'cores'}"
    yield Finding("software", "python", python, f"{version}, {machine}{wanted}", {"version": version, "cores": cores})
    yield _tried("software", "numpy", lambda: (metadata.version("numpy"), {"version": metadata.version("numpy")}))
    yield _tried("software", "triton", _triton)
    yield _torch()


def _triton() -> tuple[str, dict[str, Any]]:
    from ..codegen import versions

    versions.check_triton()
    if _interpreting():
        raise UnsupportedError("TRITON_INTERPRET is set: Triton compiles nothing until it is unset")
    version = versions.triton_version()
    newest = ".".join(map(str, versions.NEWEST))
    newer = versions.parse_version(version) > versions.NEWEST
    return f"{version}, {f'newer than {newest}, untested' if newer else 'supported'}", {"version": version}


def _interpreting() -> bool:
    from triton import knobs

    return bool(knobs.runtime.interpret)


def _torch() -> Finding:
    if find_spec("torch") is None:
        return Finding("software", "torch", ABSENT, "not installed: numpy arrays work, in the emulator only")
    try:
        import torch
    except Exception as error:  # a broken installation can raise anything
        return Finding("software", "torch", BROKEN, f"cannot be imported: {type(error).__name__}: {error}")
    build = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    if not torch.version.hip and not torch.version.cuda:
        build = "CPU build"
    usable = torch.cuda.is_available()
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if usable else []
    detail = f"{torch.__version__}, {build}" + (f", drives {', '.join(devices)}" if devices else "")
    if build != "CPU build" and not usable:
        detail += ", finds no GPU that it can use"
    return Finding("software", "torch", OK, detail, {"version": str(torch.__version__), "devices": devices})


def _present_gpus() -> Iterator[Finding]:
    found = [*_amd_gpus(), *_nvidia_gpus()]
    for name, text in found:
        known = f"{GPUS[name].family}, in the table" if name in GPUS else "not in laneloom's table"
        yield Finding("GPU", name, OK if name in GPUS else ABSENT, f"{text}; {known}", {"name": name, "product": text})
    if not found:
        yield Finding("GPU", "none", ABSENT, "no GPU of AMD or NVIDIA: kernels are compiled and emulated here")


def _amd_gpus() -> Iterator[tuple[str, str]]:
    """What the amdgpu driver lists; works without ROCm. Version 110501 is gfx1151."""
    for path in sorted(_AMD_NODES.glob("*/properties")):
        try:
            words = dict(line.split(maxsplit=1) for line in path.read_text().splitlines() if " " in line)
        except OSError:
            continue
        number = int(words.get("gfx_target_version", "0"))
        if number:
            name = f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"
            units = int(words.get("simd_count", 0)) // int(words.get("simd_per_cu", 2))
            yield name, f"AMD, {units} compute units"


def _nvidia_gpus() -> Iterator[tuple[str, str]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return
    query = [tool, "--query-gpu=compute_cap,name,driver_version", "--format=csv,noheader"]
    try:
        printed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return
    for line in printed.splitlines():
        capability, _, text = line.partition(", ")
        number = capability.strip().replace(".", "")
        yield (f"sm_{number}a" if number == "90" else f"sm_{number}"), text.replace(", ", ", driver ")


@contextmanager
def _private_caches() -> Iterator[None]:
    """Empty caches, so that compiling means compiling; the user's are not touched."""
    names = ("LANELOOM_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="laneloom-doctor-") as folder:
        for name in names:
            os.environ[name] = os.path.join(folder, name.lower())
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _compiled(name: str) -> Finding:
    from ..codegen import versions

    try:
        versions.check_gpu(GPUS[name])
    except UnsupportedError as error:  # what this Triton is too old for is no fault of the machine
        return Finding("compile", name, ABSENT, str(error))
    return _tried("compile", name, lambda: _compile_probe(name))


def _compile_probe(name: str) -> tuple[str, dict[str, Any]]:
    from ..codegen import compile_kernel
    from .probe import scaled_sum

    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "scale": "fp32"}
    code = compile_kernel(scaled_sum, gpu=name, signature=signature, constants={"BLOCK": 256})
    row = GPUS[name]
    return f"{row.family}, {row.product}", {"code_bytes": code.code_bytes, "vgprs": code.vgprs}


def _emulate_probe(name: str) -> tuple[str, dict[str, Any]]:
    import numpy as np

    from ..emulator.driver import ArrayArgument, emulated
    from .probe import scaled_sum

    kernel: Any = scaled_sum  # subscripting and calling a jit function launches it
    n, block = 1000, 256
    x, y = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    out = np.full(n, np.nan, np.float32)
    with emulated(name) as emulation:
        kernel[(-(-n // block),)](
            *(ArrayArgument(array) for array in (x, y, out)), n, 0.5, BLOCK=block, enable_fp_fusion=True
        )
    # Halving is exact, so fused or not there is one rounding and one right answer.
    if not np.array_equal(out, np.float32(0.5) * x + y):
        raise EmulationError("the check kernel's sums are wrong")
    executed = emulation.instructions
    return f"{executed} instructions of a small kernel, every bit right", {"instructions": executed}


def _code_cache() -> tuple[str, dict[str, Any]]:
    from ..codegen import stats

    found = stats()
    _check_writable(found.path)
    detail = f"{found.path}: {found.entries} entries, {found.bytes / 1e6:.1f} MB, writable"
    return detail, {"path": str(found.path), "entries": found.entries, "bytes": found.bytes}


def _triton_cache() -> tuple[str, dict[str, Any]]:
    from triton import knobs

    path = Path(knobs.cache.dir)
    _check_writable(path)
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    facts = {"path": str(path), "entries": len(sizes), "bytes": sum(sizes)}
    return f"{path}: {counted(len(sizes), 'file')}, {sum(sizes) / 1e6:.1f} MB, writable", facts


def _check_writable(path: Path) -> None:
    """Raise UnsupportedError where files cannot be made in the folder, or in the nearest one above it that exists."""
    there = path
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UnsupportedError(f"{path} cannot be written: {error.strerror or error}") from None


def _show(findings: list[Finding], broken: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = new_console()
    console.print(f"laneloom {__version__}", style="bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    for no_wrap in (True, True, True, False):
        table.add_column(no_wrap=no_wrap)
    section = None
    for finding in findings:
        if finding.section != section:
            table.add_row()
        label, style = _STYLES[finding.status]
        first = Text(finding.section if finding.section != section else "", style="bold")
        table.add_row(first, Text(label, style=style), finding.name, Text(finding.detail, overflow="fold"))
        section = finding.section
    console.print(table)
    console.print()
    if not broken:
        console.print("All well. Next: laneloom demo", style="green")
        return
    console.print(f"{len(broken)} broken:", style="bold red")
    for finding in broken:
        console.print(f"  {finding.section} {finding.name}: {finding.detail}", markup=False)
