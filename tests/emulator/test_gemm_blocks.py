"""laneloom.gemm of 8-bit floats whose blocks of 128 along K have scales, on emulated GPUs in strict mode."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
from sampled import rarely

import laneloom
from laneloom import verify
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.ops.matmul import gemm, reference

torch = pytest.importorskip("torch")
import laneloom.pytorch  # noqa: E402  registers the operators

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
M, N, K = 20, 140, 136
FP8, BF8 = torch.float8_e4m3fn, torch.float8_e5m2
NEWER = ("gfx1250", "gfx1171") if parse_version(triton_version()) >= (3, 9) else ()  #: which older Tritons do not know
GPUS = ("gfx1151", "gfx1201", "gfx90a", "gfx942", "gfx950", *NEWER, *rarely("gfx1100", "gfx908"))


def over(size: int, together: int = 128) -> int:
    return -(-size // together)


def floats(*shape: int, dtype=FP8) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def scales(*shape: int) -> torch.Tensor:
    return torch.rand(shape) + 0.5


def of_blocks(m: int, n: int, k: int, rows: int = 1, columns: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    return scales(over(m, rows), over(k)), scales(over(k), over(n, columns))


def check(got: torch.Tensor, *operands: torch.Tensor, **terms) -> None:
    """operands: a, b and their scales."""
    arrays = [x.double().numpy() for x in (got, *operands)]
    terms = {name: x.double().numpy() if isinstance(x, torch.Tensor) else x for name, x in terms.items()}
    verdict = reference.judge_blocks(*arrays, NAMES[got.dtype], **terms)
    assert verdict.ok, verdict


@pytest.fixture
def gfx1201():
    torch.manual_seed(5)
    with laneloom.emulated("gfx1201", strict=True, seed=7) as emulation:
        yield emulation


#: rows and columns that share a scale, M, N and K, dtypes
CASES = {
    "rows with 128 columns": ((1, 128), (19, 150, 200), (FP8, FP8)),
    "rows with columns": ((1, 1), (21, 40, 145), (BF8, BF8)),
    "128 x 128 both": ((128, 128), (140, 20, 129), (FP8, BF8)),
    "128 rows with columns": ((128, 1), (20, 33, 256), (BF8, FP8)),
    "less than a block of K": ((1, 128), (7, 131, 40), (FP8, BF8)),
}


@pytest.mark.covering
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("case", CASES)
def test_products(name, case):
    """Ragged in every direction, both orders of the types, A and B of either layout."""
    torch.manual_seed(3)
    (rows, columns), (m, n, k), dtypes = CASES[case]
    a, b = floats(m, k, dtype=dtypes[0]), floats(n, k, dtype=dtypes[1]).T
    if rows > 1:
        a, b = a.T.contiguous().T, b.contiguous()
    scale_a, scale_b = of_blocks(m, n, k, rows, columns)
    with laneloom.emulated(name, strict=True, seed=3) as emulation:
        got = laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b)
    assert got.dtype == torch.float32
    check(got, a, b, scale_a, scale_b)
    assert [record.kernel for record in emulation.launches] == ["matmul_blocks"]


def operands() -> tuple[torch.Tensor, ...]:
    """a, b and their scales, of sizes and strides for which Triton compiles once."""
    return floats(M, K), floats(K, N), *of_blocks(M, N, K)


def test_batches_broadcast(gfx1201):
    """Scales of some of the batch's axes; of a batch of three strides the first axis goes one by one."""
    a, b = floats(2, 1, 2, 16, K), floats(3, 1, K, 16)
    scale_a, scale_b = scales(2, 1, 1, 16, 2), scales(3, 2, 2, 16)
    check(laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b), a, b, scale_a, scale_b)
    assert len(gfx1201.launches) == 2


def test_any_strides(gfx1201):
    """Scales transposed and sliced, and one that is repeated; operands whose neighbours are apart."""
    a, b = floats(2 * M, 3 * K)[::2, ::3], floats(N, 2 * K).T[::2]
    scale_a, scale_b = scales(3, M).T[:, ::2], scales(1, 1, 5)[:, :, 1::2].expand(2, 2, 2)[1]
    check(laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b), a, b, scale_a, scale_b)


