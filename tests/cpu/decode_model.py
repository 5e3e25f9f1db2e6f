"""Hopper's attention over a cache on decode_model.h: the kernels' own text, launched as their `prepare` does."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from hopper_model import HEADER, built, in_own_process, tensor_map

from laneloom import verify
from laneloom.gpu import get_gpu
from laneloom.ops.attention import hopper_decode_call, reference
from laneloom.ops.attention.config_decode import ROWS, DecodeProblem
from laneloom.ops.attention.hopper import factors
from laneloom.ops.attention.hopper_decode_call import Config
from laneloom.ops.attention.kernels import hopper_decode, hopper_decode_ranges

GPU = get_gpu("sm_90a")
MODEL = HEADER.with_name("decode_model.h")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MODULES = {x.__name__.rpartition(".")[2]: x for x in (hopper_decode, hopper_decode_ranges)}
GUARD = 64  #: elements in front of what a kernel writes and behind it
LAUNCH = """
#if SOFTCAP
#define MORE , c->slope2
#else
#define MORE
#endif
struct Call {
  TensorMap *k, *v; const u16* q; u16* out; float *lse, *parts, *parts_lse; int* tickets; const int *lengths, *table;
  i64 s[3]; float scale2, slope2; int n[8];
};
extern "C" void launch(int grid, int cluster, int together, int bytes, int backwards, int seed, const Call* c) {
  const int* n = c->n;
  run(grid, 160, cluster, together, bytes, backwards, seed, [=] {
    KERNEL(*c->k, *c->v, c->q, c->out, c->lse, c->parts, c->parts_lse, c->tickets, c->lengths, c->table, c->s[0],
           c->s[1], c->s[2], c->scale2, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7] MORE);
  });
}
"""


class Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in "k v q out lse parts parts_lse tickets lengths table".split()),
        ("s", ctypes.c_longlong * 3), ("scale2", ctypes.c_float), ("slope2", ctypes.c_float),
        ("n", ctypes.c_int * 8),
    )  # fmt: skip


@dataclass
class Model:
    """Stands for NVRTC and for the launch where the kernels' modules look for them.

    change: what becomes of the kernel's text first. The number of a launch says which program comes first, whether
    some run beside each other, and how threads take turns."""

    folder: Path
    monkeypatch: object
    change: Callable[[str], str] = lambda text: text
    number: int = 0
    libraries: dict[str, ctypes.CDLL] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(hopper_decode_call, "compile_cuda", self.compile_cuda)
        for module in MODULES.values():
            self.monkeypatch.setattr(module, "prepared", self.prepared)

    def compile_cuda(self, text, gpu, *, constants, num_warps, lds_bytes, name) -> ctypes.CDLL:
        schedule = name.removesuffix(".cu")
        constants |= {"KERNEL": f"attention_{schedule}", "CTAS": 4}
        if (key := repr((name, constants))) not in self.libraries:
            folder = self.folder / str(len(self.libraries))
            folder.mkdir()
            # Static memory comes first on a GPU: what a launch asks for begins anywhere.
            text = self.change(text)
            text = text.replace("extern __shared__ char memory[];", "char* const memory = arena + MEMORY_AT;")
            self.libraries[key] = built(text, constants, LAUNCH, folder, MODEL)
        return self.libraries[key]

    def prepared(self, problem, config, gpu, tensors, last, parts_of, *, cluster=1):
        """As hopper_decode_call.prepared, on the model."""
        library = hopper_decode_call.compiled(problem, config, gpu)
        seen = problem.abreast(config.abreast)
        _, *sizes = seen.decode_scalars()
        parts, counts = parts_of(cluster)
        rows = parts * min(ROWS, seen.group * seen.queries)

        def run(operands) -> None:
            out, lse = operands["out"], operands["lse"]
            room, tickets = Guarded((rows * (problem.d_v + 1),), torch.float32), Guarded((counts,), torch.int32, 0)
            maps = [
                tensor_map(hopper_decode_call._abreast(operands[name], config.abreast), config.box(problem))
                for name in "kv"
            ]
            q, table = operands["q"], operands["table"]
            scale2, *slope2 = factors(problem)
            call = Call(
                *map(ctypes.addressof, maps), q.data_ptr(), out.data_ptr(), lse.data_ptr(), room.inside.data_ptr(),
                room.inside.data_ptr() + 4 * rows * problem.d_v, tickets.inside.data_ptr(),
                operands["lengths"].data_ptr(), None if table is None else table.data_ptr(),
                (ctypes.c_longlong * 3)(*q.stride()[:3]), scale2, *(slope2 or [0.0]),
                (ctypes.c_int * 8)(
                    *sizes, 0 if table is None else table.stride(0), problem.keys, *last),
            )  # fmt: skip
            grid, backwards = config.programs(problem), self.number % 2
            most = next(n for n in (4, 3, 2, 1) if grid % n == 0) if backwards and cluster == 1 else cluster
            numbers = grid, cluster, most, config.lds_bytes(problem), backwards, self.number
            in_own_process(lambda: library.launch(*numbers, ctypes.byref(call)))
            room.check(), tickets.check()
            assert not tickets.inside.any(), "wrong: tickets are not zero again"

        return run


def read_before(sequences: int) -> dict[str, str]:
    """What in a kernel's text becomes what, so that lengths of before the wait lie behind those of after it."""
    return {"__ldcg(from), 0)": f"__ldcg(from + {sequences}), 0)"}


