"""What holds for every kernel that these tests compile."""

from __future__ import annotations

import pytest

from laneloom.codegen import cache
from laneloom.isa.check_code import read_code
from laneloom.isa.check_wait_states import check_wait_states
from laneloom.isa.check_wmma import check_wmma_states

_checked: set[str] = set()


@pytest.fixture(autouse=True)
def wait_states(monkeypatch):
    """Code for CDNA has what the hardware leaves to it between instructions: LLVM does not see to all of it."""
    fetch = cache.fetch

    def fetched(key, build):
        code = fetch(key, build)
        check = check_wmma_states if code.gpu.is_cdna5 else check_wait_states
        if code.gpu.family.startswith("CDNA") and code.asm not in _checked:
            found = [f"line {f.line}: {f.what}" for part in read_code(code.asm) for f in check(part)]
            assert not found, "\n".join(found)
            _checked.add(code.asm)
        return code

    monkeypatch.setattr(cache, "fetch", fetched)
