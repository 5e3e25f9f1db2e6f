"""Which products `bench.matmul` measures: the suite, sizes outside of it, random ones, other kinds of operands."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..ops.matmul.problem import MatmulProblem
from .suites import load_suite

DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn, "int8": torch.int8,
    "int32": torch.int32, "fp32": torch.float32, "fp64": torch.float64,
}  # fmt: skip
OUTPUTS = {"fp8": "bf16", "int8": "int32"}  #: where C's dtype is not A's
PROMOTED = "fp8 promoted"
#: kinds that are a precision -> the operands' dtype and the precision
PRECISIONS = {**{kind: ("fp32", kind) for kind in ("tf32", "3xtf32", "3xbf16")}, PROMOTED: ("fp8", "promoted")}
EIGHT_BITS = ("fp8", "int8", PROMOTED)  #: kinds that torch multiplies in "nt" alone
EIGHT_BIT_SIZES = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 4096))
WIDE_SIZES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (4095, 4097, 4099))
#: in bf16: few rows, long K, sizes that no tile divides, rows that break sectors; none of them is in the suite
OUTSIDE_SIZES = (
    (4, 11008, 4096), (8, 4098, 4096), (16, 11006, 4096), (24, 5120, 5120), (24, 5122, 5122), (40, 8192, 8192),
    (48, 5120, 5120), (48, 14140, 6044), (64, 14336, 4096), (80, 8192, 1024), (96, 4096, 4096), (96, 6144, 4096),
    (100, 1000, 10000), (128, 2112, 7168), (160, 4096, 4096), (192, 4096, 11008), (192, 6144, 4096), (208, 8192, 8192),
    (256, 4096, 4096), (300, 3000, 3000), (304, 304, 30000), (320, 5120, 5120), (384, 6144, 4096), (512, 512, 8192),
    (512, 14336, 4096), (600, 600, 600), (640, 640, 640), (760, 760, 760), (768, 4096, 4096), (1001, 1001, 1001),
    (1024, 1024, 4096), (1024, 2112, 7168), (1000, 1000, 5000), (1280, 1280, 1280), (1304, 1304, 1304),
    (1536, 1536, 1536), (2048, 11008, 4096), (2056, 2056, 2056), (2560, 2560, 2560), (3000, 3000, 3000),
    (3072, 3072, 3072), (4000, 4000, 4000), (4096, 2112, 7168), (5000, 5000, 5000), (6000, 6000, 6000),
    (8192, 32000, 512), (16384, 256, 4096),
)  # fmt: skip
OUTSIDE = "outside"  #: the group of these
RANDOM = "random"  #: the group of `random_cases`
MOST_MULTIPLIED = 2**37  #: M x N x K of these
KINDS = "kinds"  #: the group of `kinds_cases`
#: of 8 bits: layers of language models with few and many rows, a long and a short K, sizes that no tile divides
EIGHT_BIT_LAYERS = (
    (17, 8192, 8192), (32, 6144, 4096), (48, 12288, 3072), (64, 4096, 4096), (64, 14336, 4096), (100, 5120, 5120),
    (128, 7168, 2048), (128, 2112, 7168), (256, 4096, 4096), (256, 4096, 14336), (333, 5008, 2000), (512, 4096, 1024),
    (512, 7168, 2048), (512, 2112, 7168), (777, 1776, 336), (1000, 1008, 1008), (1024, 1024, 1024), (1024, 4096, 4096),
    (1024, 8192, 1024), (1536, 1536, 1536), (2048, 2112, 7168), (2048, 4096, 14336), (2048, 28672, 4096),
    (3000, 3008, 3008), (4095, 4096, 4112), (4096, 2112, 7168), (4096, 7168, 2048), (4096, 24576, 1536),
    (4096, 4096, 7168), (5000, 4800, 304), (8192, 1024, 4096), (16384, 512, 2048), (512, 512, 8192), (96, 96, 4096),
)  # fmt: skip
FEW_ROWS = ((1, 4096, 4096), (1, 14336, 4096), (4, 4096, 14336), (8, 28672, 8192), (16, 8192, 8192), (16, 2112, 7168))
#: of FP32 on the tensor cores: few rows, few tiles and a long K, a short K, all layouts, odd sizes
WIDE_PRODUCTS = (
    (16, 4096, 4096, "nt"), (16, 4096, 4096, "nn"), (64, 4096, 4096, "nt"), (128, 4096, 4096, "nn"),
    (128, 4096, 4096, "nt"), (8, 11008, 4096, "nt"), (4096, 16, 4096, "nn"), (40, 3000, 3000, "nn"),
    (256, 256, 256, "nn"), (512, 512, 512, "nn"), (512, 512, 512, "nt"), (450, 450, 450, "nn"), (777, 777, 777, "nn"),
    (1000, 1000, 1000, "nn"), (1000, 1000, 1000, "nt"), (1536, 1536, 1536, "tn"), (3000, 3000, 3000, "nn"),
    (2048, 1024, 4096, "nt"), (1024, 3072, 1024, "nt"), (2048, 8192, 1024, "tn"), (2048, 2048, 2048, "tt"),
    (512, 512, 8192, "nn"), (512, 512, 8192, "nt"), (300, 3000, 3000, "nn"), (100, 1000, 10000, "nn"),
    (128, 584, 6312, "nn"), (301, 2088, 6121, "nn"), (128, 128, 20000, "tn"), (64, 64, 100000, "tn"),
    (4096, 4096, 64, "nn"), (5000, 300, 300, "nn"), (30000, 64, 64, "nn"), (1172, 3908, 64, "nn"),
    (333, 5001, 2001, "nn"), (2049, 2047, 2050, "nt"), (471, 896, 2368, "tt"), (528, 1848, 1920, "nt"),
)  # fmt: skip

#: N and K: encoders, language models from 0.5 to 405 billion weights, mixtures of experts, vision, adapters, heads
LAYER_SIDES = (
    (768, 768), (3072, 768), (768, 3072), (2304, 768), (1024, 1024), (4096, 1024), (1024, 4096), (3072, 1024),
    (1280, 1280), (5120, 1280), (1280, 5120), (1600, 1600), (6400, 1600), (4800, 1600), (2048, 2048), (8192, 2048),
    (2048, 8192), (2560, 2560), (10240, 2560), (3072, 3072), (8192, 3072), (24576, 3072), (3584, 3584), (18944, 3584),
    (3584, 18944), (4608, 3584), (4096, 4096), (6144, 4096), (22016, 4096), (4096, 11008), (28672, 4096),
    (4096, 14336), (5120, 5120), (13824, 5120), (5120, 13824), (27648, 5120), (5120, 27648), (7168, 7168),
    (8192, 8192), (10240, 8192), (57344, 8192), (8192, 28672), (1536, 7168), (24576, 1536), (576, 7168), (2112, 7168),
    (7168, 2304), (16384, 512), (4096, 7168), (7168, 2048), (1408, 2048), (2048, 1408), (32000, 4096), (50257, 768),
    (50257, 1600), (51865, 1280), (128256, 2048), (151936, 896), (896, 896), (4864, 896), (896, 4864), (1152, 896),
    (640, 2560), (1152, 1152), (4304, 1152), (1152, 4304), (320, 320), (640, 640), (2560, 320), (5120, 640),
    (64, 4096), (4096, 64), (16, 4096), (4096, 16), (256, 2880), (5760, 2880), (2880, 4096), (5120, 2880),
    (1000, 2048), (1000, 1280), (10, 512), (100, 2048), (21841, 1024), (30522, 768), (384, 384), (1536, 384),
    (384, 1536), (512, 512), (2048, 512), (512, 2048), (37, 1001), (333, 777),
)  # fmt: skip
LAYER_ROWS = (
    1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 24, 32, 33, 48, 50, 64, 72, 77, 96, 100, 128, 144, 160, 192, 197, 200, 224, 256,
    257, 300, 320, 384, 400, 500, 512, 577, 600, 640, 700, 768, 896, 1000, 1024, 1280, 1500, 1536, 2000, 2048, 2500,
    3000, 4096, 5000, 6000, 8192, 12288,
)  # fmt: skip
OTHER_LAYOUTS, OF_ANY_LAYOUT = ("nt", "nt", "nn", "tn", "tt"), 0.8  #: what is not NT, of so large a share
MOST_LAYER_FLOPS, MOST_LAYER_BYTES = 1.5e12, 3e9
LAYERS, LAYER_SEEDS = 225, (1, 2)  #: of one seed; the seeds
GRADIENT_ROWS = (512, 788, 1024, 2048, 2500, 4096, 6304, 8192, 12288, 16384)  #: tokens of a step of training
GRADIENT_LAYERS = 80  #: whose two gradients are measured, of one seed


@dataclass(frozen=True)
class Case:
    """One product: its place in the suite, and the problem."""

    group: str
    layout: str
    dtype: str  #: the kind: a dtype or one of PRECISIONS
    problem: MatmulProblem

    @property
    def precision(self) -> str | None:
        """The argument `precision` of the call."""
        return PRECISIONS[self.dtype][1] if self.dtype in PRECISIONS else None


def _sizes_of(kind: str) -> Mapping[str, Sequence[tuple[int, ...]]]:
    if kind in ("bf16", "fp16"):
        return load_suite("gemm")
    if kind in EIGHT_BITS:
        return {"eight_bit": list(EIGHT_BIT_SIZES)}
    return {"wide": list(WIDE_SIZES)}


def iterate_cases(kinds: list[str], layouts: list[str], *, outside: bool = False) -> Iterator[Case]:
    """The suite in 16-bit types, some squares in others; 8-bit types in "nt", for which torch has a product.

    outside: sizes that are not in the suite, too.
    """
    if outside:
        for m, n, k in OUTSIDE_SIZES:
            for layout in layouts:
                yield make_case(OUTSIDE, layout, "bf16", (m, n, k))
    for kind in kinds:
        for group, sizes in _sizes_of(kind).items():
            for m, n, k in sizes:
                for layout in ["nt"] if kind in EIGHT_BITS else layouts:
                    yield make_case(group, layout, kind, (m, n, k))


def random_side(generator: random.Random, steps: Sequence[int], least: int, most: int) -> int:
    """A size from 2^least to 2^most, even in its logarithm, a multiple of one of the steps."""
    step, size = generator.choice(steps), 2 ** generator.uniform(least, most)
    return max(round(size / step), 1) * step


def random_cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Products that nobody chose: M from 1, N and K from 64 to 16384, even in their logarithms, a third of each as they
    come, a third in multiples of 8, a third of 64; bf16 or fp16, NN or NT."""
    generator = random.Random(seed)
    while count:
        sizes = [random_side(generator, (1, 8, 64), least, 14) for least in (0, 6, 6)]
        kind, layout = generator.choice(("bf16", "fp16")), generator.choice(("nn", "nt"))
        if math.prod(sizes) <= MOST_MULTIPLIED:
            count -= 1
            yield make_case(RANDOM, layout, kind, tuple(sizes))


