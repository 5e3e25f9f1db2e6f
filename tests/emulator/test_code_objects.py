"""Binary code objects: clang's, with llvm-objdump's output recorded beside them, and those that LLVM assembles here."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.codegen import assemble
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import ArgumentError, EmulationError, UnsupportedError
from laneloom.gpu import get_gpu
from laneloom.isa import objdump
from laneloom.isa.check import check
from laneloom.isa.descriptor import directives
from laneloom.isa.disassembly import disassemble
from laneloom.isa.elf import read_sections, read_symbols
from laneloom.isa.metadata import select_kernel
from laneloom.isa.offload_bundle import code_objects

FOLDER = Path(__file__).with_name("code_objects")
GPUS = ("gfx1151", "gfx1201")
TABLE = (3, 1, 4, 1, 5, 9, 2, 6)
BY_HAND = """
\t.amdgcn_target "amdgcn-amd-amdhsa--{gpu}"
\t.amdhsa_code_object_version 5
\t.text
\t.globl k
\t.p2align 8
\t.type k,@function
k:
\ts_load_b64 s[2:3], s[0:1], 0x0
\ts_mov_b32 s4, 1
.LBB0_1:
\ts_xor_b32 s4, s4, 1
\tv_mad_u32_u24 v1, v0, 4, s4
\tv_cmp_gt_u32_e32 {vcc}, 7, v0
\tv_cndmask_b32_e64 v1, v1, 0x1234, {vcc}
\ts_cmp_lg_u32 s4, 0
\ts_cbranch_scc1 .LBB0_1
\tv_lshlrev_b32_e32 v0, 2, v0
\t{wait}
\tglobal_store_b32 v0, v1, s[2:3] offset:16
\ts_endpgm
.Lend:
\t.size k, .Lend-k
\t.rodata
\t.p2align 6
\t.amdhsa_kernel k
{directives}
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .address_space: global
        .offset: 0
        .size: 8
        .value_kind: global_buffer
    .group_segment_fixed_size: 512
    .kernarg_segment_align: 8
    .kernarg_segment_size: 8
    .max_flat_workgroup_size: 64
    .name: k
    .private_segment_fixed_size: 0
    .sgpr_count: 8
    .sgpr_spill_count: 0
    .symbol: k.kd
    .vgpr_count: 2
    .vgpr_spill_count: 0
    .wavefront_size: {wave}
amdhsa.version:
  - 1
  - 2
