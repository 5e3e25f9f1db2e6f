"""Functions that torch.compile meets before anybody called them, in a process of its own."""

from __future__ import annotations

import fresh_process
import pytest

pytest.importorskip("torch")

SCRIPT = """
import sys
import torch, laneloom
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

one = torch.int32
CALLS = {
    "transpose": lambda x: laneloom.transpose(x),
    "quantize_blocks": lambda x: laneloom.quantize_blocks(x)[1],
    "transform3d": lambda x: laneloom.transform3d(x.double().expand(16, 16, 16), x.double()),
    "flash_attention": lambda x: laneloom.flash_attention(x[None, None], x[None, None], x[None, None]),
    "attention_decode": lambda x: laneloom.attention_decode(
        x[None, :1, None], x[None, :, None], x[None, :, None], cache_lengths=torch.ones(1, dtype=one)),
    "matmul": lambda x: laneloom.matmul(x, x),
    "gemm": lambda x: laneloom.gemm(x, x),
    "grouped_matmul": lambda x: laneloom.grouped_matmul(x, x[None], torch.ones(1, dtype=one)),
    "gemm_chain": lambda x: laneloom.gemm_chain(x, x, x),
    "quantized_matmul": lambda x: laneloom.quantized_matmul(
        x, laneloom.QuantizedWeight(x.to(torch.int8), x[:, :1], "int8")),
}
assert not [name for name in sys.modules if name.startswith("laneloom.ops") and ".torch_" in name]
for name, call in CALLS.items():
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(call, fullgraph=True, backend=counter)
    with FakeTensorMode():
        for _ in range(3):
            compiled(torch.ones(16, 16, dtype=torch.float16))
    print(name, counter.frame_count)
"""


def test_the_first_call_is_compiled_once(tmp_path):
    """Not again for the modules that it imported itself, or that anybody imports later."""
    script = tmp_path / "first.py"
    script.write_text(SCRIPT)
    status, said = fresh_process.run(script, 300)
    assert status == 0, said
    counts = dict(line.split() for line in said.splitlines() if line.count(" ") == 1 and line[-1].isdigit())
    assert len(counts) == 10
    assert set(counts.values()) == {"1"}, counts