def test_terms_in_place(gfx1201):
    """A launch of their own on FP32 sums."""
    a, b, scale_a, scale_b = operands()
    bias, numbers = floats(N, dtype=torch.bfloat16), {"alpha": -0.75, "beta": 0.5, "activation": "silu"}
    c = floats(M, N, dtype=torch.float16)
    before = c.clone()
    assert laneloom.gemm(a, b, c, bias=bias, out=c, scale_a=scale_a, scale_b=scale_b, **numbers) is c
    check(c, a, b, scale_a, scale_b, c=before, bias=bias, **numbers)
    assert [record.kernel for record in gfx1201.launches] == ["matmul_blocks", "apply_epilogue"]


def test_out_along_m_and_nan_around_everything(gfx1201):
    """The transpose is multiplied, with the scales of the other side; out lies between guard bands."""

    def amid_nan(x: torch.Tensor) -> torch.Tensor:
        around = torch.full((x.shape[0] + 40, x.shape[1] + 40), torch.nan).to(x.dtype)
        around[16:-24, 16:-24] = x
        return around[16:-24, 16:-24]

    a, b, scale_a, scale_b = map(amid_nan, operands())
    guarded = verify.Guarded((M, N), "fp16", (1, 23))
    out = torch.from_numpy(guarded.array)
    laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b, out=out)
    check(out, a, b, scale_a, scale_b)
    assert guarded.untouched_outside()


def test_nan_and_infinity_of_a_scale_show_where_it_is_used_alone(gfx1201):
    a, b, scale_a, scale_b = operands()
    scale_a[3, 1], scale_b[0, 1] = torch.nan, torch.inf
    got = laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b)
    check(got, a, b, scale_a, scale_b)
    assert got[3].isnan().all()
    assert got[:3, 128:].isinf().all()
    assert got[:3, :128].isfinite().all()


def test_empty_sums_and_alpha_zero(gfx1201):
    bias = floats(5, dtype=torch.float32)
    got = laneloom.gemm(floats(3, 0), floats(0, 5), bias=bias, scale_a=scales(3, 0), scale_b=scales(0, 1))
    assert torch.equal(got, bias.expand(3, 5))
    a, nan = floats(3, 200), torch.full((3, 2), torch.nan)
    got = laneloom.gemm(a, floats(200, 5), bias=bias, alpha=0, scale_a=nan, scale_b=scales(2, 1))
    assert torch.equal(got, bias.expand(3, 5))
    empty = laneloom.gemm(floats(0, 200), floats(200, 5), scale_a=scales(0, 2), scale_b=scales(2, 1))
    assert empty.shape == (0, 5)


def test_arrays(gfx1201, monkeypatch):
    """Of ml_dtypes; where it is not installed, bits that are taken for them."""
    a, b, scale_a, scale_b = operands()
    b = b.float().to(BF8)
    bits = [x.view(torch.uint8).numpy() for x in (a, b)]
    if find_spec("ml_dtypes"):
        ml_dtypes = import_module("ml_dtypes")
        bits = bits[0].view(ml_dtypes.float8_e4m3fn), bits[1].view(ml_dtypes.float8_e5m2)
    else:
        monkeypatch.setattr(gemm, "operand_dtypes", lambda *_: ("fp8", "bf8"))
    out, big_endian = np.full((N, M), np.nan, np.float16).T, scale_a.numpy().astype(">f4")
    assert laneloom.gemm(*bits, scale_a=big_endian, scale_b=scale_b.numpy()[::-1], out=out) is out
    check(torch.from_numpy(out), a, b, scale_a, scale_b.flip(0))


def test_operator(gfx1201):
    """Fake shapes and tracing with symbols for sizes; the test of the schema compares no 8-bit floats."""
    a, b, *both = operands()
    arguments = (a, b, None, None, 1.0, 0.0, None, torch.float32, None, *both)
    tests = ("test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.laneloom.gemm.default, arguments, test_utils=tests)


def test_torch_compile(gfx1201):
    compiled = torch.compile(
        lambda a, b, x, y: laneloom.gemm(a, b, scale_a=x, scale_b=y), fullgraph=True, backend="aot_eager")  # fmt: skip
    a, b, scale_a, scale_b = operands()
    assert torch.equal(compiled(a, b, scale_a, scale_b), laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b))
    torch._dynamo.reset()


