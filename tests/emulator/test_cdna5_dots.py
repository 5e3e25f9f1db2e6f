"""Triton's products as code of CDNA 5 (gfx1250), in strict mode, against FP64: types, tails, transposes, MX scales."""

import pytest
from sampled import in_turn, sampled

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import laneloom  # noqa: E402

FP8, BF8 = torch.float8_e4m3fn, torch.float8_e5m2
#: (A, B, sums) -> the matrix instruction that Triton chooses
KINDS = {
    (torch.float16, torch.float16, torch.float32): "v_wmma_f32_16x16x32_f16",
    (torch.bfloat16, torch.bfloat16, torch.float32): "v_wmma_f32_16x16x32_bf16",
    (torch.float16, torch.float16, torch.float16): "v_wmma_f32_16x16x32_f16",
    (FP8, FP8, torch.float32): "_fp8_fp8",
    (FP8, BF8, torch.float32): "_bf8_fp8",  # its first operand is Triton's second
    (BF8, FP8, torch.float32): "_fp8_bf8",
    (BF8, BF8, torch.float32): "_bf8_bf8",
    (torch.int8, torch.int8, torch.int32): "v_wmma_i32_16x16x64_iu8",
    (torch.float32, torch.float32, torch.float32): "v_wmma_f32_16x16x4_f32",
    (torch.float64, torch.float64, torch.float64): None,
}


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, ACC: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), ACC)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * stride_am + inner[None, :] * stride_ak,
                    mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)  # fmt: skip
        b = tl.load(b_ptr + inner[:, None] * stride_bk + columns[None, :] * stride_bn,
                    mask=(inner[:, None] < k) & (columns[None, :] < n), other=0.0)  # fmt: skip
        acc = tl.dot(a, b, acc, out_dtype=ACC, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], acc, mask=(rows[:, None] < m) & (columns[None, :] < n))


def operand(rows, columns, dtype, transposed):
    rows, columns = (columns, rows) if transposed else (rows, columns)
    if dtype == torch.int8:
        x = torch.randint(-128, 128, (rows, columns), dtype=dtype)
    else:
        x = torch.randn(rows, columns, dtype=torch.float64).to(dtype)
    return x.T if transposed else x


def judge(c, a, b):
    """Integers exactly; floats within what rounding of each of k sums, in any order, can lose, and one more of C."""
    exact = a.double() @ b.double()
    if c.dtype == torch.int32:
        assert torch.equal(c.double(), exact)
        return
    eps = {torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}[c.dtype]
    bound = 2 * a.shape[1] * eps * (a.double().abs() @ b.double().abs()) + eps * exact.abs()
    assert ((c.double() - exact).abs() <= bound).all()


TL = {torch.float16: tl.float16, torch.float32: tl.float32, torch.float64: tl.float64, torch.int32: tl.int32}


