"""Threads that all call a function before anybody did, in a process of its own."""

from __future__ import annotations

import fresh_process
import pytest

pytest.importorskip("torch")

SCRIPT = """
import sys, threading
import torch, laneloom

sys.setswitchinterval(1e-5)
x = torch.ones(16, 16, dtype=torch.float16)
one = torch.ones(1, dtype=torch.int32)
CALLS = [
    lambda: laneloom.attention_decode(x[None, :1, None], x[None, :, None], x[None, :, None], cache_lengths=one),
    lambda: laneloom.flash_attention(x[None, None], x[None, None], x[None, None]),
    lambda: laneloom.transform3d(x.double().expand(16, 16, 16), x.double()),
    lambda: laneloom.matmul(x, x), lambda: laneloom.matmul(x, x), lambda: laneloom.matmul(x, x),
    lambda: laneloom.gemm(x, x), lambda: laneloom.gemm_chain(x, x, x),
]
together = threading.Barrier(len(CALLS))

def work(call):
    together.wait()
    try:
        call()
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__} {error}\\n")  # in one piece

threads = [threading.Thread(target=work, args=(call,)) for call in CALLS]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_call_first_get_whole_modules(tmp_path):
    """Each is told that there is no GPU for it, not that a module is half there."""
    script = tmp_path / "threads.py"
    script.write_text(SCRIPT)
    status, said = fresh_process.run(script, 120)
    assert status == 0, said
    assert len(said.splitlines()) == 8, said
    assert not [line for line in said.splitlines() if not line.startswith(("UnsupportedError", "ArgumentError"))], said
