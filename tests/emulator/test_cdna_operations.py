"""laneloom's operations, and anybody's Triton kernels, as machine code of CDNA 1 to 4, in strict mode."""

import re

import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import laneloom  # noqa: E402
from laneloom.errors import HazardError, UnsupportedError  # noqa: E402


@pytest.fixture(params=["gfx908", "gfx90a", "gfx942", "gfx950"])
def gpu(request):
    torch.manual_seed(2)
    with laneloom.emulated(request.param, strict=True) as emulation:
        yield emulation


@pytest.mark.covering
@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.float16, 11), (torch.bfloat16, 8), (torch.float32, 24), (torch.float64, 53)]
)
@pytest.mark.parametrize("sizes", [(50, 37, 70), (1, 1, 1), (64, 64, 64)])
def test_matmul(gpu, dtype, bits, sizes):
    m, n, k = sizes
    a, b = torch.randn(k, m).to(dtype).T, torch.randn(k, n).to(dtype)
    got = laneloom.matmul(a, b).double()
    exact = (a.double().numpy().astype("longdouble") @ b.double().numpy().astype("longdouble")).astype("float64")
    magnitude = a.abs().double() @ b.abs().double()
    # One rounding of the output, and k roundings of sums in the accumulator: FP64's own, or FP32's.
    budget = 2.0**-bits * torch.from_numpy(abs(exact)) + k * 2.0 ** (-53 if bits == 53 else -24) * magnitude
    assert ((got - torch.from_numpy(exact)).abs() <= budget).all()
    if (gpu.gpu.name, dtype) == ("gfx908", torch.float64):  # by the vector unit
        assert gpu.launches[-1].matching("v_fma_f64") + gpu.launches[-1].matching("v_fmac_f64") > 0
    else:
        assert gpu.launches[-1].matching("v_mfma") > 0


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_floats(gpu, dtype):
    a, b = torch.randn(33, 70).to(dtype), torch.randn(21, 70).to(dtype).T
    want = a.double() @ b.double()
    magnitude = a.double().abs() @ b.double().abs()
    assert ((laneloom.matmul(a, b) - want).abs() <= 2.0**-24 * (want.abs() + 70 * magnitude)).all()
    with pytest.raises(UnsupportedError, match="got fp8 and bf8"):
        laneloom.matmul(torch.randn(4, 4).to(torch.float8_e4m3fn), torch.randn(4, 4).to(torch.float8_e5m2))


@pytest.mark.turning("gpu")
def test_int8_gemm_with_terms(gpu):
    a, b = torch.randint(-128, 128, (2, 40, 40), dtype=torch.int8)
    assert torch.equal(laneloom.matmul(a, b, out_dtype=torch.int32), (a.int() @ b.int()))
    x, y, bias = torch.randn(33, 20).half(), torch.randn(20, 17).half(), torch.randn(17).half()
    want = torch.relu(0.5 * (x.double() @ y.double()) + bias.double())
    got = laneloom.gemm(x, y, alpha=0.5, bias=bias, activation="relu")
    assert (got.double() - want).abs().max() <= 2.0**-10 * want.abs().max()


TILES = {"gfx950 bf16": ("nt", 64), "gfx950 int8": ("nn", 128), "gfx942 fp16": ("tn", 32)}


@pytest.mark.parametrize("case", TILES)
def test_tiles_of_256_rows(case):
    """Rows and columns behind the last tile's, a last K-tile that is cut."""
    name, dtype = case.split()
    layout, block_k = TILES[case]
    torch.manual_seed(4)
    a, b = torch.randn(257, 170), torch.randn(170, 140)
    a, b = (x.mul(20).to(torch.int8) if dtype == "int8" else x.to(torch.bfloat16 if dtype == "bf16" else torch.float16)
            for x in (a, b))  # fmt: skip
    a = a.T.contiguous().T if layout[0] == "t" else a
    b = b.T.contiguous().T if layout[1] == "t" else b
    with laneloom.emulated(name, strict=True):
        config = f"mfma:block_m=256,block_n=128,block_k={block_k},num_warps=4"
        got = laneloom.matmul(a, b, out_dtype=torch.int32 if dtype == "int8" else torch.float32, config=config)
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert ((got.double() - exact).abs() <= (0 if dtype == "int8" else 171 * 2.0**-24) * magnitude).all()