...
\t.end_amdgpu_metadata
"""
DIRECTIVES = {
    "group_segment_fixed_size": 512, "private_segment_fixed_size": 48, "kernarg_size": 8, "user_sgpr_count": 5,
    "user_sgpr_dispatch_ptr": 1, "user_sgpr_kernarg_segment_ptr": 1, "user_sgpr_private_segment_size": 1,
    "wavefront_size32": 1, "system_sgpr_workgroup_id_x": 1, "system_sgpr_workgroup_id_y": 0,
    "system_sgpr_workgroup_id_z": 1, "system_vgpr_workitem_id": 2, "next_free_vgpr": 40, "next_free_sgpr": 6,
    "float_round_mode_32": 2, "float_round_mode_16_64": 1, "float_denorm_mode_32": 1, "float_denorm_mode_16_64": 2,
    "dx10_clamp": 0, "ieee_mode": 1, "fp16_overflow": 1, "workgroup_processor_mode": 0, "memory_ordered": 1,
    "forward_progress": 1, "enable_private_segment": 1,
}  # fmt: skip


def by_hand(gpu: str = "gfx1151", wave: int = 32, **changed: int) -> str:
    values = {"user_sgpr_kernarg_segment_ptr": 1, "user_sgpr_count": 2, "next_free_vgpr": 2, "next_free_sgpr": 6}
    values |= {"wavefront_size32": int(wave == 32)} | changed
    lines = "\n".join(f"\t\t.amdhsa_{name} {value}" for name, value in values.items())
    wait = "s_wait_kmcnt 0x0" if gpu.startswith("gfx12") else "s_waitcnt lgkmcnt(0)"
    return BY_HAND.format(gpu=gpu, wave=wave, directives=lines, vcc="vcc_lo" if wave == 32 else "vcc", wait=wait)


def binary(gpu: str) -> bytes:
    return (FOLDER / f"calls_{gpu}.co").read_bytes()


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """LANELOOM_OBJDUMP prints what llvm-objdump printed for calls_<gpu>.co, whatever it is asked."""

    def replay(gpu: str) -> None:
        program = tmp_path / f"replay_{gpu}"
        program.write_text(f"#!/bin/sh\ncat '{FOLDER / f'calls_{gpu}.txt'}'\n")
        program.chmod(0o755)
        monkeypatch.setenv(objdump.VARIABLE, str(program))

    return replay


def real_objdump(gpu: str, wave: int = 32) -> None:
    """Skip where no llvm-objdump decodes code for this GPU."""
    try:
        objdump.read_lines(assemble(by_hand(gpu, wave), gpu).binary, gpu, wave)
    except UnsupportedError as error:
        pytest.skip(str(error))


def run_calls(program: Program, fixed: int) -> tuple[np.ndarray, np.ndarray]:
    out, y = np.zeros(64, np.int32), np.arange(64, dtype=np.float32)
    block = struct.pack("<Q", out.ctypes.data) + struct.pack("<ifq", 7, 0.5, 1000)
    block += struct.pack("<QI4x", y.ctypes.data, fixed)
    regions = [Region(name, x.ctypes.data, x.nbytes, x) for name, x in (("out", out), ("y", y))]
    launch(program, [1], block, workgroup_size=64, lds_bytes=fixed + 256, regions=regions)
    return out, y


def expected_calls() -> np.ndarray:
    i = np.arange(64)
    picked = np.array([(TABLE[k & 7] + k * (k & 7)) * 3 + k for k in i])
    return picked[::-1] + 1000 * i[::-1] + 7 + 40


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("gpu", GPUS)
def test_a_code_object_of_clang(recorded, gpu, strict):
    """Relative addresses of a function, a table and a variable; scratch, LDS, a struct by value."""
    recorded(gpu)
    code = disassemble(FOLDER / f"calls_{gpu}.co", kernel="calls")
    assert code.gpu.name == gpu
    described = select_kernel(code.text, "calls")
    assert described.workgroup_size == (64, 1, 1)
    kinds = [a.kind for a in described.arguments]
    assert kinds == ["global_buffer", "by_value", "global_buffer", "dynamic_shared_pointer"]
    program = Program(code.text, code.gpu, "calls", strict=strict, elf=code.elf)
    assert list(program.listing.entries) == ["calls", "pick"]
    out, y = run_calls(program, described.lds_bytes)
    np.testing.assert_array_equal(out, expected_calls())
    np.testing.assert_array_equal(y, np.arange(64) * 0.5 + 1000)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_global_variable_keeps_its_value(recorded, gpu):
    recorded(gpu)
    code = disassemble(binary(gpu), kernel="count")
    program = Program(code.text, code.gpu, "count", elf=code.elf)
    launches = next(s for s in read_symbols(read_sections(code.elf)) if s.name == "launches")
    region = next(r for r in program.regions if r.name.startswith("code object"))
    for _ in range(2):
        launch(program, [1], b"", workgroup_size=1)
    base = region.address - int(region.name.rsplit(" ", 1)[1], 16)
    held = next(r for r in program.regions if r.address <= base + launches.value < r.end)
    at = base + launches.value - held.owner.ctypes.data
    assert held.owner[at : at + 4].view(np.int32)[0] == 42


@pytest.mark.parametrize("gpu", GPUS)
def test_the_recording_is_what_llvm_objdump_prints(recorded, monkeypatch, gpu):
    """Versions of llvm-objdump spell a few operands differently: the same instructions at the same places count."""
    real_objdump(gpu)
    monkeypatch.delenv(objdump.VARIABLE, raising=False)
    live = disassemble(binary(gpu), kernel="calls")
    recorded(gpu)
    replayed = disassemble(binary(gpu), kernel="calls")
    programs = [Program(code.text, code.gpu, "calls", elf=code.elf) for code in (live, replayed)]
    first, second = ([(i.address, i.nbytes, i.name) for i in p.listing.instructions] for p in programs)
    assert first == second
    np.testing.assert_array_equal(run_calls(programs[0], 256)[0], expected_calls())


@pytest.mark.parametrize(("gpu", "wave"), [("gfx1100", 32), ("gfx1151", 64), ("gfx1201", 32)])
def test_text_assembles_to_the_same_code(gpu, wave):
    real_objdump(gpu, wave)
    source = by_hand(gpu, wave)
    first = assemble(source, gpu)
    again = assemble(disassemble(first.binary).text, gpu)

    def text(code):
        return next(s.data for s in read_sections(code.binary) if s.name == ".text")

    assert text(again)[: again.code_bytes] == text(first)[: first.code_bytes]
    assert again.arguments == first.arguments
    assert (again.wave, again.lds_bytes, again.workgroup_size) == (first.wave, first.lds_bytes, first.workgroup_size)


OF_CDNA_5 = ("dx10_clamp", "ieee_mode", "workgroup_processor_mode")
DIRECTIVES_CDNA_5 = {name: value for name, value in DIRECTIVES.items() if name not in OF_CDNA_5} | {
    "kernarg_size": 200, "user_sgpr_count": 32, "user_sgpr_kernarg_preload_length": 25, "next_free_vgpr": 528,
    "user_sgpr_kernarg_preload_offset": 2, "named_barrier_count": 3, "inst_pref_size": 100,
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "wanted"), [("gfx1151", DIRECTIVES), ("gfx1250", DIRECTIVES_CDNA_5)])
def test_descriptor(gpu, wanted):
    """LLVM's own bytes for directives that differ from the defaults."""
    if gpu == "gfx1250" and parse_version(triton_version()) < (3, 9):
        pytest.skip("Triton knows it from 3.9 on")
    text = by_hand(gpu, **wanted)
    sections = read_sections(assemble(text, gpu).binary)
    symbol = next(s for s in read_symbols(sections) if s.name == "k.kd")
    section = sections[symbol.section]
    at = symbol.value - section.address
    got = directives(section.data[at : at + 64], get_gpu(gpu), 8)
    assert {name: got[name] for name in wanted} == wanted
    again = assemble(by_hand(gpu, **got), gpu).binary
    assert directives(read_sections(again)[symbol.section].data[at : at + 64], get_gpu(gpu), 8) == got


