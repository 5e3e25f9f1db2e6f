"""What quantised blocks have to be: torch's conversion of x / scale on the CPU; numbers that are hard to round."""

from __future__ import annotations

import torch

import laneloom

FP8, BF8 = torch.float8_e4m3fn, torch.float8_e5m2


def expected(x: torch.Tensor, rows: int = 1, dtype=FP8) -> tuple[torch.Tensor, torch.Tensor]:
    """Q and the scales by torch: x padded to whole blocks, divided in FP32, converted."""
    *batch, m, k = x.shape
    tiles, blocks = -(-m // rows), -(-k // 128)
    whole = torch.zeros(*batch, tiles * rows, blocks * 128)
    whole[..., :m, :k] = x.float()
    parts = whole.view(*batch, tiles, rows, blocks, 128)
    largest = torch.where(parts.isfinite(), parts.abs(), 0).amax((-3, -1))
    scale = torch.where(largest == 0, 1.0, (largest / torch.finfo(dtype).max).clamp(min=2.0**-126))
    quotient = (parts / scale[..., :, None, :, None]).view(whole.shape)[..., :m, :k]
    if dtype is FP8:  # torch of some versions makes infinity the largest number
        quotient = torch.where(quotient.isinf(), torch.nan, quotient)
    return quotient.to(dtype), scale


def check(x: torch.Tensor, rows: int = 1, dtype=FP8) -> tuple[torch.Tensor, torch.Tensor]:
    q, scale = laneloom.quantize_blocks(x, rows, dtype=dtype)
    wanted, wanted_scale = expected(x.cpu(), rows, dtype)
    assert q.is_contiguous()
    assert scale.is_contiguous()
    assert q.dtype is dtype
    q, scale = q.cpu(), scale.cpu()
    assert torch.equal(scale, wanted_scale)
    is_nan = wanted.float().isnan()
    assert torch.equal(q.float().isnan(), is_nan)
    assert torch.equal(q.view(torch.uint8)[~is_nan], wanted.view(torch.uint8)[~is_nan])
    return q, scale


def ties(dtype) -> torch.Tensor:
    """[blocks, 128]: the numbers of a dtype, what lies halfway between two, and FP32's neighbours of that, of both
    signs; every block has the largest number, and a scale of 1."""
    largest = torch.finfo(dtype).max
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    codes = codes[codes.isfinite() & (codes >= 0)].unique()
    halves = (codes[1:] + codes[:-1]) / 2
    around = [torch.nextafter(halves, torch.tensor(to)) for to in (0.0, torch.inf)]
    numbers = torch.cat((codes, halves, *around))
    numbers = torch.cat((numbers, -numbers))
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % 127)).view(-1, 127)
    return torch.cat((torch.full((len(numbers), 1), largest), numbers), 1)


def hard_numbers(dtype, dtype_q) -> torch.Tensor:
    """[2, 9, 300]: ties under scales of 1 and others, numbers of all sizes, zeros, subnormal blocks; ragged."""
    blocks = ties(dtype_q)[:18]
    x = torch.randn(54, 128) * torch.logspace(-7, 3, 128)
    x[: len(blocks)] = blocks
    x[18 : 18 + len(blocks)] = blocks * torch.exp2(torch.randn(len(blocks), 1) * (3 if dtype is torch.float16 else 40))
    x[40], x[41], x[42] = 0.0, -0.0, torch.randint(-20, 20, (128,)) * 2.0**-149
    x[43] = torch.randn(128) * (2.0**-17 if dtype is torch.float16 else 2.0**-124)
    x[44], x[45, 3::7], x[46, 5], x[46, 6] = torch.nan, torch.nan, torch.inf, -torch.inf
    return x.view(18, 384)[:, :300].view(2, 9, 300).to(dtype)