def make_case(group: str, layout: str, kind: str, sizes: Sequence[int]) -> Case:
    """The case of a kind and layout."""
    dtype, precision = PRECISIONS.get(kind, (kind, "ieee"))
    m, n, k = sizes
    problem = MatmulProblem.contiguous(
        m, n, k, dtype=dtype, dtype_out=OUTPUTS.get(dtype, dtype), layout=layout, precision=precision)
    return Case(group, layout, kind, problem)


def kinds_cases() -> Iterator[Case]:
    """Products of 8 bits and of FP32 on the tensor cores that no suite has; of integers from 17 rows on, as torch."""
    of_floats = FEW_ROWS + EIGHT_BIT_LAYERS
    for kind, sizes in (("fp8", of_floats), (PROMOTED, of_floats), ("int8", EIGHT_BIT_LAYERS)):
        yield from (make_case(KINDS, "nt", kind, each) for each in sizes)
    for kind in ("tf32", "3xtf32"):
        yield from (make_case(KINDS, layout, kind, sizes) for *sizes, layout in WIDE_PRODUCTS)


def random_layers(seed: int, count: int = LAYERS) -> list[Case]:
    """So many random layers: any of LAYER_SIDES with any of LAYER_ROWS."""
    generator, found = random.Random(seed), []
    while len(found) < count:
        (n, k), m = generator.choice(LAYER_SIDES), generator.choice(LAYER_ROWS)
        layout = generator.choice(OTHER_LAYOUTS) if generator.random() < OF_ANY_LAYOUT else "nt"
        dtype = generator.choice(("bf16", "fp16"))
        if 2 * m * n * k <= MOST_LAYER_FLOPS and 2 * (m * n + m * k + n * k) <= MOST_LAYER_BYTES:
            found.append(make_case("layers", layout, dtype, (m, n, k)))
    return found


def random_layer_gradients(seed: int, count: int = GRADIENT_LAYERS) -> list[Case]:
    """Both products of the backward of so many random linear layers, any of LAYER_SIDES with any of GRADIENT_ROWS.

    Of Y = X W^T, W [N, K] as torch.nn.Linear has it: dX = dY W is NN, dW = dY^T X TN.
    """
    generator, found = random.Random(seed), []
    while len(found) < 2 * count:
        (n, k), m = generator.choice(LAYER_SIDES), generator.choice(GRADIENT_ROWS)
        dtype = generator.choice(("bf16", "bf16", "fp16"))
        if min(n, k) >= 256 and 2 * m * n * k <= MOST_LAYER_FLOPS:
            found += [make_case("layers", "nn", dtype, (m, k, n)), make_case("layers", "tn", dtype, (n, k, m))]
    return found
