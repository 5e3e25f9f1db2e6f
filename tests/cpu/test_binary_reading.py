"""Parts of reading binaries: MessagePack, YAML, which llvm-objdump is taken; products of CDNA there and back."""

import struct
from pathlib import Path

import pytest

from laneloom.codegen import assemble
from laneloom.errors import UnsupportedError
from laneloom.gpu import get_gpu
from laneloom.isa import objdump
from laneloom.isa.disassembly import _no_kernel, _pieces, disassemble
from laneloom.isa.elf import FUNCTION, Section, Symbol, read_sections
from laneloom.isa.halves import with_halves
from laneloom.isa.notes import read_metadata, to_yaml, unpack
from laneloom.isa.offload_bundle import code_objects
from laneloom.ops.matmul.execute import code_object
from laneloom.ops.matmul.problem import MatmulProblem


def test_message_pack():
    data = (
        b"\x86\xa1a\x01\xa1b\xff\xa1c\xcd\x01\x02\xa1d\x93\xc2\xc3\xc0\xd9\x01e\xcb\x3f\xf8\0\0\0\0\0\0\xa1f\xd3"
        + struct.pack(">q", -5)
    )
    want = {"a": 1, "b": -1, "c": 0x102, "d": [False, True, None], "e": 1.5, "f": -5}
    assert unpack(data) == want
    assert unpack(b"\xdc\x00\x02\xde\x00\x01\xda\x00\x01x\xce\0\0\0\x07\xc4\x02hi") == [{"x": 7}, b"hi"]
    with pytest.raises(ValueError, match="0xc7"):
        unpack(b"\xc7\x01")
    assert to_yaml({"a": [{"b": 1, "c": []}, "x*"], "no": {"d": "on"}}) == (
        '---\na:\n  - b: 1\n    c: []\n  - "x*"\nno:\n  d: "on"\n...'
    )


