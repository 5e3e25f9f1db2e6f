"""Pages of docs/: links lead somewhere, commands exist, Python that stands alone runs, the site has all pages."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import fresh_process
import hardware_record
import pytest
from typer.testing import CliRunner

from laneloom.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
RUN_ELSEWHERE = {"README.md"}  # tests/cpu/test_readme.py


def prose(page: Path) -> str:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """What a heading's link is called, as on GitHub and by MkDocs."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def blocks(language: str) -> list[tuple[Path, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [(page, block) for page in PAGES for block in pattern.findall(page.read_text())]


def commands() -> list[list[str]]:
    found = []
    for _, block in blocks("sh"):
        text = block.replace("\\\n", " ")
        for line in text.splitlines():
            parts = re.split(r"&&|;|\|", line.partition(" #")[0])
            found += [shlex.split(part) for part in parts if part.strip().startswith("laneloom ")]
    return found


@pytest.mark.parametrize("words", commands(), ids=shlex.join)
def test_commands_exist(words):
    path = words[1:2]
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    if "Commands" in shown.stdout and len(words) > 2:
        shown = CliRunner().invoke(app, [*path, words[2], "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0, shown.output
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        assert option in shown.stdout, option


def names_missing(tree: ast.Module) -> set[str]:
    """Names that a block reads and that neither it nor Python defines."""
    import builtins

    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return read - bound - set(dir(builtins))


def stands_alone(code: str) -> bool:
    """Whether a block can run here: it defines what it reads, and takes no GPU and no second process."""
    elsewhere = r"cuda|torchrun|init_process_group|init_device_mesh|\.\.\.|\.whl|FILE"
    return "import" in code and not names_missing(ast.parse(code)) and not re.search(elsewhere, code)


PYTHON = blocks("python")


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[f"{page.stem}-{n}" for n, (page, _) in enumerate(PYTHON)])
def test_python_blocks_are_python_and_run_if_they_stand_alone(page, code, tmp_path):
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("laneloom"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "laneloom":
            import laneloom

            if not hasattr(laneloom, node.attr):
                importlib.import_module(f"laneloom.{node.attr}")
    if not stands_alone(code):
        return
    script = tmp_path / "block.py"
    script.write_text(code)
    if "torch" in code:
        pytest.importorskip("torch")
        status, printed = fresh_process.run(script, timeout=240)
        assert status == 0, printed
        return
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_the_site_has_every_page():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    for page in PAGES:
        assert page.name in nav, f"add {page.name} to the nav of mkdocs.yml"
    for name in re.findall(r": (\S+\.md)$", nav, re.MULTILINE):
        assert (ROOT / "docs" / name).exists(), name


def test_the_reference_names_what_exists():
    text = (ROOT / "docs" / "reference.md").read_text()
    named = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    for path in named:
        module, _, name = path.rpartition(".")
        try:
            importlib.import_module(path)
        except ImportError:
            try:
                assert hasattr(importlib.import_module(module), name), path
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("laneloom"):
                    raise
    import laneloom

    functions = {name for name, home in laneloom._HOMES.items() if name[0].islower()}
    assert functions <= {path.rpartition(".")[2] for path in named}, functions


def test_what_the_hardware_suite_gave_is_said_as_recorded():
    record = json.loads(hardware_record.FILE.read_text())
    page = hardware_record.PAGE.read_text()
    assert f"<!-- hardware -->\n{hardware_record.sentence(record)}\n<!-- end of hardware -->" in page
    assert record["passed"] > 700
    assert not record["dirty"]