@pytest.mark.turning("gpu")
def test_transform_and_transpose(gpu):
    x, matrix = torch.randn(3, 6, 6, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64)
    want = torch.einsum("bijk,il,jm,kn->blmn", x, matrix, matrix, matrix)
    assert (laneloom.transform3d(x, matrix) - want).abs().max() <= 2.0**-45 * want.abs().max()
    y = torch.arange(70 * 45, dtype=torch.int16).reshape(70, 45)
    assert torch.equal(laneloom.transpose(y), y.T)


@triton.jit
def dot_kernel(a, b, c, sam, sak, sbk, sbn, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        x = tl.load(a + i[:, None] * sam + k[None, :] * sak)
        y = tl.load(b + k[:, None] * sbk + j[None, :] * sbn)
        total = tl.dot(x, y, total)
    tl.store(c + i[:, None] * N + j[None, :], total)


DTYPES = {
    "gfx908": (torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float32),
    "gfx90a": (torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float32),
    "gfx942": (torch.float16, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float32),
    "gfx950": (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32),
}


@pytest.mark.covering
@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("turned", [False, True])
def test_tl_dot(gpu, kind, turned):
    """On gfx950 loads go straight to LDS, and LDS is read transposed."""
    dtype = DTYPES[gpu.gpu.name][kind]
    a, b = torch.randn(64, 128).to(dtype), torch.randn(128, 64).to(dtype)
    if turned:
        a, b = (x.to(torch.float32).T.contiguous().to(dtype).T for x in (a, b))
    c = torch.full((64, 64), float("nan"))
    dot_kernel[(1,)](a, b, c, *a.stride(), *b.stride(), 64, 64, 128, 64)
    want = a.double() @ b.double()
    # gfx942 multiplies FP32 with 10 bits of mantissa (xf32), which Triton uses unless told otherwise.
    allowed = 2.0**-9 if dtype is torch.float32 and gpu.gpu.name == "gfx942" else 2.0**-21
    assert (c - want).norm() <= allowed * want.norm()
    if gpu.gpu.name == "gfx950" and kind < 3 and not turned:
        assert gpu.launches[-1].matching("ds_read_b64_tr_") > 0


@triton.jit
def where_am_i(out, reductions, x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.store(out + i, tl.cumsum(values, 0))
    tl.atomic_add(reductions, tl.sum(values, 0))
    tl.atomic_max(reductions + 1, tl.max(values, 0))
    tl.store(reductions + 2 + tl.program_id(0), tl.program_id(0) + tl.num_programs(0))


def test_scans_reductions_and_atomics(gpu):
    x = torch.randint(-1000, 1000, (512,), dtype=torch.int32)
    out, reductions = torch.zeros_like(x), torch.zeros(10, dtype=torch.int32)
    where_am_i[(8,)](out, reductions, x, BLOCK=512)
    assert torch.equal(out, x.cumsum(0).int())
    assert reductions.tolist() == [8 * x.sum().item(), x.max().item(), *(8 + k for k in range(8))]


def test_a_missing_wait_and_a_race_are_found():
    """Of the compiled product, without its first wait for loads, and without its barriers."""
    from laneloom.emulator import launch as launching
    from laneloom.emulator.program import Program

    a, b = torch.randn(50, 70).half(), torch.randn(70, 37).half()
    for pattern, kind in ((r"\n\ts_waitcnt vmcnt[^\n]*", "wait"), (r"\n\ts_barrier(?=\n)", "race")):

        def damaged(program, *args, pattern=pattern, **kw):
            text, count = re.subn(pattern, "", program.asm)
            assert count
            return launching.launch(Program(text, "gfx942", strict=True), *args, **kw)

        with laneloom.emulated("gfx942", strict=True) as emulation:
            emulation.launcher = damaged
            with pytest.raises(HazardError) as caught:
                laneloom.matmul(a, b)
        assert caught.value.kind == kind
