"""What of a product with scales along K may be sharded: no shard cuts a block or a group, or has scales of another."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch without distributed", allow_module_level=True)

from torch.distributed.tensor import Partial, Replicate, Shard  # noqa: E402

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
    of_rows = (*shapes[:4], (64,), (4, 512))
    assert rules(sharding._grouped, *of_rows, given=6) == [
        (WHOLE, [WHOLE] * 5), (Shard(1), [WHOLE, Shard(2), WHOLE, WHOLE, Shard(1)])]  # fmt: skip


def quantized_rules(x, values, scales, zeros=None, bias=None, group=32):
    shapes = [x, values, scales, zeros, bias]
    inputs: list = [None if shape is None else SimpleNamespace(shape=shape) for shape in shapes]
    inputs[0].mesh = SimpleNamespace(size=lambda: 4)
    placed = sharding._quantized(*inputs, "int4", group, given=7)
    return [(outputs[0], [x for x in inputs if x is not None]) for outputs, inputs in placed]


def test_weights_of_few_bits_are_sharded_along_whole_groups_of_k():
    rows, columns = (Shard(0), [Shard(0), *[WHOLE] * 2]), (Shard(1), [WHOLE, Shard(0), Shard(0)])
    along_k = (Partial(), [Shard(1)] * 3)
    assert quantized_rules((64, 256), (128, 128), (128, 8)) == [(WHOLE, [WHOLE] * 3), rows, columns, along_k]
    assert quantized_rules((64, 192), (128, 96), (128, 6)) == [(WHOLE, [WHOLE] * 3), rows, columns], "1.5 groups"
    of_rows = quantized_rules((64, 256), (128, 128), (128, 1), group=0)
    assert of_rows[3] == (Partial(), [Shard(1), Shard(1), WHOLE])


def test_weights_of_few_bits_with_all_terms():
    found = quantized_rules((2, 64, 256), (2, 128, 128), (2, 128, 8), (2, 128, 8), (128,))
    assert found[1] == (Shard(0), [*[Shard(0)] * 4, WHOLE]), "experts"
    assert found[3] == (Shard(2), [WHOLE, *[Shard(1)] * 3, Shard(0)])
    assert len(found) == 4, "a bias is added once"


def test_rows_in_groups_and_weights_of_few_bits_are_sharded_along_columns():
    shapes = [(64, 256), (5, 128, 128), (5, 128, 8), None, (5, 128)]
    tensors = [None if shape is None else SimpleNamespace(shape=shape) for shape in shapes]
    ends = SimpleNamespace(shape=(5,))
    placed = sharding._quantized(*tensors, "int4", 32, None, None, ends, given=10)
    assert [(outputs[0], inputs) for outputs, inputs in placed] == [
        (WHOLE, [*[WHOLE] * 3, None, WHOLE, *[None] * 4, WHOLE]),
        (Shard(1), [WHOLE, Shard(1), Shard(1), None, Shard(1), *[None] * 4, WHOLE])]  # fmt: skip