def test_vmap(gfx1201):
    """A batch of A with common scales is one launch; batched scales take a call for every element."""
    _, b, scale_a, scale_b = operands()
    a, several = floats(2, M, K), scales(2, M, 2)

    def product(a, scale_a):
        return laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b)

    check(torch.vmap(product, (0, None))(a, scale_a), a, b, scale_a, scale_b)
    assert len(gfx1201.launches) == 1
    check(torch.vmap(product)(a, several), a, b, several, scale_b)
    assert len(gfx1201.launches) == 3


def refused(a=None, b=None, **given):
    """The call of `operands` with other values for some."""
    operand_a, operand_b, scale_a, scale_b = operands()
    return laneloom.gemm(
        operand_a if a is None else a, operand_b if b is None else b,
        **{"scale_a": scale_a, "scale_b": scale_b} | given)  # fmt: skip


BEHIND = r"behind batch axes that broadcast to \(\)"
A_SHAPES = rf"scale_a: expected scales of blocks along K, \(20, 2\) or \(1, 2\) {BEHIND}"
B_SHAPES = rf"scale_b: expected scales of blocks along K, \(2, 140\) or \(2, 2\) {BEHIND}"
REFUSALS = [
    (UnsupportedError, "scale_a: scales of blocks along K are for fp8 and bf8, a's dtype is fp16",
     lambda: refused(floats(M, K, dtype=torch.float16), floats(K, N, dtype=torch.float16))),
    (UnsupportedError, "scale_b: expected a number or dtype fp32, got fp16",
     lambda: refused(scale_b=scales(2, 2).half())),
    (ArgumentError, f"{B_SHAPES}, as the other operand's are, got none, or a number", lambda: refused(scale_b=None)),
    (ArgumentError, f"{A_SHAPES}, as the other operand's are, got none, or a number", lambda: refused(scale_a=0.5)),
    (ArgumentError, rf"{B_SHAPES}, .*, got \(1, 140\)", lambda: refused(scale_b=scales(1, N))),
    (ArgumentError, rf"{A_SHAPES}, .*, got \(20, 3\)", lambda: refused(scale_a=scales(M, 3))),
    (ArgumentError, rf"{A_SHAPES}, .*, got \(2, 20\)", lambda: refused(scale_a=scales(2, M))),
    (ArgumentError, rf"{A_SHAPES}, .*, got \(3, 20, 2\)", lambda: refused(scale_a=scales(3, M, 2))),
    (ArgumentError, rf"{B_SHAPES}, .*, got \(3, 2\)", lambda: refused(scale_b=scales(3, 2))),
    (ArgumentError, r"scale_a: expected a number, one element, one for each row in shape \(20,\), or scales of "
     r"blocks along K, got \(2,\)", lambda: refused(scale_a=scales(2))),
    (UnsupportedError, r"scale_a: expected a scale without gradients; use \.detach\(\)",
     lambda: refused(scale_a=scales(M, 2).requires_grad_())),
    (UnsupportedError, "a: expected an operand without gradients, torch.float8_e4m3fn would round them",
     lambda: refused(floats(M, K).requires_grad_()).sum().backward()),
    (UnsupportedError, "out_dtype: expected fp32, fp16 or bf16, got int32", lambda: refused(out_dtype=torch.int32)),
    (InvalidConfigError, "wmma: sums all of K alike, here blocks of it have scales",
     lambda: refused(config="wmma:block_m=64,block_n=64,block_k=32")),
    (InvalidConfigError, "blocks: the schedule is for blocks along K that have scales",
     lambda: refused(scale_a=1.0, scale_b=1.0, config="blocks:block_m=32,block_n=32,block_k=64,num_warps=4")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), REFUSALS)
def test_refusals(gfx1201, kind, message, call):
    with pytest.raises(kind, match=message):
        call()
