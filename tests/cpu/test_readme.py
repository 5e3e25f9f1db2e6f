"""README: its Python runs, its commands exist, its links lead somewhere, its table agrees with the GPU table."""

import itertools
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.gpu import GPUS
from laneloom.isa.finding import RULES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    inline = re.findall(r"`((?:laneloom|make) [^`]+)`", TEXT)
    return [shlex.split(line, comments=True) for line in [*lines, *inline]]


def test_every_block_has_a_language_that_is_tested():
    fences = re.findall(r"^```(.*)$", TEXT, re.MULTILINE)
    assert fences[1::2] == [""] * (len(fences) // 2)
    assert set(fences[::2]) == {"python", "sh"}


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.splitlines()[0])
def test_python_blocks_run(code, tmp_path, capsys):
    script = tmp_path / "block.py"  # Triton reads the sources of its kernels from a file
    script.write_text(code)
    if "torch" in code:  # which takes seconds to import: here, where it is
        pytest.importorskip("torch")
        runpy.run_path(str(script), run_name="__main__")
        printed = capsys.readouterr().out
    else:
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    assert printed.strip()
    assert "nan" not in printed


@pytest.mark.parametrize("words", commands(), ids=shlex.join)
def test_commands_exist(words):
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
    elif words[0] == "laneloom":
        spoken = list(itertools.takewhile(lambda word: not word.startswith("--"), words[1:]))
        shown = CliRunner().invoke(app, [*spoken, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        for option in (word for word in words if word.startswith("--")):
            assert option in shown.stdout
    elif words[0] == "python":
        script = (ROOT / words[1]).read_text()
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option}"' in script
    else:
        assert words[:2] == ["pip", "install"]
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert all(extra in extras for extra in re.findall(r"\[(\w+)\]", words[2]))


@pytest.mark.parametrize("page", [ROOT / "README.md", *ROOT.glob("docs/index.md")], ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", prose):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_page_is_linked():
    index = ROOT / "docs" / "index.md"
    linked = TEXT + (index.read_text() if index.exists() else "")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name in linked, f"link {page.name} in README.md or docs/index.md"


def block(text: str, name: str) -> str:
    return text.split(f"<!-- {name} -->\n", 1)[1].split(f"\n<!-- end of {name} -->", 1)[0]


def test_its_tables_of_measurements_are_those_of_the_pages_and_records():
    page, products = ((ROOT / "docs" / name).read_text() for name in ("hopper-gemm.md", "hopper-gemm-products.md"))
    assert block(TEXT, "matmul") == block(page, "summary"), "run bench.report with --readme README.md"
    assert block(products, "random").splitlines()[0] in block(TEXT, "random"), "run bench.report with --readme"
    pytest.importorskip("torch")
    from laneloom.bench import attention_report, host_time, records, report_other

    other = records.load(ROOT / "results" / "h100" / "matmul.jsonl")
    groups = report_other.GROUPS
    assert block(TEXT, "other gpu") == report_other.of_the_suite(other, groups), "run bench.report with --other"
    assert block(page, "other gpu") == report_other.summarise_groups(other, groups), "run bench.report with --other"
    kinds = {line.split(" | ")[0] for line in block(products, "kinds").splitlines()[2:]}
    assert kinds == {"| fp8", "| int8", "| tf32", "| 3xtf32"}
    attention = (ROOT / "docs" / "attention.md").read_text()
    for prefix, gpu in (("", "h200"), ("other ", "h100")):
        found = records.load(ROOT / "results" / gpu / "attention.jsonl")
        again = "run bench.attention_report with --other and --readme"
        assert block(TEXT, f"{prefix}attention") == attention_report.render_summary(found), again
        assert block(attention, f"{prefix}products") == attention_report.render_products(found), again
        assert block(attention, f"{prefix}decode") == attention_report.render_decode(found), again
    of = ROOT / "results" / "h200"
    host = host_time.render(records.load(of / "host_time.jsonl"))
    assert block((ROOT / "docs" / "pytorch.md").read_text(), "host_time") == host, "run bench.host_time with --page"


def test_table_of_gpus_is_the_gpu_table():
    rows = [line.split("|") for line in TEXT.splitlines() if re.match(r"\| (gfx|sm_)", line)]
    told = {name: row for row in rows for name in re.findall(r"gfx\w+|sm_\w+", row[1])}
    assert set(told) == set(GPUS)
    for name, row in told.items():
        assert (row[4].strip() == "yes") is GPUS[name].emulated


def test_rules_of_machine_code_are_counted_and_listed():
    page = (ROOT / "docs" / "checking-machine-code.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \| (\w+) \|", page, re.MULTILINE)
    assert sorted(listed) == sorted((name, rule.severity.value) for name, rule in RULES.items())
    assert len(RULES) == 13
    assert "against thirteen rules" in TEXT
