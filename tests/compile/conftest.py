"""What holds for every kernel that these tests compile."""

from __future__ import annotations

import pytest

from laneloom.codegen import cache
from laneloom.isa.check_code import read_code
from laneloom.isa.check_wait_states import check_wait_states

_checked: set[str] = set()


@pytest.fixture(autouse=True)
def wait_states(monkeypatch):
    """Code for CDNA has the wait states that the hardware leaves to it: LLVM does not see to all of them."""
    fetch = cache.fetch

    def fetched(key, build):
        code = fetch(key, build)
        if (code.gpu.vendor, code.gpu.major) == ("amd", 9) and code.asm not in _checked:
            found = [f"line {f.line}: {f.what}" for part in read_code(code.asm) for f in check_wait_states(part)]
            assert not found, "\n".join(found)
            _checked.add(code.asm)
        return code

    monkeypatch.setattr(cache, "fetch", fetched)
