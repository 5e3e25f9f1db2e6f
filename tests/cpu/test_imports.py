"""The direction of imports, and what importing laneloom costs."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "laneloom"
# cli -> tune -> bench -> pytorch -> ops, timing -> device -> codegen, emulator -> isa -> gpu, errors
LEVELS = {
    "cli": 8, "tune": 7, "compat": 7, "bench": 6, "pytorch": 5, "ops": 4, "timing": 4, "verify": 3, "device": 3,
    "codegen": 2, "emulator": 2, "isa": 1, "gpu": 0, "errors": -1, "first_use": -1, "locks": -2,
}  # fmt: skip
TORCH_FREE = ("isa", "emulator", "timing", "codegen", "gpu", "errors", "first_use", "locks")


def modules():
    return sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py" and p != SOURCE / "__main__.py")


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def imported(path: Path) -> list[tuple[str, bool]]:
    """(absolute module, whether at the top level of the file) of every import in a file."""
    return list(_imported(path))


def _imported(path: Path) -> Iterator[tuple[str, bool]]:
    package = ["laneloom", *path.relative_to(SOURCE).parts[:-1]]
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                name = ".".join(base + ([node.module] if node.module else []))
                yield name, id(node) in top
                if not node.module:
                    for alias in node.names:
                        yield f"{name}.{alias.name}", id(node) in top
            else:
                yield node.module or "", id(node) in top


def test_imports_run_one_way():
    wrong = []
    for path in modules():
        mine = part_of(path)
        assert mine in LEVELS, f"{mine} has no place in the order of imports"
        for name, _ in imported(path):
            parts = name.split(".")
            if parts[0] == "laneloom" and len(parts) > 1 and parts[1] in LEVELS:
                theirs = parts[1]
                if theirs != mine and LEVELS[theirs] >= LEVELS[mine]:
                    wrong.append(f"{path.relative_to(SOURCE)} imports {theirs}")
    assert not wrong


def test_low_layers_do_not_import_torch():
    """At the top of a file."""
    low = [path for path in modules() if part_of(path) in TORCH_FREE]
    wrong = {path for path in low for name, top in imported(path) if top and name.split(".")[0] == "torch"}
    assert not wrong


def test_files_stay_under_400_lines():
    root = SOURCE.parents[1]
    files = [path for folder in ("src", "tests", "examples") for path in (root / folder).rglob("*.*")]
    texts = [path for path in files if path.suffix in (".py", ".cu", ".cuh", ".h")]
    assert len(texts) > 500
    assert not {path: lines for path in texts if (lines := len(path.read_text().splitlines())) > 400}


def test_kernel_files_do_not_import_each_other():
    for path in SOURCE.glob("ops/*/kernels/*.py"):
        for name, _ in imported(path):
            assert ".kernels." not in name, f"{path.name} imports {name}"


def test_importing_laneloom_is_quick_and_pulls_in_nothing_heavy():
    """Of the processor's time: a busy machine takes longer by the clock."""
    code = "import sys, time; t = time.process_time(); import laneloom; print(time.process_time() - t, *sys.modules)"
    runs = [subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(3)]
    assert not {"torch", "triton", "numpy"}.intersection(runs[0])
    assert min(float(seconds) for seconds, *_ in runs) < 0.1


def test_operators_are_registered_without_the_compiler():
    """It takes a second, also of commands that ask what `patched` would do."""
    pytest.importorskip("torch")
    code = "import sys, laneloom.pytorch; print('torch._dynamo' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_modules_that_pages_name_are_attributes():
    code = """
import laneloom
try:
    laneloom.emulated("gfx1234").__enter__()
except laneloom.errors.UnknownGpuError:
    print(laneloom.gpu.get_gpu("gfx1151").name, laneloom.timing.predict.__name__, "torch" in __import__("sys").modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "gfx1151 predict False\n"


def test_every_name_is_there_without_torch():
    code = """
import sys
sys.modules["torch"] = None
import laneloom
from laneloom import *
assert all(hasattr(laneloom, name) for name in laneloom.__all__)
try:
    patched(always=True)
except laneloom.errors.UnsupportedError as error:
    print(error)
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said == "patched: needs torch, and there is none: `pip install torch`\n"