class Guarded:
    """A tensor `inside` of shared memory, filled, with NaN where that is not said; nobody may write around it."""

    def __init__(self, shape, dtype, fill=torch.nan) -> None:
        count = int(np.prod(shape))
        room = mmap.mmap(-1, (count + 2 * GUARD) * dtype.itemsize)
        self.around = torch.frombuffer(room, dtype=dtype).fill_(123)
        self.inside = self.around[GUARD : GUARD + count].view(shape).fill_(fill)

    def check(self) -> None:
        assert (self.around[:GUARD] == 123).all(), "wrong: written in front of"
        assert (self.around[-GUARD:] == 123).all(), "wrong: written behind"


def problem_of(lengths, heads=2, kv_heads=1, queries=1, room=256, d=72, d_v=40, **more) -> DecodeProblem:
    return DecodeProblem(
        len(lengths), heads, kv_heads, queries, room, d, d_v, scale=d**-0.5, adjacent=True, **more)  # fmt: skip


def operands_of(problem: DecodeProblem, lengths) -> dict[str, torch.Tensor]:
    """Random ones. Queries have strides of their own; what lies behind a sequence's keys and in pages of nobody is NaN
    and infinite."""
    generator = torch.Generator().manual_seed(len(lengths))
    dtype, rows = DTYPES[problem.dtype], (problem.batch, problem.keys, problem.kv_heads)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    q = torch.full((problem.batch, problem.queries, problem.heads, problem.d + 8), torch.nan, dtype=dtype)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)[..., : problem.d]
    q.copy_(3 * random(*q.shape))  # so that maxima move
    k, v, table = random(*rows, problem.d), random(*rows, problem.d_v), None
    for b, length in enumerate(lengths):
        k[b, length:], v[b, length:] = torch.inf, torch.nan
    dense = {"k": k, "v": v}
    if page := problem.page:
        order = torch.randperm(problem.batch * problem.keys // page + 3, generator=generator)
        table = order[: problem.batch * problem.keys // page].view(problem.batch, -1).int()
        k, v = (torch.full((len(order), page, *x.shape[2:]), torch.nan, dtype=dtype) for x in (k, v))
        for name, cache in (("k", k), ("v", v)):
            cache[table.long()] = dense[name].view(problem.batch, -1, page, *cache.shape[2:])
        for b, length in enumerate(lengths):
            table[b, -(-length // page) :] = 1 << 30  # of no page
    return {"q": q, "k": k, "v": v, "table": table, "lengths": torch.tensor(lengths, dtype=torch.int32), "dense": dense}


def check(
    model: Model, problem: DecodeProblem, config: Config, lengths: list[int], launches: int = 2,
    before: Sequence[int] = (),
) -> None:  # fmt: skip
    """All of out and lse, whose bits are the same in each launch. before: the lengths of `read_before`."""
    assert config.why_invalid(problem, GPU) is None
    operands = operands_of(problem, lengths)
    operands["lengths"] = torch.tensor([*lengths, *before], dtype=torch.int32)
    bits = []
    for model.number in range(launches):
        out = Guarded((problem.batch, problem.queries, problem.heads, problem.d_v), DTYPES[problem.dtype])
        lse = Guarded((problem.batch, problem.heads, problem.queries), torch.float32)
        operands |= {"out": out.inside, "lse": lse.inside}
        MODULES[config.schedule].prepare(problem, config, GPU, None)(operands)
        out.check(), lse.check()
        bits.append((out.inside.view(torch.int16), lse.inside.view(torch.int32)))
        judge(problem, operands, lengths)
        assert all(map(torch.equal, bits[0], bits[-1])), "wrong: other bits by other turns"


def judge(problem: DecodeProblem, operands, lengths) -> None:
    unit = verify.UNIT_ROUNDOFF[problem.dtype]
    options = {"causal": "bottom_right", "left": problem.left, "scale": problem.scale, "softcap": problem.softcap}
    for b, length in enumerate(lengths):
        q, k, v = (
            x.transpose(0, 1)[None].double().numpy()
            for x in (operands["q"][b], *(operands["dense"][name][b, :length] for name in "kv"))
        )
        truth = reference.attention(q, k, v, **options)
        # Weights are rounded to 16 bits, and so is the output; exponentials and sums of parts are those of FP32.
        summed = reference.attention(q, k, abs(v), **options).out
        got = operands["out"][b].transpose(0, 1)[None].double().numpy()
        right = abs(got - truth.out) <= (unit + 2**-12) * summed + unit * abs(truth.out) + 1e-30
        assert right.all(), f"wrong: out of sequence {b}, {length} keys: {got[~right][:4]} for {truth.out[~right][:4]}"
        lse = operands["lse"][b][None].double().numpy()
        assert np.allclose(lse, truth.lse, rtol=1e-5, atol=1e-5), f"wrong: lse of sequence {b}, {length} keys"
