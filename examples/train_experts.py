"""Trains a layer of a mixture of experts by `laneloom.grouped_matmul`, and by a loop over the experts, and compares.

    python examples/train_experts.py                     # on a GPU
    python examples/train_experts.py --emulate gfx1151   # without one, much smaller

Every token goes to its two best experts, each a gated network (SwiGLU). Rows are sorted by expert, so that an expert's
lie together; `ends`, where they end, stays on the GPU, and all three products are one launch each, forwards and
backwards, however the tokens are spread. The layer learns what another one of the same shape computes. Both runs start
from the same weights; the example fails where their curves are further apart than twice the distance from the loop's
curve to the one in FP32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

import laneloom

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
EXPERTS_OF_TOKEN = 2


def by_loop(rows: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """What a grouped product gives, an expert at a time; the host waits for `ends`."""
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([x @ expert for x, expert in zip(rows.split(sizes), experts, strict=True)])


class Experts(nn.Module):
    """Tokens [T, width] through the experts that a router chooses."""

    def __init__(self, experts: int, width: int, inner: int):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.randn(experts, width, inner) / width**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, tokens: torch.Tensor, product: Product) -> torch.Tensor:
        shares, chosen = self.router(tokens).float().softmax(-1).topk(EXPERTS_OF_TOKEN)
        order = chosen.flatten().argsort(stable=True)  # rows, by expert
        counts = F.one_hot(chosen.flatten(), self.gate.shape[0]).sum(0)  # unlike bincount no wait for its length
        ends = counts.cumsum(0).int()
        rows = tokens[order // EXPERTS_OF_TOKEN]
        hidden = F.silu(product(rows, self.gate, ends)) * product(rows, self.up, ends)
        weighted = product(hidden, self.down, ends) * shares.flatten()[order, None].to(tokens.dtype)
        return torch.zeros_like(tokens).index_add(0, order // EXPERTS_OF_TOKEN, weighted)


def train(product: Product, dtype: torch.dtype, device: str, steps: int, size: tuple[int, int, int, int]
          ) -> tuple[list[float], float]:  # fmt: skip
    """The losses, and the seconds of a step, the first two aside."""
    tokens, experts, width, inner = size
    torch.manual_seed(0)
    teacher, layer = (Experts(experts, width, inner).to(device, dtype) for _ in range(2))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
    data = torch.randn(steps, tokens, width).to(device, dtype)
    with torch.no_grad():
        wanted = [teacher(x, by_loop) for x in data]
    losses, seconds = [], []
    for x, y in zip(data, wanted, strict=True):
        begin = time.perf_counter()
        loss = F.mse_loss(layer(x, product).float(), y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return losses, sum(seconds[2:]) / max(len(seconds) - 2, 1)


def main(words: list[str] | None = None) -> list[float]:
    """The losses of the run with laneloom."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulate", metavar="GPU", help="run as machine code of this GPU, on the CPU")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args(words)
    if not options.emulate and not torch.cuda.is_available():
        parser.error("torch finds no GPU here: --emulate gfx1151 runs this without one, much smaller")
    device, size = ("cpu", (40, 4, 32, 48)) if options.emulate else ("cuda", (8192, 64, 2048, 768))
    steps = options.steps or (6 if options.emulate else 50)
    with laneloom.emulated(options.emulate) if options.emulate else nullcontext():
        ours, own_seconds = train(laneloom.grouped_matmul, torch.bfloat16, device, steps, size)
    theirs, seconds = train(by_loop, torch.bfloat16, device, steps, size)
    exact, _ = train(by_loop, torch.float32, device, steps, size)
    print("step  FP32    loop    grouped")
    for step, losses in enumerate(zip(exact, theirs, ours, strict=True)):
        print(f"{step:4}", *(f"{loss:.4f}" for loss in losses), sep="  ")
    if not options.emulate:
        print(f"a step: {1e3 * seconds:.1f} ms by the loop, {1e3 * own_seconds:.1f} ms by grouped_matmul")
    apart, rounding = (max(abs(x - y) for x, y in zip(theirs, other, strict=True)) for other in (ours, exact))
    if apart > 2 * rounding + 2.0**-8 * exact[0]:
        raise SystemExit(f"the curves are {apart:.4f} apart, rounding makes {rounding:.4f}")
    return ours


if __name__ == "__main__":
    main()
