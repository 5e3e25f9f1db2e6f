"""laneloom.patched as a decorator of what is more than a function."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.errors import ArgumentError  # noqa: E402

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
