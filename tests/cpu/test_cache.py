"""The disk cache: what is stored comes back, damage is found, processes do not disturb each other."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from laneloom.codegen import CodeObject, KernelArgument, cache, compile_kernel
from laneloom.gpu import get_gpu

CODE = CodeObject(
    kernel="copy", gpu=get_gpu("gfx1151"), asm="copy:\n\ts_endpgm ; ü\n", binary=bytes(range(256)) * 3, vgprs=8,
    sgprs=10, vgpr_spills=0, sgpr_spills=0, scratch_bytes=0, lds_bytes=64, occupancy=16, code_bytes=4, num_warps=4,
    wave=32, triton_version="3.9.0", arguments=(KernelArgument(0, 8, "global_buffer", "x"),), kernarg_bytes=8,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANELOOM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry_path(key: str) -> Path:
    (path,) = (cache.cache_dir() / "code").glob(f"*/{key}*")
    return path


def test_an_entry_comes_back_equal():
    key = cache.make_key("a")
    assert cache.load(key) is None
    cache.store(key, CODE)
    assert cache.load(key) == CODE


def test_every_field_survives():
    for field in dataclasses.fields(CODE):
        if field.type in ("int", "int | None"):
            changed = dataclasses.replace(CODE, **{field.name: 77})
            cache.store(cache.make_key(field.name), changed)
            assert cache.load(cache.make_key(field.name)) == changed


def test_a_file_is_json_and_bytes():
    key = cache.make_key("a")
    cache.store(key, CODE)
    head, line, payload = entry_path(key).read_bytes().split(b"\n", 2)
    assert head.startswith(b"laneloom-code-object ")
    assert json.loads(line)["record"]["kernel"] == "copy"
    assert payload == CODE.asm.encode() + CODE.binary


def test_fetch_builds_once():
    built = []

    def build() -> CodeObject:
        built.append(1)
        return CODE

    key = cache.make_key("a")
    assert cache.fetch(key, build) == CODE
    assert cache.fetch(key, build) == CODE
    assert len(built) == 1
    cache.fetch(None, build)
    cache.fetch(None, build)
    assert len(built) == 3


def test_keys_tell_types_and_borders_apart():
    parts = [(1,), (True,), ("1",), (1.0,), (None,), (), ("a", "b"), ("ab",), ("a,b",), (["a"], "b"), (["a", "b"],)]
    assert len({cache.make_key(*p) for p in parts}) == len(parts)


def test_keys_depend_on_the_compilers_environment(monkeypatch: pytest.MonkeyPatch):
    before = cache.make_key("a")
    monkeypatch.setenv("AMDGCN_USE_BUFFER_OPS", "0")
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    assert cache.make_key("a") != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b[:10],
        lambda b: b[: len(b) // 2],
        lambda b: b[:-1],
        lambda b: b + b"x",
        lambda b: b[:200] + bytes([b[200] ^ 1]) + b[201:],
        lambda b: b[:-5] + bytes([b[-5] ^ 1]) + b[-4:],
        lambda b: b"\xff\xfe" + b,
        lambda b: b.replace(b"object 1 ", b"object 0 ", 1),
    ],
    ids=["empty", "head", "half", "last byte", "longer", "bit in json", "bit in binary", "not text", "old format"],
)
def test_a_damaged_entry_is_logged_and_built_again(damage, caplog: pytest.LogCaptureFixture):
    key = cache.make_key("a")
    cache.store(key, CODE)
    path = entry_path(key)
    path.write_bytes(damage(path.read_bytes()))
    other = dataclasses.replace(CODE, vgprs=9)
    with caplog.at_level(logging.WARNING, logger="laneloom"):
        assert cache.fetch(key, lambda: other) == other
    assert "damaged" in caplog.text
    caplog.clear()
    assert cache.load(key) == other
    assert not caplog.records


def test_a_valid_checksum_over_a_wrong_record_is_damage_too(caplog: pytest.LogCaptureFixture):
    key = cache.make_key("a")
    cache.store(key, CODE)
    body = b'{"asm_bytes": 0, "record": {"gpu": "gfx1151", "arguments": []}}\n'
    entry_path(key).write_bytes(cache._head(body).encode() + b"\n" + body)
    assert cache.load(key) is None
    assert "damaged" in caplog.text


def test_stats_and_clear(own_cache: Path):
    assert cache.stats() == cache.CacheStats(own_cache, 0, 0)
    keys = [cache.make_key(i) for i in range(3)]
    for key in keys:
        cache.store(key, CODE)
    leftover = entry_path(keys[0]).with_name("crashed.unfinished")
    leftover.write_bytes(b"half an ent")
    stats = cache.stats()
    assert stats.entries == 3
    assert stats.bytes == 3 * entry_path(keys[0]).stat().st_size
    assert cache.clear() == 3
    assert not leftover.exists()
    assert cache.stats().entries == 0


def test_a_cache_that_cannot_be_written_is_done_without(own_cache: Path, caplog: pytest.LogCaptureFixture):
    own_cache.write_text("a file where the folder should be")
    assert cache.fetch(cache.make_key("a"), lambda: CODE) == CODE
    assert "cannot write" in caplog.text
    assert cache.stats().entries == 0


HAMMER = """
import dataclasses, logging, sys
sys.path[:0] = {path!r}
from laneloom.codegen import cache
from laneloom.codegen.code_object import CodeObject
from laneloom.gpu import get_gpu
logging.basicConfig(level=logging.WARNING, format="LOGGED %(message)s")
me = int(sys.argv[1])
key = cache.make_key("shared")
code = CodeObject("k", get_gpu("gfx1151"), chr(97 + me) * 200_000, bytes([me]) * 300_000, me, *[0] * 9, "3.9.0")
for _ in range(25):
    cache.store(key, code)
    found = cache.load(key)
    assert found is not None
    assert set(found.asm) == {{chr(97 + found.vgprs)}} and set(found.binary) == {{found.vgprs}}
    assert (len(found.asm), len(found.binary)) == (200_000, 300_000)