def test_objdumps_are_tried_newest_first(tmp_path, monkeypatch):
    for name in ("llvm-objdump-9", "llvm-objdump-19", "llvm-objdump", "llvm-objdump-x"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.delenv(objdump.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = [Path(p).name for p in objdump.find_objdumps() if p.startswith(str(tmp_path))]
    assert found == ["llvm-objdump", "llvm-objdump-19", "llvm-objdump-9"]


def test_every_note_counts():
    """A linker puts the notes of its object files behind one another: rocBLAS has one for each kernel."""

    def note(*names: bytes) -> bytes:
        kernels = b"".join(b"\x81\xa5.name\xa1" + name for name in names)
        body = b"\x82\xaeamdhsa.kernels" + bytes([0x90 + len(names)]) + kernels + b"\xa1t\xa1" + names[0]
        head = struct.pack("<III", 7, len(body), 32)
        return head + b"AMDGPU\0\0" + body.ljust(-(-len(body) // 4) * 4, b"\0")

    sections = [Section(".note", 7, 0, note(b"a", b"b") + note(b"c")), Section(".note", 7, 0, note(b"d"))]
    assert read_metadata(sections) == {"amdhsa.kernels": [{".name": n} for n in "abcd"], "t": "a"}
    assert read_metadata([]) is None


class _Counted(bytes):
    """Bytes that know how many of them were copied and searched."""

    touched = 0

    def __getitem__(self, key):  # pyright: ignore[reportIncompatibleMethodOverride]
        part = super().__getitem__(key)
        self.touched += len(part) if isinstance(part, bytes) else 1
        return part

    def find(self, wanted, start):  # pyright: ignore[reportIncompatibleMethodOverride]
        place = super().find(wanted, start)
        self.touched += (place if place >= 0 else len(self)) - start
        return place


def test_a_library_of_many_bundles_is_read_once():
    """ggml's HIP back end has 140 in 1.2 GB: what stood behind each was copied, and searched for the other kind."""
    name = b"hip-amdgcn-amd-amdhsa-unknown-gfx1151"
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<4Q", 1, 128, 4, len(name)) + name
    library = _Counted(b"".join(head.ljust(128, b"\0") + struct.pack("<I", k) for k in range(100)))
    assert code_objects(library) == [("gfx1151", struct.pack("<I", k)) for k in range(100)]
    assert library.touched < 3 * len(library)


@pytest.mark.parametrize(
    ("text", "words", "want"),
    [
        ("v_or_b16 v5, v3, v3", "D7634805 02020703", "v_or_b16 v5, v3, v3 op_sel:[1,0,1]"),
        ("v_cvt_f32_f16_e64 v3, |v4|", "D58B0903 02010104", "v_cvt_f32_f16_e64 v3, |v4| op_sel:[1,0]"),
        ("v_cmpx_lt_f16_e64 v4, v1", "D481107E 02020304", "v_cmpx_lt_f16_e64 v4, v1 op_sel:[0,1,0]"),
        ("v_cndmask_b16 v2, v4, v2, s1", "D65D5002 00060504", "v_cndmask_b16 v2, v4, v2, s1 op_sel:[0,1,1]"),
        ("v_add_co_u32 v1, s8, s0, v3", "D7000801 02020600", "v_add_co_u32 v1, s8, s0, v3"),
        ("v_add_nc_u16 v0, v0, v0 op_sel:[1,0,0]", "D7030800 00020100", "v_add_nc_u16 v0, v0, v0 op_sel:[1,0,0]"),
        ("s_load_b64 s[2:3], s[0:1], 0x0", "F4040080 F8000000", "s_load_b64 s[2:3], s[0:1], 0x0"),
        (
            "v_max_f16_e32 v4, v132/*Invalid register, operand has 'VGPR_32_Lo128' register class*/, v4",
            "72090904", "v_max_f16_e32 v4, v4.h, v4",
        ),
    ],
)  # fmt: skip
def test_halves_that_the_disassembler_leaves_out(text, words, want):
    assert with_halves(text, words) == want


def test_gaps_between_functions_are_no_code():
    """Where every piece of code has a name, one kernel of a library is decoded alone."""
    code, filler = struct.pack("<I", 0xBFB00000), struct.pack("<3I", 0, 0xBF800000, 0xBF9F0000)
    section = Section(".text", 1, 0, code + filler + code + filler, 256, 4)
    symbols = [Symbol(name, FUNCTION, 1, 1, at, 4) for name, at in (("a", 256), ("b", 272))]
    named = [(256, 260, "a"), (272, 276, "b")]
    assert _pieces([section], symbols, []) == named
    section = Section(".text", 1, 0, code + filler + code + filler + code, 256, 4)
    assert _pieces([section], symbols, []) == [*named, (276, 292, "")]


def test_of_many_kernels_few_are_named():
    names = [f"kernel_{k}" for k in range(2000)]
    said = _no_kernel("el_19", names)
    assert said.startswith("no kernel 'el_19' among the 2,000 of this file, 111 of them contain that, such as ")
    assert len(said) < 250
    assert len(_no_kernel("softmax", names)) < 250
    assert _no_kernel("c", ["a", "b"]) == "no kernel 'c' in this file: it holds a, b"


@pytest.mark.parametrize("gpu", ["gfx908", "gfx90a"])
def test_a_product_of_cdna_assembles_to_the_same_code(gpu):
    """CDNA 1 counts registers by fours and says nothing of where accumulation registers begin."""
    first = code_object(MatmulProblem.contiguous(100, 200, 300), get_gpu(gpu))
    try:
        again = assemble(disassemble(first.binary).text, gpu)
    except UnsupportedError as error:
        pytest.skip(str(error))
    one, other = (next(s.data for s in read_sections(c.binary) if s.name == ".text") for c in (first, again))
    assert one[: first.code_bytes] == other[: again.code_bytes]
    assert (again.vgprs, again.agprs, again.scratch_bytes) == (first.vgprs, first.agprs, first.scratch_bytes)
