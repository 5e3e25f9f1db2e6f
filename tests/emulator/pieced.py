"""FP32 in pieces: operands that lie in any way, and what their copies must keep, of kernels emulated and on a GPU."""

from __future__ import annotations

import torch

IN_PIECES = [("tf32", 2, 2.0**-22), ("bf16", 3, 2.0**-24), ("tf32", 1, 2.0**-11)]  #: and the share of x that is left


def lying(x, order):
    """The values of x [rows, K]: "k" contiguous along K, "r" along the rows' axis, both with a pitch of multiples of 4;
    "n" along neither; "s" along K, from an address that 16 does not divide."""
    rows, k = x.shape
    if order == "k":
        return x.new_empty(rows, -(-k // 4) * 4 + 4)[:, :k].copy_(x)
    if order == "r":
        return x.new_empty(k, -(-rows // 4) * 4 + 4)[:, :rows].mT.copy_(x)
    if order == "n":
        return x.new_empty(rows, k, 3)[..., 1].copy_(x)
    return x.new_empty(rows * k + 1)[1:].view(rows, k).copy_(x)


def numbers(rows, k, order, device):
    """Normal ones times powers of two."""
    generator = torch.Generator(device).manual_seed(rows + k)
    x = torch.randn(rows, k, generator=generator, device=device)
    powers = torch.randint(-80, 80, x.shape, generator=generator, device=device)
    return lying(x * torch.exp2(powers.float()), order)


def assert_adds_up(pieces, x, kind, left):
    assert ((pieces.double().sum(0) - x.double()).abs() <= left * x.double().abs()).all()
    if kind == "tf32":
        assert (pieces.contiguous().view(torch.int32) & 0x1FFF == 0).all(), "wgmma would cut off more bits"


def assert_extremes_survive(copies_of, order, device):
    """What is not finite stays so, once, and the largest number does not overflow."""
    inf, largest = float("inf"), 3.4028235e38
    x = torch.zeros(5, 8, device=device)
    x[1, :5] = torch.tensor([inf, -inf, largest, -largest, float("nan")])
    x.view(torch.int32)[1, 5] = 0x7FFFFFFF  # the NaN that NVIDIA's arithmetic makes
    for pieces in copies_of(lying(x, order), lying(x, order)):
        assert torch.equal(pieces[0, 1, :2].float(), x[1, :2])
        assert pieces[0, 1, 4:6].isnan().all()
        assert (pieces[1:, 1, [0, 1, 4, 5]].nan_to_num() == 0).all()
        largest_too = pieces[:, 1, 2:4].double().sum(0)
        assert ((largest_too - x[1, 2:4].double()).abs() <= 2.0**-20 * largest).all()
