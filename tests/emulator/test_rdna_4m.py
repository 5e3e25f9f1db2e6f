"""RDNA 4m (gfx1170 to gfx1172): gfx11's instructions, waits and start state with RDNA 4's WMMA, in strict mode."""

import re

import pytest
from sampled import rarely

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.cli.gpus import to_dict  # noqa: E402
from laneloom.codegen import assemble, versions  # noqa: E402
from laneloom.errors import UnsupportedError  # noqa: E402
from laneloom.gpu import GPUS, get_gpu  # noqa: E402
from laneloom.isa.check_pairs import rules_of, why_illegal  # noqa: E402
from laneloom.isa.parse import instruction  # noqa: E402
from laneloom.ops.matmul.execute import code_object  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

OLD = versions.parse_version(versions.triton_version()) < (3, 9)
needs_new_triton = pytest.mark.skipif(OLD, reason="Triton 3.9 is the first that knows RDNA 4m")


@pytest.mark.skipif(not OLD, reason="this Triton knows RDNA 4m")
def test_an_older_triton_is_refused_in_one_sentence():
    with pytest.raises(UnsupportedError, match="does not know gfx1170"):
        assemble("s_endpgm", "gfx1170")


@pytest.mark.parametrize(("name", "version"), [("gfx1170", "3.8.0"), ("gfx1250", "3.6.0")])
def test_a_kernel_of_ones_own_is_refused_before_llvm_aborts(monkeypatch, name, version):
    monkeypatch.setattr("triton.__version__", version)
    with (
        pytest.raises(UnsupportedError, match=rf"triton {version} does not know {name} \(.*\); 3.9 does"),
        laneloom.emulated(name),
    ):
        pass


@needs_new_triton
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gfx1171", torch.bfloat16), ("gfx1172", torch.float8_e4m3fn),
        *rarely(("gfx1170", torch.float16), ("gfx1170", torch.int8)),
    ],
)
def test_products(name, dtype):
    torch.manual_seed(0)
    m, n, k = 67, 50, 75
    draw = torch.randint(-99, 99, (m + n, k)) if dtype is torch.int8 else torch.randn(m + n, k)
    a, b = draw[:m].to(dtype), draw[m:].to(dtype).T
    with laneloom.emulated(name, strict=True) as emulation:
        got = laneloom.matmul(a, b, out_dtype=torch.int32 if dtype is torch.int8 else torch.float32)
    want, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert ((got.double() - want).abs() <= k * 2.0**-24 * magnitude * (dtype is not torch.int8)).all()
    kind = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8_fp8", torch.int8: "iu8"}[dtype]
    assert emulation.launches[-1].matching(f"v_wmma_{'i32' if dtype is torch.int8 else 'f32'}_16x16x16_{kind}") > 0


@needs_new_triton
def test_fp32_in_assembly():
    """The writer's kernel descriptor is without the modes that this family lost."""
    torch.manual_seed(0)
    a, b = torch.randn(33, 20), torch.randn(20, 65)
    with laneloom.emulated("gfx1171", strict=True):
        got = laneloom.matmul(a, b, config="sgemm_k6")
    magnitude = a.double().abs() @ b.double().abs()
    assert ((got.double() - a.double() @ b.double()).abs() <= 20 * 2.0**-24 * magnitude).all()


@needs_new_triton
def test_attention_with_gradients():
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 2, 40, 32).half().requires_grad_() for _ in range(3))
    with laneloom.emulated("gfx1170", strict=True) as emulation:
        out = laneloom.flash_attention(q, k, v, causal=True)
        out.sum().backward()
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True)
    want.sum().backward()
    # P and dS are rounded to fp16 once each, as the output is: three roundings of the largest number, for 40 keys.
    for mine, theirs in ((out, want), *((x.grad, y.grad) for x, y in zip((q, k, v), exact, strict=True))):
        assert (mine.double() - theirs).abs().max() <= 3 * 2.0**-11 * 40**0.5 * theirs.abs().max()
    assert all(launch.matching("v_wmma_f32_16x16x16_f16") > 0 for launch in emulation.launches)


@needs_new_triton
def test_its_code_has_the_waits_of_gfx11_and_the_operands_of_gfx12():
    code = {g: code_object(MatmulProblem.contiguous(256, 256, 256), get_gpu(g)).asm for g in ("gfx1151", "gfx1170")}
    assert "s_wait_loadcnt" not in code["gfx1170"]
    assert "s_waitcnt vmcnt" in code["gfx1170"]
    assert "ieee_mode" not in code["gfx1170"]
    for gpu, registers in (("gfx1151", 8), ("gfx1170", 4)):
        found = re.search(r"v_wmma_f32_16x16x16_f16 v\[\d+:\d+\], v\[(\d+):(\d+)\]", code[gpu])
        assert int(found[2]) - int(found[1]) + 1 == registers


def test_pairs():
    """As LLVM's assembler: gfx12's minimum and moves, but no register that both halves share."""

    def broken(x, y, gpu):
        halves = [instruction(name, operands, 1, "", None) for name, operands in (x, y)]
        return why_illegal(*halves, rules_of(get_gpu(gpu)))

    moves = (("v_mov_b32", "v0, v4"), ("v_mov_b32", "v3, v8"))
    shared = (("v_mul_f32", "v0, v4, v1"), ("v_mul_f32", "v3, v4, v2"))
    most = (("v_max_num_f32", "v0, v1, v2"), ("v_mov_b32", "v3, v4"))
    verdicts = {g: [not broken(*pair, g) for pair in (moves, shared, most)] for g in ("gfx1151", "gfx1170", "gfx1201")}
    assert verdicts == {
        "gfx1151": [False, False, False], "gfx1170": [True, False, True], "gfx1201": [True, True, True],
    }  # fmt: skip


def test_nothing_is_published_of_it():
    for name in ("gfx1170", "gfx1171", "gfx1172"):
        told = to_dict(GPUS[name])
        assert [told[key] for key in ("compute_units", "clock_ghz", "bandwidth_gbs")] == [None] * 3
        assert told["peak_tflops"] == {}
    assert to_dict(GPUS["gfx1153"])["compute_units"] == 2
