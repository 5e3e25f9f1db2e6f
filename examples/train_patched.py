"""Trains a small transformer twice, with torch's kernels and with `laneloom.patched`, and compares the loss curves.

    python examples/train_patched.py                     # on a GPU
    python examples/train_patched.py --emulate gfx1201   # without one, much smaller
    python examples/train_patched.py --compile --graph   # fullgraph, then the step captured in a CUDA graph

The model predicts the next byte of its own source. Both runs start from the same weights and see the same batches. The
curves differ by rounding: the example fails where they are further apart than twice the distance from the unpatched
curve to the one in FP32.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import laneloom


class Block(nn.Module):
    """A transformer block with causal attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Bytes in, the loss of predicting each from those before it out."""

    def __init__(self, width: int, heads: int, depth: int, length: int):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        given, wanted = text[:, :-1], text[:, 1:]
        x = self.bytes(given) + self.places.weight[: given.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())


def batches(steps: int, batch: int, length: int, device: str) -> list[torch.Tensor]:
    """The same pieces of this file for every run."""
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    starts = torch.randint(len(text) - length - 1, (steps, batch), generator=torch.Generator().manual_seed(1))
    return [torch.stack([text[s : s + length + 1] for s in row]).to(device) for row in starts]


def train(model: nn.Module, data: list[torch.Tensor], dtype: torch.dtype, options: argparse.Namespace) -> list[float]:
    """The loss of each step of AdamW, in autocast."""
    device = data[0].device.type
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, capturable=options.graph)
    loss_of = torch.compile(model, fullgraph=True) if options.compile else model

    def step(text: torch.Tensor) -> torch.Tensor:
        optimiser.zero_grad(set_to_none=not options.graph)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            loss = loss_of(text)
        loss.backward()
        optimiser.step()
        return loss.detach()

    if not options.graph:
        return [step(text).item() for text in data]
    # Warm up on a side stream, as CUDA graphs ask for; then one graph is a whole step.
    static, losses = data[0].clone(), []
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        losses += [step(text).item() for text in data[:3]]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(static)
    for text in data[3:]:
        static.copy_(text)
        graph.replay()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulate", metavar="GPU", help="run on this emulated GPU, on CPU tensors")
    parser.add_argument("--always", action="store_true", help="route all that laneloom can do, measured or not")
    parser.add_argument("--compile", action="store_true", help="torch.compile(fullgraph=True)")
    parser.add_argument("--graph", action="store_true", help="capture the training step in a CUDA graph")
    parser.add_argument("--steps", type=int, help="steps of each run")
    options = parser.parse_args()
    if options.emulate and options.graph:
        parser.error("--graph: CUDA graphs need a GPU, leave out --emulate")
    if not options.emulate and not torch.cuda.is_available():
        parser.error("torch finds no GPU here: --emulate gfx1201 runs this without one, much smaller")
    device = "cpu" if options.emulate else "cuda"
    width, heads, depth, length, batch = (32, 2, 1, 16, 2) if options.emulate else (1024, 16, 4, 1024, 8)
    data = batches(options.steps or (3 if options.emulate else 100), batch, length, device)
    curves: dict[str, list[float]] = {}
    runs = {"fp32": (torch.float32, None), "torch": (torch.bfloat16, None)}
    context = laneloom.patched(always=options.always or options.emulate is not None, captured=options.graph)
    for name, (dtype, mode) in {**runs, "laneloom": (torch.bfloat16, context)}.items():
        torch.manual_seed(0)
        model = Model(width, heads, depth, length).to(device)
        emulation = laneloom.emulated(options.emulate) if options.emulate and mode else nullcontext()
        began = time.perf_counter()
        with emulation, mode or nullcontext():
            curves[name] = train(model, data, dtype, options)
        print(f"{name:9} {time.perf_counter() - began:7.2f} s, loss {curves[name][0]:.4f} to {curves[name][-1]:.4f}")
    print(context.report())
    apart, allowed = (
        max(abs(a - b) for a, b in zip(curves["torch"], curves[other], strict=True)) for other in ("laneloom", "fp32")
    )
    print(f"torch to laneloom: at most {apart:.5f}; torch in bf16 to fp32: {allowed:.5f}")
    if not apart <= 2 * allowed + 2.0**-8 * curves["fp32"][0]:
        raise SystemExit("the curves differ by more than rounding")


if __name__ == "__main__":
    main()