def test_check_reads_binaries():
    real_objdump("gfx1151")
    source = by_hand()
    (want,), (got,) = check(source), check(disassemble(assemble(source, "gfx1151").binary).text)
    assert [f.rule for f in got.findings] == [f.rule for f in want.findings]
    assert (got.kernel, got.gpu, got.instructions) == (want.kernel, want.gpu, want.instructions)


# -- the command line --------------------------------------------------------------------------------------------------


def call(*arguments) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def arguments(tmp_path):
    np.save(tmp_path / "p.npy", np.frombuffer(struct.pack("<ifq", 7, 0.5, 1000), np.uint8))
    out = tmp_path / "out.npy"
    return [f"--arg=out:i32:64->{out}", f"--arg={tmp_path / 'p.npy'}", "--arg=f32:64:arange", "--arg=lds:256"], out


def test_run(recorded, arguments):
    recorded("gfx1201")
    given, out = arguments
    code, printed = call("run", FOLDER / "calls_gfx1201.co", "--kernel", "calls", "--grid", 1, *given, "--strict")
    assert code == 0, printed
    assert "calls on gfx1201, emulated: 1 workgroup of 64 threads, 512 bytes of LDS" in printed
    np.testing.assert_array_equal(np.load(out), expected_calls())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu", "gfx1151"], "holds code for gfx1201, not for gfx1151"),
        (["--kernel", "missing"], "no kernel 'missing' in this file: it holds calls, count"),
        ([], "name one kernel of this assembly: it describes calls, count"),
        (["--kernel", "calls", "--block", "32"], "the kernel takes workgroups of 64,1,1 alone"),
        (["--kernel", "calls", "--arg", "i32:1"], "takes 4 arguments, got 5"),
    ],
)
def test_refusals_of_run(recorded, arguments, options, message):
    recorded("gfx1201")
    code, printed = call("run", FOLDER / "calls_gfx1201.co", "--grid", 1, *options, *arguments[0])
    assert code == 2
    assert message in printed


@pytest.mark.parametrize(
    ("position", "argument", "message"),
    [
        (1, "i32:1", "expects a struct of 16 bytes, as a file.npy"), (1, "f32:5:ones", "expects a struct of 16 bytes"),
        (3, "i32:1", "expects LDS, such as lds:4096"), (3, "lds:x", "expected lds:BYTES"),
        (0, "lds:4", "expects an array"),
    ],
)  # fmt: skip
def test_refused_arguments(recorded, arguments, position, argument, message):
    recorded("gfx1201")
    given = arguments[0]
    given[position] = f"--arg={argument}"
    code, printed = call("run", FOLDER / "calls_gfx1201.co", "--kernel", "calls", "--grid", 1, *given)
    assert code == 2
    assert message in printed


def test_isa(recorded):
    recorded("gfx1151")
    code, printed = call("isa", FOLDER / "calls_gfx1151.co", "--kernel", "calls")
    assert code == 0, printed
    assert "calls gfx1151 (RDNA 3.5)" in printed
    assert "scratch_store" in printed
    code, printed = call("isa", FOLDER / "calls_gfx1151.co", "--check", "--json")
    assert '"kernel": "count"' in printed


# -- bundles and broken files ------------------------------------------------------------------------------------------


