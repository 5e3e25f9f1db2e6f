"""Parts of reading binaries that need no code object: MessagePack, YAML, and which llvm-objdump is taken."""

import struct
from pathlib import Path

import pytest

from laneloom.isa import objdump
from laneloom.isa.notes import to_yaml, unpack


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
