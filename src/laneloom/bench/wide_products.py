"""Products that `matmul_wide` measures: batch, M, N, K and layout of each.

Of 16 bits single ones and batches are in files of their own, as different schedules take them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from ..gpu import get_gpu
from ..ops.matmul.config_hopper import tma_reads
from ..ops.matmul.plan_few import LEAST_LONG, is_few
from ..ops.matmul.plan_half import MOST_MULTIPLICATIONS
from ..ops.matmul.plan_short import MOST_C, MOST_SHORT, has_short_side, is_short
from ..ops.matmul.problem import MatmulProblem
from .matmul_cases import LAYER_SIDES, OUTPUTS, random_side

H200 = get_gpu("sm_90a")
#: of FP32 and FP64: a few rows, few tiles and a long K, short K, small products, batches, odd sizes, squares
PRODUCTS = (
    (1, 1, 4096, 4096, "nt"), (1, 1, 4096, 4096, "nn"), (1, 4096, 1, 4096, "tn"), (1, 16, 4096, 4096, "nt"),
    (1, 16, 4096, 4096, "nn"), (1, 8, 11008, 4096, "nt"), (1, 64, 4096, 4096, "nt"), (1, 3, 5000, 700, "nn"),
    (1, 64, 64, 100000, "tn"), (1, 128, 128, 20000, "tn"), (1, 10, 10, 1000000, "nt"), (1, 128, 128, 4096, "nt"),
    (1, 300, 300, 3000, "nt"), (1, 100, 5000, 3000, "tt"), (1, 4095, 129, 1000, "nn"), (1, 30000, 64, 64, "nn"),
    (1, 20000, 100, 100, "nn"), (1, 2000, 2000, 100, "nn"), (1, 4096, 4096, 64, "nn"), (1, 5000, 24, 24, "nn"),
    (1, 2048, 2048, 256, "nn"), (1, 777, 1777, 333, "nn"), (1, 32, 32, 32, "nn"), (1, 128, 128, 128, "tt"),
    (1, 256, 256, 256, "nn"), (1, 512, 512, 512, "nn"), (1, 512, 512, 512, "nt"), (1, 600, 600, 600, "tn"),
    (1, 777, 777, 777, "nn"), (1, 1000, 1000, 1000, "nt"), (1, 1024, 1024, 1024, "nn"), (1, 1536, 1536, 1536, "nn"),
    (1, 2048, 4096, 1024, "nt"), (4096, 16, 16, 16, "nn"), (512, 32, 32, 32, "nn"), (256, 64, 64, 64, "nt"),
    (128, 77, 77, 64, "nt"), (100, 100, 100, 100, "nn"), (32, 128, 128, 128, "nn"), (64, 200, 200, 200, "nn"),
    (16, 256, 256, 256, "nt"), (8, 512, 512, 64, "nn"), (12, 512, 64, 512, "nn"), (1, 40, 3000, 3000, "nn"),
    (1, 400, 400, 10000, "tn"), (1, 1000, 200, 2000, "tt"), (24, 1, 128, 4096, "nn"), (1, 1023, 513, 255, "nt"),
    (1, 192, 192, 192, "nn"), (1, 384, 384, 384, "nt"), (1, 450, 450, 450, "nn"), (1, 640, 640, 5000, "tn"),
    (1, 900, 700, 500, "nn"), (1, 1111, 1111, 1111, "nn"), (1, 1200, 1200, 4000, "nt"), (1, 1333, 999, 2001, "tt"),
    (1, 1500, 1500, 1500, "nn"), (1, 2049, 2047, 2050, "nt"), (1, 2500, 2500, 50, "nn"), (1, 3000, 3000, 3000, "nn"),
    (1, 5000, 300, 300, "nn"), (1, 256, 4096, 1024, "nt"), (1, 512, 2048, 2048, "nn"), (1, 1600, 1200, 77, "tn"),
    (4, 1024, 1024, 256, "nn"), (8, 300, 400, 500, "nn"), (32, 500, 500, 100, "nt"), (200, 60, 90, 300, "tt"),
    (1, 256, 256, 16384, "nt"), (1, 100, 1000, 10000, "nn"), (1, 200, 200, 8192, "nt"), (1, 32, 32, 200000, "tn"),
    (1, 16, 16, 1000000, "nt"), (1, 512, 512, 8192, "nn"), (4, 64, 64, 50000, "tn"), (1, 48, 1000, 20000, "nn"),
    (1, 333, 555, 7777, "nt"), (1, 2048, 2048, 2048, "nn"), (1, 2048, 2048, 2048, "nt"), (1, 4096, 4096, 4096, "nn"),
    (1, 4096, 4096, 4096, "nt"),
)  # fmt: skip
#: the same of 16 bits: batches of few rows, small products and odd ones, one short side or K
HALF_PRODUCTS = (
    (48, 1, 128, 4096, "nn"), (48, 128, 1, 4096, "nn"), (48, 1, 128, 4096, "nt"), (32, 1, 4096, 128, "nt"),
    (256, 1, 64, 1024, "nn"), (64, 4, 128, 2048, "nn"), (64, 8, 2048, 128, "nt"), (2048, 8, 128, 128, "nn"),
    (512, 16, 64, 64, "nn"), (4096, 16, 16, 16, "nn"), (1024, 32, 32, 32, "nn"), (512, 48, 48, 48, "nn"),
    (256, 64, 64, 32, "nt"), (128, 100, 100, 100, "nn"), (64, 200, 200, 200, "nn"), (32, 17, 33, 65, "nn"),
    (300, 33, 33, 33, "tn"), (192, 197, 197, 64, "nt"), (192, 197, 64, 197, "nn"), (64, 77, 77, 64, "nt"),
    (64, 77, 64, 77, "nn"), (100, 50, 512, 50, "nn"), (16, 127, 129, 131, "nn"), (8, 255, 255, 255, "nt"),
    (12, 512, 64, 512, "nn"), (32, 128, 128, 128, "tn"), (256, 24, 256, 256, "nn"),
    (1, 65536, 16, 16, "nn"), (1, 16, 65536, 16, "nn"), (1, 100000, 8, 32, "nn"), (1, 200000, 3, 3, "nn"),
    (1, 50000, 10, 10, "nt"), (1, 10000, 24, 24, "nn"), (1, 300, 300, 7, "nn"), (1, 1000, 1000, 9, "nn"),
    (1, 7, 7, 100000, "nt"), (1, 16, 16, 65536, "nt"), (1, 33, 33, 20001, "tn"), (1, 1, 1, 100000, "nn"),
    (1, 5, 1000, 5, "nn"), (1, 127, 129, 131, "nn"), (1, 63, 65, 1000, "nn"), (1, 99, 101, 103, "tt"),
    (1, 1, 999, 999, "nn"), (1, 999, 1, 999, "nn"), (1, 3, 3001, 501, "nn"), (1, 2000, 30, 2000, "tn"),
    (1, 513, 7, 1025, "nn"), (1, 64, 64, 64, "nn"), (1, 128, 128, 128, "nt"), (1, 256, 256, 64, "nn"),
    (1, 300, 301, 302, "nn"), (1, 20000, 100, 100, "nn"), (1, 4096, 4096, 16, "nn"), (1, 50, 50, 50, "tt"),
    (1, 20, 3000, 20, "nn"), (1, 2048, 2048, 16, "nt"), (1, 777, 777, 33, "nn"), (1, 1500, 100, 40, "nn"),
    (1, 96, 96, 4000, "nn"), (1, 40, 40, 3000, "tt"), (1, 257, 255, 256, "nn"), (1, 31, 1000, 31, "tn"),
    (6, 300, 500, 20, "nn"), (20, 90, 70, 110, "nt"), (1000, 7, 9, 11, "nn"), (2000, 24, 24, 8, "nn"),
    (4, 100, 1000, 1000, "nn"), (64, 1, 64, 64, "nn"), (64, 1, 2048, 64, "nt"), (16, 5, 333, 777, "nn"),
    (8, 33, 4097, 65, "nn"), (1, 4096, 10, 1000, "nn"), (1, 10, 4096, 1000, "nt"), (128, 64, 64, 256, "nn"),
    (48, 16, 1024, 64, "nt"), (48, 16, 64, 1024, "nn"), (1, 36, 1640, 699, "nn"), (1, 25, 112, 7345, "nn"),
    (1, 64, 192, 9640, "nn"), (1, 64, 168, 6005, "nn"), (1, 49, 640, 209, "nn"), (1, 382, 256, 105, "nn"),
    (1, 64, 321, 2528, "nn"), (1, 5, 241, 6400, "nn"), (1, 2, 2794, 384, "nn"), (1, 8, 133, 1360, "nt"),
    (1, 64, 256, 181, "nt"), (1, 8, 78, 188, "nn"),
)  # fmt: skip
#: few rows or columns of 16 bits beside an operand that TMA does not read where it lies
NARROW_FEW = (
    (28, 1868, 1612, "tn"), (32, 1396, 2316, "tn"), (20, 528, 5452, "nt"), (518, 24, 4538, "nn"),
    (16, 4095, 4097, "nn"), (8, 12063, 1472, "nn"), (4, 5001, 3001, "nt"), (24, 5122, 5122, "nt"),
    (40, 3001, 2000, "nn"), (16, 2502, 3004, "nt"), (8, 2050, 4098, "nn"), (30, 5004, 1004, "tn"),
    (12, 2001, 4001, "nt"), (48, 4004, 4004, "nn"), (6, 7000, 3002, "tt"), (20, 3500, 1501, "nn"),
    (3000, 20, 2501, "nn"), (2, 3001, 3001, "nn"), (1, 3001, 3001, "nn"), (1, 2501, 4001, "nt"),
)  # fmt: skip
#: models' heads of an odd vocabulary or number of classes, and of how many features
HEADS = ((50257, 768), (30522, 768), (32001, 4096), (51865, 1280), (21841, 1024), (479, 1024))
#: of rows that do not begin at 16 bytes: one long side, short K, squares
UNALIGNED = (
    (65536, 50, 100, "nt"), (65536, 100, 50, "nn"), (50, 100, 65536, "tn"), (100, 50, 65536, "tn"),
    (4096, 64, 4100, "nn"), (4096, 64, 4098, "nn"), (4096, 64, 4097, "nn"), (64, 4100, 4096, "tn"),
    (4096, 4097, 64, "nt"), (4096, 4098, 64, "nt"), (4096, 4100, 64, "nt"), (4096, 4097, 128, "nt"),
    (4096, 4097, 256, "nt"), (4096, 4098, 256, "nt"), (4096, 4100, 256, "nt"), (4096, 4097, 1024, "nt"),
    (4096, 4100, 1024, "nt"), (4097, 4096, 512, "nn"), (20000, 333, 333, "nn"), (8192, 257, 1023, "nt"),
    (257, 1023, 8192, "tn"), (8192, 1023, 257, "nn"), (2049, 2047, 2050, "nn"), (4095, 4097, 4099, "nt"),
    (16384, 36, 512, "nt"), (16384, 100, 512, "nt"), (16384, 250, 250, "nn"), (100000, 30, 30, "nn"),
    (3000, 1001, 200, "nt"), (768, 50257, 64, "nt"), (197, 3073, 768, "nt"), (577, 1022, 4090, "nn"),
)  # fmt: skip
UNALIGNED_LEAST, UNALIGNED_MOST = 3e8, 2e11  #: multiplications of a random one
MOST_ELEMENTS = 1 << 26  #: of a random product
NARROW_LEAST, NARROW_MOST = 1 << 21, 3e8  #: multiplications of one of narrow rows
DECODE_ROWS = (1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 12, 16, 16, 20, 24, 29, 32, 32)
DECODE_LEAST, DECODE_MOST = 1 << 19, 1 << 28  #: elements of the operand that is streamed
#: of 33 to 128 rows, and of 8 bits of fewer too; of the other operand as many elements as when decoding
SHORT_ROWS = (33, 40, 48, 50, 56, 64, 64, 64, 72, 77, 80, 96, 96, 100, 112, 120, 128, 128, 128)
WIDE_LEAST, WIDE_MOST = 2e5, 8e9  #: multiplications of a random one of FP32 and FP64


def problem_of(dtype: str, sizes: tuple[int, int, int, int, str]) -> MatmulProblem:
    """One of PRODUCTS."""
    batch, m, n, k, layout = sizes
    return MatmulProblem.contiguous(m, n, k, dtype=dtype, dtype_out=OUTPUTS.get(dtype), layout=layout, batch=batch)


def random_wide(count: int = 240, seed: int = 11) -> Iterator[tuple[int, int, int, int, str]]:
    """Products of FP32 and FP64 that nobody chose: any sides, half of them multiples of 8, a third in batches."""
    generator = random.Random(seed)
    while count:
        sides = [round(2 ** generator.uniform(2, 12.5)) for _ in range(3)]
        m, n, k = (max(8, side // 8 * 8) for side in sides) if generator.random() < 0.5 else sides
        batch = round(2 ** generator.uniform(1, 7)) if generator.random() < 1 / 3 else 1
        fits = WIDE_LEAST <= batch * m * n * k <= WIDE_MOST
        if fits and batch * (m * k + k * n + m * n) <= MOST_ELEMENTS // 2:
            count -= 1
            yield batch, m, n, k, generator.choice(("nn", "nt", "tn", "tt"))


def random_products(count: int = 72, seed: int = 0) -> Iterator[tuple[int, int, int, int, str]]:
    """Products of 16 bits that nobody chose: short sides, a long K, many odd rows, a third in batches."""
    generator = random.Random(seed)
    while count:
        sides = [random_side(generator, (1, 1, 8, 64), least, most) for least, most in ((0, 10), (4, 13), (4, 14))]
        batch = round(2 ** generator.uniform(1, 8)) if generator.random() < 1 / 3 else 1
        m, n, k = sides if generator.random() < 0.5 else (sides[1], sides[0], sides[2])
        if batch * m * n * k <= MOST_MULTIPLICATIONS and batch * (m * k + k * n + m * n) <= MOST_ELEMENTS:
            count -= 1
            product = batch, m, n, k, generator.choice(("nn", "nt", "tn", "tt"))
            if product not in HALF_PRODUCTS:
                yield product


def narrow_products(count: int = 44, seed: int = 5) -> Iterator[tuple[int, int, int, int, str]]:
    """Single products of 16 bits of which an operand's rows come 2, 4 or 8 bytes at a time: few rows, and random."""
    yield from ((1, *sizes) for sizes in NARROW_FEW)
    generator = random.Random(seed)
    while count:
        step = generator.choice((1, 2, 2, 4, 4, 4))
        m, n, k = (max(step, round(2 ** generator.uniform(*of) / step) * step) for of in ((3, 10), (4, 11), (6, 12.5)))
        layout = generator.choice(("nn", "nt", "tn", "tt"))
        n, k = (-(-x // 8) * 8 if generator.random() < 0.45 else x for x in (n, k))
        product = 1, m, n, k, layout
        problem = problem_of("bf16", product)
        if min(problem.vector_a, problem.vector_b) < 8 and NARROW_LEAST <= m * n * k <= NARROW_MOST:
            count -= 1
            yield product


def model_batches() -> Iterator[tuple[int, int, int, int, str]]:
    """Batches of models: latent attention's products with the heads' matrices, experts of as many rows each, scores."""
    for heads, rows, layout in product((16, 128), (1, 8, 16, 24, 32, 48, 64, 128), ("nn", "nt")):
        yield heads, rows, 512, 128, layout
        yield heads, rows, 128, 512, layout
    for rows, layout in product((4, 16, 32, 40, 64), ("nn", "nt")):
        yield from ((64, rows, 1408, 2048, layout), (64, rows, 2048, 1408, layout), (8, rows, 14336, 4096, layout))
        yield from ((64, rows, 128, 1024, layout), (8, rows, 1024, 1024, layout), (40, rows, 4096, 128, layout))
        yield from ((32, rows, 768, 2048, layout), (128, rows, 128, 2048, layout))
    yield from ((4, 1500, 1500, 64, "nt"), (48, 1024, 1024, 64, "nn"), (32, 2048, 2048, 128, "nt"))


def random_batches(count: int = 150, seed: int = 11) -> Iterator[tuple[int, int, int, int, str]]:
    """Batches that nobody chose, of operands that TMA reads where they lie; a fourth of the outputs it cannot write."""
    generator = random.Random(seed)
    while count:
        batch = round(2 ** generator.uniform(1, 9))
        m, n, k = (round(2 ** generator.uniform(*of)) for of in ((0, 9.5), (3, 12), (3, 12)))
        layout = generator.choice(("nn", "nt", "tn", "tt"))
        m, n, k = m if layout[0] == "n" else -(-m // 8) * 8, -(-n // 8) * 8, -(-k // 8) * 8
        if generator.random() < 0.25 and layout[1] == "t":
            n -= generator.choice((1, 4, 6))
        m, n = (m, n) if generator.random() < 0.75 or layout != "nt" else (n, m)
        sizes = batch, m, n, k, layout
        fed = tma_reads(problem_of("bf16", sizes), "a") and tma_reads(problem_of("bf16", sizes), "b")
        if fed and batch * m * n * k <= 4 * MOST_MULTIPLICATIONS and batch * (m * k + k * n + m * n) <= MOST_ELEMENTS:
            count -= 1
            yield sizes


def unaligned_products() -> Iterator[tuple[int, int, int, int, str]]:
    """Single products of 16 bits, not small ones, of which a matrix has rows that do not begin at 16 bytes: forward
    and both gradients of models' heads, chosen and random ones."""
    for (classes, features), rows in product(HEADS, (64, 1024, 4096)):
        yield 1, rows, classes, features, "nt"
        yield 1, rows, features, classes, "nn"
        yield 1, classes, features, rows, "tn"
    yield from ((1, *sizes) for sizes in UNALIGNED)
    yield from random_unaligned()


def random_unaligned(count: int = 72, seed: int = 17) -> Iterator[tuple[int, int, int, int, str]]:
    """Such products that nobody chose."""
    generator = random.Random(seed)
    while count:
        sides = [round(2 ** generator.uniform(*of)) for of in ((5, 15), (5, 13), (5, 13))]
        m, n, k = (-(-side // step) * step for side in sides if (step := generator.choice((1, 1, 2, 4, 8, 8))))
        m, n = (m, n) if generator.random() < 0.5 else (n, m)
        sizes = 1, m, n, k, generator.choice(("nn", "nt", "tn"))
        vectors = problem_of("bf16", sizes)
        unaligned = min(vectors.vector_a, vectors.vector_b, vectors.vector_out) < 8
        if unaligned and UNALIGNED_LEAST <= m * n * k <= UNALIGNED_MOST and m * k + k * n + m * n <= 2 * MOST_ELEMENTS:
            count -= 1
            yield sizes


def decode_products(count: int = 260, seed: int = 991) -> Iterator[tuple[int, int, int, int, str]]:
    """Few rows or columns of 16 bits, which TMA reads in place: of models' layers and of sides that nobody chose."""
    generator, seen = random.Random(seed), set()
    while len(seen) < count:
        n, k = (round(2 ** generator.uniform(8.5, most)) // 8 * 8 for most in (15, 14.5))
        n, k = generator.choice(LAYER_SIDES) if generator.random() < 0.6 else (n, k)
        m, layout = generator.choice(DECODE_ROWS), generator.choice(("nt", "nt", "nt", "nn", "nn", "tt", "tn"))
        sizes = (1, m, n, k, layout) if generator.random() < 0.8 else (1, n, m, k, layout)
        if sizes not in seen and DECODE_LEAST <= n * k <= DECODE_MOST and is_few(problem_of("bf16", sizes)):
            seen.add(sizes)
            yield sizes


def short_products(count: int = 110, seed: int = 733) -> Iterator[tuple[str, tuple[int, int, int, int, str]]]:
    """Up to so many of 33 to 128 rows or columns of 16 bits, with their dtype, and so many of 1 to 128 of 8 bits."""
    generator, seen = random.Random(seed), set()
    while len(seen) < 2 * count:
        n, k = (round(2 ** generator.uniform(8.5, most)) // 16 * 16 for most in (15, 14.5))
        n, k = generator.choice(LAYER_SIDES) if generator.random() < 0.6 else (n, k)
        m = generator.choice(SHORT_ROWS)
        if len(seen) < count:
            layout = generator.choice(("nt", "nt", "nt", "nn", "nn", "tt", "tn"))
            case = "bf16", (1, m, n, k, layout) if generator.random() < 0.8 else (1, n, m, k, layout)
        else:
            case = "fp8", (1, m if generator.random() < 0.5 else generator.choice(DECODE_ROWS), n, k, "nt")
        problem, of_torch = problem_of(*case), case[0] == "bf16" or n % 16 + k % 16 == 0  # torch takes no others
        few = case[0] == "fp8" and is_few(problem)
        of_size = DECODE_LEAST <= n * k <= DECODE_MOST and (few or has_short_side(problem, H200))
        if of_torch and case not in seen and of_size:
            seen.add(case)
            if few or is_short(problem, H200):
                yield case


#: a slice or less, in two dtypes
SHORT_KS = {"bf16": (8, 16, 24, 32, 40, 48, 56, 64, 64), "fp8": (16, 32, 48, 64, 80, 96, 128)}


def small_products(count: int = 85, seed: int = 4242) -> Iterator[tuple[str, tuple[int, int, int, int, str]]]:
    """So many of few tiles of each dtype, 129 rows or columns and more, then some of a K of a slice or less."""
    for dtype in ("bf16", "fp8"):
        generator, step = random.Random(seed + len(dtype)), 16 if dtype == "fp8" else 8
        seen: set[tuple[int, int, int, int, str]] = set()
        while len(seen) < count:
            n, k = generator.choice(LAYER_SIDES) if generator.random() < 0.5 else (
                round(2 ** generator.uniform(8, most)) // step * step for most in (13.5, 14))  # fmt: skip
            rows = [round(2 ** generator.uniform(7, 11)) // of * of for of in (1, 8)]
            m = generator.choice((*rows, generator.choice((192, 256, 384, 512, 768, 1024, 1536, 2048))))
            layout = generator.choice(("nt", "nt", "nt", "nn", "nn", "tt", "tn")) if dtype == "bf16" else "nt"
            aligned = n % step + k % step == 0 and (m % 8 == 0 or layout[0] == "n")
            if aligned and m * n * k >= 1 << 25 and m * n <= MOST_C and min(m, n) > MOST_SHORT and n >= LEAST_LONG:
                seen.add(sizes := (1, m, n, k, layout))
                yield dtype, sizes
    for of_seed, counts in ((5, (36, 24)), (77, (17, 12))):
        generator = random.Random(of_seed)
        for dtype, many in zip(("bf16", "fp8"), counts, strict=True):
            step, found = 16 if dtype == "fp8" else 8, 0
            while found < many:
                k = generator.choice(SHORT_KS[dtype])
                m, n = round(2 ** generator.uniform(8, 13)), round(2 ** generator.uniform(8.5, 13.5)) // step * step
                layout = generator.choice(("nn", "nt", "nt")) if dtype == "bf16" else "nt"
                if 64 * 64 * 132 < m * n <= 1 << 26:
                    found += 1
                    yield dtype, (1, m, n, k, layout)


def half_products() -> list[tuple[int, int, int, int, str]]:
    """The single ones of 16 bits."""
    return [sizes for sizes in (*HALF_PRODUCTS, *random_products(), *narrow_products()) if sizes[0] == 1]


def half_batches() -> list[tuple[int, int, int, int, str]]:
    """The batches of 16 bits: those of models, chosen ones, random ones."""
    chosen = [sizes for sizes in (*HALF_PRODUCTS, *random_products()) if sizes[0] > 1]
    return [*model_batches(), *chosen, *random_batches()]


RANDOM = frozenset(
    problem_of("bf16", sizes)
    for sizes in (*random_products(), *narrow_products(), *random_batches(), *random_unaligned())
)
WIDE_RANDOM = tuple(random_wide())
DECODE = frozenset(problem_of("bf16", sizes) for sizes in decode_products())
SHORT = frozenset(problem_of(*product) for product in short_products())
SMALL = frozenset(problem_of(*product) for product in small_products())
NOT_ALIGNED = frozenset(problem_of("bf16", sizes) for sizes in unaligned_products())
