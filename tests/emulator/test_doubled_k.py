"""8-bit products from 16-byte loads that feed two WMMAs: the plain kernel's bits, and the machine code."""

from __future__ import annotations

from collections import Counter

import pytest
from sampled import in_turn, rarely

import laneloom
from laneloom.errors import InvalidConfigError
from laneloom.gpu import get_gpu
from laneloom.isa.listing import Kind, parse_listing
from laneloom.ops.matmul.config_direct import DirectConfig
from laneloom.ops.matmul.execute import code_object
from laneloom.ops.matmul.problem import MatmulProblem

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

SHAPES = [(32, 64, 128), (67, 45, 100), (1, 1, 1)]
DTYPES = {torch.int8: torch.int32, torch.float8_e4m3fn: torch.float32, torch.float8_e5m2: torch.float32}


def random(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.int8:
        return torch.randint(-128, 128, (rows, columns), dtype=dtype)
    return torch.randn(rows, columns).to(dtype)


def product(a, b, doubled, **knobs):
    config = DirectConfig(block_m=32, block_n=32, num_warps=2, doubled=doubled, **knobs)
    out = laneloom.matmul(a, b.T, out_dtype=DTYPES[a.dtype], config=config)
    return out


def in_pairs(x: torch.Tensor) -> torch.Tensor:
    """x with K in the order in which the doubled kernel visits it: of every 32, the 8s at 0, 16, 8, 24."""
    padded = torch.zeros(x.shape[0], -(-x.shape[1] // 32) * 32, dtype=x.dtype)
    padded[:, : x.shape[1]] = x
    return padded.view(torch.int8).unflatten(1, (-1, 2, 2, 8)).transpose(2, 3).flatten(1).contiguous().view(x.dtype)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_doubled_is_the_plain_kernel_on_permuted_k(dtype):
    """Bit for bit: the same products in the same order. Integers, exact in any order, need no permutation."""
    with laneloom.emulated("gfx1201", strict=True) as emulation:
        for m, n, k in (*in_turn(list(DTYPES).index(dtype) % 2, *SHAPES[:2]), *rarely(SHAPES[2])):
            a, b = random(m, k, dtype), random(n, k, dtype)
            doubled = product(a, b, True)
            assert torch.equal(doubled, product(in_pairs(a), in_pairs(b), False))
            truth = a.double() @ b.double().T
            if dtype is torch.int8:
                assert torch.equal(doubled.double(), truth)
                assert torch.equal(doubled, product(a, b, False))
            else:
                bound = (k + 1) * 2.0**-24 * (a.double().abs() @ b.double().abs().T)
                assert bool(((doubled.double() - truth).abs() <= bound).all())
        assert {record.kernel for record in emulation.launches} == {"wmma_direct"}


def test_order_of_k_matters_to_floats():
    """Sums that round differ between the two orders, which is why the test above permutes K."""
    a, b = (torch.randn(32, 512).mul(64).to(torch.float8_e5m2) for _ in range(2))
    with laneloom.emulated("gfx1201"):
        assert not torch.equal(product(a, b, True), product(a, b, False))


def test_batches_and_strides():
    a, b = random(6 * 40, 64, torch.int8).view(2, 3, 40, 64), random(3 * 24, 80, torch.int8)[:, 16:].view(3, 24, 64)
    with laneloom.emulated("gfx1201", strict=True):
        out = torch.empty(2, 3, 24, 40, dtype=torch.int32).mT
        config = DirectConfig(block_m=32, block_n=32, num_warps=2)
        laneloom.matmul(a, b.mT, out=out, out_dtype=torch.int32, config=config)
    assert torch.equal(out.double(), a.double() @ b.double().mT)


def test_nan_and_infinity():
    a, b = (random(20, 40, torch.float8_e5m2) for _ in range(2))
    a[3, 39] = torch.inf
    b[5, 0] = torch.nan
    with laneloom.emulated("gfx1201"):
        got = product(a, b, True)
    truth = a.double() @ b.double().T
    assert torch.equal(got.isnan(), truth.isnan())
    assert torch.equal(got.isinf(), truth.isinf())


@pytest.mark.parametrize(("dtype", "out"), [("int8", "int32"), ("bf8", "bf16"), *rarely(("fp8", "fp32"))])
def test_loads_are_16_bytes_and_half_as_many(dtype, out):
    problem = MatmulProblem.contiguous(512, 512, 512, dtype=dtype, dtype_out=out, layout="nt")
    found = {}
    for doubled in (True, False):
        config = DirectConfig(doubled=doubled)
        code = code_object(problem, get_gpu("gfx1201"), config)
        instructions = parse_listing(code.asm).instructions
        loads = Counter(i.width_bytes for i in instructions if i.kind is Kind.GLOBAL_LOAD)
        assert set(loads) == {16 if doubled else 8}
        assert (code.spills, code.lds_bytes) == (0, 0)
        assert not any(i.mnemonic.startswith(("ds_", "v_permlane", "s_barrier")) for i in instructions)
        found[doubled] = sum(loads.values()), sum(i.kind is Kind.MATRIX for i in instructions)
    assert found[False] == (2 * found[True][0], found[True][1]), "the same products from half the loads"
    # the loop and the last, masked tile, each of block_m x block_n x block_k over four waves
    assert found[True][1] == 64 * 64 * 64 // 4 // 16**3 * 2


def test_refusals():
    a, b = random(32, 32, torch.int8), random(32, 32, torch.int8)
    with laneloom.emulated("gfx1201"):
        with pytest.raises(InvalidConfigError, match="contiguous along K"):
            laneloom.matmul(a, b, out_dtype=torch.int32, config=DirectConfig())
        with pytest.raises(InvalidConfigError, match="a: expected dtype"):
            laneloom.matmul(a.half(), b.half().T, config=DirectConfig())
    with laneloom.emulated("gfx1151"), pytest.raises(InvalidConfigError, match="RDNA 4"):
        laneloom.matmul(a, b.T, out_dtype=torch.int32, config=DirectConfig())
