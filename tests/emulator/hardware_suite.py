"""pytest plugin that runs tinygrad's tests of AMD instructions, whose expected values were seen on hardware, here.

Not loaded by itself. With a checkout of github.com/tinygrad/tinygrad in T:
    PYTHONPATH=tests/emulator:T python -m pytest -p hardware_suite T/test/amd/hw [--keep-record]
tinygrad's own assembler and disassembler make each test's text; this emulator runs it in place of tinygrad's.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

import hardware_record
import pytest
import test.amd.hw.helpers as helpers  # pyright: ignore[reportMissingImports]
from test.amd.disasm import disasm  # pyright: ignore[reportMissingImports]
from test.mockgpu.amd import emu  # pyright: ignore[reportMissingImports]

from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program

KERNEL = """
k:
{code}
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 256
\t\t.amdhsa_next_free_sgpr 96
\t\t.amdhsa_wavefront_size32 {wave32}
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_kernarg_size 8
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_group_segment_fixed_size 65536
\t\t.amdhsa_private_segment_fixed_size 65536
\t\t.amdhsa_enable_private_segment 1
\t.end_amdhsa_kernel
"""
_assembled: list = []
_assemble = helpers.assemble


def _remember(instructions: list) -> bytes:
    _assembled[:] = instructions
    return _assemble(instructions)


def _text() -> str:
    """The program last assembled as LLVM's assembler writes it: branches to labels, signed offsets."""
    starts = [0]
    for i in _assembled:
        starts.append(starts[-1] + len(i.to_bytes()))
    lines, labels = [], set()
    for k, i in enumerate(_assembled):
        try:
            line = disasm(i)
        except KeyError as missing:
            pytest.skip(f"tinygrad's disassembler has no text for {missing.args[0].__name__}")
        if branch := re.fullmatch(r"(s_c?branch\w*) (\d+)", line):
            offset = (int(branch[2]) ^ 0x8000) - 0x8000
            target = starts.index(starts[k + 1] + 4 * offset)
            labels.add(target)
            line = f"{branch[1]} .LBB0_{target}"
        if (offset := re.search(r"^s_.* offset:(0x1f\w{4})$", line)) is not None:
            line = line.replace(offset[1], str(int(offset[1], 16) - (1 << 21)))
        lines.append(line)
    return "\n".join(f".LBB0_{k}:\n\t{line}" if k in labels else f"\t{line}" for k, line in enumerate(lines))


def _run(lib, size, gx, gy, gz, lx, ly, lz, args, rsrc2=0, scratch=0, arch="rdna3", user_data=None) -> int:
    """tinygrad's `run_asm`: the program last assembled, on the buffer that the first argument points to."""
    caller = sys._getframe(1).f_globals
    code = _text()
    if arch == "cdna":  # its disassembler writes s0 where an offset is left out
        code = code.replace("s[80:81], s0", "s[80:81], 0x0")
    text = KERNEL.format(code=code, wave32=int("WAVE64" not in caller))
    gpu = {"rdna3": "gfx1151", "rdna4": "gfx1201", "cdna": "gfx950"}[arch]
    out = ctypes.c_uint64.from_address(args).value
    region = Region("out", out, helpers._out_bytes(lx))
    launch(
        Program(text, gpu), (gx, gy, gz), ctypes.string_at(args, 8), workgroup_size=(lx, ly, lz), regions=[region]
    )
    return 0


helpers.assemble, helpers.run_asm, emu.run_asm = _remember, _run, _run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-record", action="store_true", help="write what the suite gave to results/ and docs/")


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if config.getoption("--keep-record"):
        hardware_record.write(Path(helpers.__file__).parent, terminalreporter.stats)