print("fine")
"""


def run_together(script: Path, count: int) -> list[subprocess.CompletedProcess[str]]:
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(i)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for i in range(count)
    ]
    return [subprocess.CompletedProcess(p.args, 0, *p.communicate()) for p in running]


def test_writers_of_one_entry_never_mix(tmp_path: Path, own_cache: Path):
    script = tmp_path / "hammer.py"
    script.write_text(HAMMER.format(path=[p for p in sys.path if p]))
    for result in run_together(script, 4):
        assert result.stdout == "fine\n", result.stderr
        assert "LOGGED" not in result.stderr
    assert cache.stats().entries == 1
    assert not list(own_cache.rglob("*.unfinished"))


KERNEL = """
import triton
import triton.language as tl

SHIFT = tl.constexpr({shift})

@triton.jit
def helper(x):
    return x * {factor} + SHIFT

@triton.jit
def middle(x):
    return helper(x)

@triton.jit
def kernel(x_ptr, B: tl.constexpr):
    offs = tl.arange(0, B)
    tl.store(x_ptr + offs, middle(tl.load(x_ptr + offs)))
"""


def compile_variant(path: Path, **values) -> CodeObject:
    path.write_text(KERNEL.format(**values))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return compile_kernel(module.kernel, gpu="gfx1151", signature={"x_ptr": "*fp32"}, constants={"B": 128})


def test_the_key_covers_called_functions_and_their_globals(tmp_path: Path):
    first = compile_variant(tmp_path / "a.py", factor=3.0, shift=1.0)
    assert cache.stats().entries == 1
    assert compile_variant(tmp_path / "b.py", factor=3.0, shift=1.0) == first
    assert cache.stats().entries == 1
    changed = compile_variant(tmp_path / "c.py", factor=5.0, shift=1.0)
    assert cache.stats().entries == 2
    assert changed.binary != first.binary
    moved = compile_variant(tmp_path / "d.py", factor=3.0, shift=7.0)
    assert cache.stats().entries == 3
    assert moved.binary != first.binary


COMPILE = """
import sys
sys.path[:0] = {path!r}
from kernels_here import kernel
from laneloom.codegen import compile_kernel
code = compile_kernel(kernel, gpu="gfx1201", signature={{"x_ptr": "*fp32"}}, constants={{"B": 256}})
print(code.vgprs > 0 and "global_load" in code.asm or "buffer_load" in code.asm)
"""


def test_processes_that_compile_the_same_kernel_share_one_entry(tmp_path: Path):
    (tmp_path / "kernels_here.py").write_text(KERNEL.format(factor=2.0, shift=0.0))
    script = tmp_path / "compile.py"
    script.write_text(COMPILE.format(path=[str(tmp_path), *(p for p in sys.path if p)]))
    for result in run_together(script, 3):
        assert result.stdout == "True\n", result.stderr
    assert cache.stats().entries == 1


def test_codegen_imports_no_torch():
    command = "import sys, laneloom.codegen, laneloom.isa.render; print('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    result = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout == "False\n"
