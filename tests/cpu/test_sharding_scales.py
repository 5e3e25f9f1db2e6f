"""What of a product with scales of blocks along K may be sharded: no shard cuts a block, or has scales of another."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch without distributed", allow_module_level=True)

from torch.distributed.tensor import Replicate, Shard  # noqa: E402

from laneloom.ops import sharding  # noqa: E402

WHOLE = Replicate()


def rules(rule, *shapes, given):
    inputs = [None if shape is None else SimpleNamespace(shape=shape) for shape in shapes]
    return [(outputs[0], [x for x in placed if x is not None]) for outputs, placed in rule(*inputs, given=given)]


def gemm_rules(scale_a, scale_b, c=None, a=(256, 384), b=(384, 512)):
    shapes = [a, b, c, None, None, None, None, None, None, scale_a, scale_b]
    return rules(sharding._gemm, *shapes, given=len(shapes))


def test_rows_and_columns_with_scales_of_their_own():
    assert gemm_rules((256, 3), (3, 512)) == [
        (WHOLE, [WHOLE] * 4),
        (Shard(0), [Shard(0), WHOLE, Shard(0), WHOLE]),
        (Shard(1), [WHOLE, Shard(1), WHOLE, Shard(1)]),
    ]


def test_as_many_blocks_as_columns_do_not_mix_the_axes_up():
    found = gemm_rules((256, 3), (3, 3), b=(384, 3))
    assert (Shard(1), [WHOLE, Shard(1), WHOLE, Shard(1)]) in found


def test_blocks_of_rows_and_columns_stay_together():
    assert gemm_rules((2, 3), (3, 4)) == [(WHOLE, [WHOLE] * 4)]
    assert gemm_rules((256, 3), (3, 4), c=(256, 512))[1:] == [(Shard(0), [Shard(0), WHOLE, Shard(0), Shard(0), WHOLE])]


def test_batches():
    found = gemm_rules((256, 3), (8, 3, 4), a=(8, 256, 384))
    assert (Shard(0), [Shard(0), WHOLE, WHOLE, Shard(0)]) in found
    assert (Shard(1), [Shard(1), WHOLE, Shard(0), WHOLE]) in found


def test_groups():
    shapes = ((64, 384), (4, 384, 512), (4,), None, (64, 3))
    assert rules(sharding._grouped, *shapes, (4, 3, 512), given=6) == [
        (WHOLE, [WHOLE] * 5), (Shard(1), [WHOLE, Shard(2), WHOLE, WHOLE, Shard(2)])]  # fmt: skip
    assert rules(sharding._grouped, *shapes, (4, 3, 4), given=6) == [(WHOLE, [WHOLE] * 5)]