def bundle(entries: dict[str, bytes]) -> bytes:
    head = 32 + sum(24 + len(name) for name in entries)
    out, body, at = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries)), b"", -(-head // 64) * 64
    start = at
    for name, data in entries.items():
        out += struct.pack("<QQQ", at, len(data), len(name)) + name.encode()
        body, at = body + data, at + len(data)
    return out.ljust(start, b"\0") + body


def fat_program(data: bytes) -> bytes:
    """An ELF file for x86 with a section .hip_fatbin."""
    names = b"\0.hip_fatbin\0"
    at = 64 + len(names)
    headers = bytes(64) + struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, at, len(data), 0, 0, 1, 0)
    headers += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, at + len(data), 0, 64, 0, 0, 64, 3, 2)
    return header + names + data + headers


def test_bundles():
    both = bundle(
        {"host-x86_64-unknown-linux--": b"", "hipv4-amdgcn-amd-amdhsa--gfx1151": binary("gfx1151"),
         "hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-": binary("gfx1201")}
    )  # fmt: skip
    want = [("gfx1151", binary("gfx1151")), ("gfx90a", binary("gfx1201"))]
    assert code_objects(both) == want
    body = zlib.compress(both)
    plain = struct.pack("<HHI8x", 1, 0, len(both))
    sized = struct.pack("<HHII8x", 2, 0, 24 + len(body), len(both))
    wide = struct.pack("<HHQQ8x", 3, 0, 32 + len(body), len(both))
    for header in (plain, sized, wide):
        assert code_objects(b"CCOB" + header + body) == want
    assert code_objects(fat_program(both.ljust(8192, b"\0") + both)) == want * 2
    assert code_objects(fat_program(b"CCOB" + sized + body + both)) == want * 2


def test_a_bundle_of_several_gpus(recorded):
    recorded("gfx1201")
    both = bundle({f"hip-amdgcn-amd-amdhsa-unknown-{gpu}": binary(gpu) for gpu in GPUS})
    with pytest.raises(ArgumentError, match="code for gfx1151, gfx1201: say with gpu"):
        disassemble(both)
    assert disassemble(both, "gfx1201").elf == binary("gfx1201")
    generic = bundle({"hip-amdgcn-amd-amdhsa-unknown-gfx12-generic": binary("gfx1201")})
    assert disassemble(generic, "gfx1200").gpu.name == "gfx1200"
    with pytest.raises(ArgumentError, match="gfx12-generic, not for gfx1151"):
        disassemble(generic, "gfx1151")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda b: b[:40], ArgumentError, "cut off or broken$"),
        (lambda b: b.replace(b".name", b".nome"), ArgumentError, "cut off or broken$"),
        (lambda b: b[:48] + b"\x7f" + b[49:], UnsupportedError, r"unknown processor \(number 0x7f\), which is none"),
        (lambda b: b[:7] + b"\x41" + b[8:], UnsupportedError, "not for AMD's ROCm runtime"),
        (lambda b: b[:8] + b"\x00" + b[9:], UnsupportedError, "versions 3 to 6"),
        (lambda b: b[:16] + b"\x01" + b[17:], UnsupportedError, "ld.lld -shared"),
        (lambda b: b[:18] + b"\x3e" + b[19:], ArgumentError, "no code for AMD's GPUs"),
        (lambda b: b.replace(b"AMDGPU\0", b"AMDGPX\0"), UnsupportedError, "no metadata note"),
        (lambda b: b"CCOB" + struct.pack("<HHII8x", 2, 7, 64, 64) + bytes(40), UnsupportedError, "compression 7"),
        (lambda b: b"CCOB" + struct.pack("<HH", 9, 0) + bytes(40), UnsupportedError, "version 9"),
    ],
)
def test_files_that_cannot_be_read(recorded, change, error, message):
    recorded("gfx1151")
    with pytest.raises(error, match=message):
        disassemble(change(binary("gfx1151")))


def test_objdumps_that_do_not_help(tmp_path, monkeypatch):
    monkeypatch.setenv(objdump.VARIABLE, "no-such-objdump")
    with pytest.raises(ArgumentError, match="'no-such-objdump', which is no program"):
        disassemble(binary("gfx1151"))
    old = tmp_path / "llvm-objdump-3"
    old.write_text(
        '#!/bin/sh\ncase $1 in --version) echo "LLVM version 3.0";; *) echo "unknown target" >&2; exit 1;; esac\n'
    )
    old.chmod(0o755)
    monkeypatch.setenv(objdump.VARIABLE, str(old))
    with pytest.raises(UnsupportedError, match=r"for gfx1151 \(llvm-objdump-3 3.0: unknown target\): install a newer"):
        disassemble(binary("gfx1151"))


def test_a_jump_to_nowhere_says_so(recorded):
    recorded("gfx1151")
    code = disassemble(binary("gfx1151"), kernel="calls")
    text = code.text.replace("s_getpc_b64", "s_nop 0\n\ts_getpc_b64", 1)
    assert text != code.text
    with pytest.raises(EmulationError):
        run_calls(Program(text, code.gpu, "calls", elf=code.elf), 256)