@pytest.mark.covering
@pytest.mark.parametrize(
    ("kind", "transposed", "sizes"),
    [
        pytest.param(kind, transposed, sizes, id="-".join(str(x).split(".")[-1] for x in (*kind, transposed, sizes)))
        for of_kind, kind in sampled(enumerate(KINDS))
        for turn, transposed in enumerate([(False, False), (True, False), (False, True)])
        for sizes in in_turn(of_kind // 2 + turn, (64, 64, 128), (37, 51, 75), (1, 130, 200))
    ],
)
def test_dot(kind, transposed, sizes):
    m, n, k = sizes
    torch.manual_seed(3)
    a, b = operand(m, k, kind[0], transposed[0]), operand(k, n, kind[1], transposed[1])
    c = torch.full((m, n), -1 if kind[2] == torch.int32 else float("nan"), dtype=kind[2])
    block_k = 32 if kind[0] in (torch.float32, torch.float64) else 64
    with laneloom.emulated("gfx1250", strict=True) as gpu:
        product_kernel[(triton.cdiv(m, 32), triton.cdiv(n, 64))](
            a, b, c, m, n, k, *a.stride(), *b.stride(), ACC=TL[kind[2]], BM=32, BN=64, BK=block_k, num_warps=4
        )
    judge(c, a, b)
    used = [name for name in gpu.launches[-1].executed if name.startswith("v_wmma")]
    assert (not used) if KINDS[kind] is None else all(KINDS[kind] in name for name in used) and used


@triton.jit
def scaled_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, A: tl.constexpr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, A_PER_BYTE: tl.constexpr, B_PER_BYTE: tl.constexpr,
):  # fmt: skip
    rows, columns, blocks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    of_a, of_b = tl.arange(0, K // A_PER_BYTE), tl.arange(0, K // B_PER_BYTE)
    a = tl.load(a_ptr + rows[:, None] * (K // A_PER_BYTE) + of_a[None, :])
    b = tl.load(b_ptr + columns[None, :] * (K // B_PER_BYTE) + of_b[:, None])
    a_scale = tl.load(a_scale_ptr + rows[:, None] * (K // 32) + blocks[None, :])
    b_scale = tl.load(b_scale_ptr + columns[:, None] * (K // 32) + blocks[None, :])
    c = tl.dot_scaled(a, a_scale, A, b, b_scale, B)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], c)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def small_floats(kind, rows, k):
    """Random codes, none of which is NaN or infinite, as bytes, and their values in float64 [rows, k]."""
    if kind == "e2m1":
        codes = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8)
        return codes, torch.stack([FP4[(codes & 15).long()], FP4[(codes >> 4).long()]], -1).reshape(rows, k)
    values = (torch.randn(rows, k) * 4).to({"e4m3": FP8, "e5m2": BF8}[kind])
    return values.view(torch.uint8), values.double()


@pytest.mark.covering
@pytest.mark.parametrize(
    "kinds", sampled((a, b) for a in ("e4m3", "e5m2", "e2m1") for b in ("e4m3", "e5m2", "e2m1")))  # fmt: skip
@pytest.mark.parametrize("k", [128, 256])
def test_dot_scaled(kinds, k):
    torch.manual_seed(4)
    m, n = 64, 64
    (a, a_values), (b, b_values) = small_floats(kinds[0], m, k), small_floats(kinds[1], n, k)
    a_scale, b_scale = (torch.randint(120, 135, (rows, k // 32), dtype=torch.uint8) for rows in (m, n))
    c = torch.full((m, n), float("nan"))
    with laneloom.emulated("gfx1250", strict=True) as gpu:
        scaled_kernel[(1,)](
            a, a_scale, b, b_scale, c, A=kinds[0], B=kinds[1], M=m, N=n, K=k,
            A_PER_BYTE=2 if kinds[0] == "e2m1" else 1, B_PER_BYTE=2 if kinds[1] == "e2m1" else 1,
        )  # fmt: skip
    assert gpu.launches[-1].matching("v_wmma_scale_f32") > 0
    left, right = (
        values * torch.exp2(scale.double() - 127).repeat_interleave(32, 1)
        for values, scale in ((a_values, a_scale), (b_values, b_scale))
    )
    judge(c, left, right.T)


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float64, "v_pk_fma_f64"), (torch.float16, "v_wmma")])
def test_products_of_gfx1251(dtype, kind):
    a, b = torch.randn(19, 40).to(dtype), torch.randn(40, 17).to(dtype)
    with laneloom.emulated("gfx1251", strict=True) as gpu:
        got = laneloom.matmul(a, b, out_dtype=torch.float64 if dtype is torch.float64 else torch.float32).double()
    want, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    # 40 sums in the accumulator's type; torch's own FP64 makes as many.
    assert ((got - want).abs() <= 2 * 40 * 2.0 ** (-53 if dtype is torch.float64 else -24) * magnitude).all()
    assert gpu.launches[-1].matching(kind) > 0
