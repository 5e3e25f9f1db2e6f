"""laneloom.patched as a decorator of what is more than a function, and entered again and again."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import laneloom  # noqa: E402
from laneloom.errors import ArgumentError  # noqa: E402
from laneloom.pytorch import measurements, routing  # noqa: E402

X = torch.ones(16, 16, dtype=torch.float16)


def test_a_generator_is_patched_while_it_runs():
    p = laneloom.patched(always=True)

    @p
    def tokens(count):
        """Products, one after another."""
        for _ in range(count):
            yield X @ X

    with laneloom.emulated("gfx1201"):
        for i, _ in enumerate(tokens(3), 1):
            _ = X @ X  # between, nothing is
            assert p.report().routed == i
    assert tokens.__doc__ == "Products, one after another."


def test_coroutines_are_refused():
    """In the thread of a coroutine that waits others run, which would be patched as well."""

    async def coroutine():
        return X @ X

    async def generator():
        yield X @ X

    for function in (coroutine, generator):
        with pytest.raises(ArgumentError, match=f"^patched: {function.__name__} is a coroutine"):
            laneloom.patched()(function)


def test_entered_at_each_step_it_decides_once(monkeypatch):
    """Until what is known of the GPU is read again."""
    weigh, weighed = routing.weigh, []
    monkeypatch.setattr(routing, "weigh", lambda *args, **options: weighed.append(args) or weigh(*args, **options))
    a, b = torch.ones(9, 16, dtype=torch.float16), torch.ones(16, 16, dtype=torch.float16)
    with laneloom.emulated("gfx1201"):
        for ratio in (1.2, 0.8):
            of = measurements.Measurement("matmul", "fp16 nt", (1, 16, 16, 16), 20.0, ratio)
            table = measurements.Table((of,))
            monkeypatch.setattr(routing, "table_of", lambda name, table=table: table)
            reports = []
            for _ in range(3):
                with laneloom.patched() as p:
                    F.linear(a, b)
                reports.extend(p.report().entries)
            assert [r.routed for r in reports] == [ratio > 1] * 3
            assert len({r.reason for r in reports}) == 1
    assert len(weighed) == 2
