"""laneloom.flash_attention of fp8 operands on emulated AMD GPUs: 8 bits in memory, multiplied as fp16, exactly.

The budget is laneloom.verify's: twice the worst error of the same arithmetic, softmax's weights rounded to fp16,
scaled by what was summed, and one rounding of the output.
"""

from __future__ import annotations

import pytest
from sampled import rarely

import laneloom
import laneloom.pytorch
from laneloom import verify
from laneloom.errors import UnsupportedError
from laneloom.ops.attention import reference

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("poisoned_allocations")
FLOAT8 = torch.float8_e4m3fn
D, D_V = 32, 48
SCALES = ("scale_q", "scale_k", "scale_v")


def operands(batch, heads, kv_heads, queries, keys, d=D, d_v=D_V):
    torch.manual_seed(0)
    shapes = (batch, heads, queries, d), (batch, kv_heads, keys, d), (batch, kv_heads, keys, d_v)
    return tuple(torch.randn(shape).to(FLOAT8) for shape in shapes)


def check(got, q, k, v, scale, name, causal="none"):
    """All of O and LSE; scale: of the scores, [B, H]; v in FP64, as it counts."""
    (out, lse), group = got, q.shape[1] // k.shape[1]
    wide = [x.double().numpy() for x in (q, k, v)]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            one = [x[b : b + 1, i : i + 1] for x, i in zip(wide, (h, h // group, h // group), strict=True)]
            factor = float(scale[b, h])
            truth = reference.attention(*one, causal=causal, scale=factor)
            # weights of the largest score 1, rounded to fp16
            scores = torch.as_tensor(factor * one[0] @ one[1].swapaxes(-1, -2))
            if causal != "none":
                i, j = torch.arange(scores.shape[2])[:, None], torch.arange(scores.shape[3])[None]
                scores = scores.masked_fill(j > i + scores.shape[3] - scores.shape[2], -torch.inf)
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            total, values = weights.sum(-1, keepdim=True), torch.as_tensor(one[2])
            pairs = (weights.half().double(), values), (weights, values.abs())
            same, summed = ((w @ x / total).numpy() for w, x in pairs)
            verdict = verify.judge(out[b : b + 1, h : h + 1].double().numpy(), truth.out, same, summed, name)
            assert verdict.ok, verdict
            assert abs(lse[b, h].double().numpy() - truth.lse).max() < 2e-5


@pytest.mark.parametrize(
    ("name", "d"), [("gfx950", 128), ("gfx1250", D), *rarely(("gfx1201", D), ("gfx1151", D), ("gfx942", D))]
)
def test_masks_groups_and_scales(name, d):
    q, k, v = operands(2, 4, 2, 40, 75, d)
    scales = [torch.rand(2, 2) + 0.5 for _ in range(3)]
    each = [x.double().repeat_interleave(2, 1) for x in scales]
    with laneloom.emulated(name, strict=True, seed=5) as emulation:
        got = laneloom.flash_attention(
            q, k, v, causal=True, return_lse=True, **dict(zip(SCALES, scales, strict=True)))
        check(got, q, k, v.double() * scales[2].double()[..., None, None], d**-0.5 * each[0] * each[1], "bf16",
              "bottom_right")
        got = laneloom.flash_attention(q, k, v, return_lse=True, scale_v=3.0, scale_k=0.5, out_dtype=torch.float16)
        check(got, q, k, v.double() * 3, torch.full((2, 4), d**-0.5 / 2), "fp16")
        assert [record.kernel for record in emulation.launches] == ["attention_forward"] * 2


@pytest.mark.parametrize("name", ["gfx1151", *rarely("gfx942", "gfx1201", "gfx950", "gfx1250")])
def test_strict(name):
    """Waits, races, bits that nobody wrote; rows of positions, and rows that are copied."""
    q, k, v = operands(1, 2, 1, 66, 45)
    options = dict.fromkeys(SCALES, torch.ones(1)) | {"causal": True}
    with laneloom.emulated(name, strict=True, seed=7):
        want = laneloom.flash_attention(q, k, v, **options)
        swapped = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        assert torch.equal(laneloom.flash_attention(*swapped, **options), want)
        odd = torch.nn.functional.pad(v.view(torch.uint8), (3, 2)).view(FLOAT8)[..., 3:-2]
        assert torch.equal(laneloom.flash_attention(q, k, odd, **options), want)


@pytest.mark.parametrize("name", ["gfx942", "gfx950", "gfx1250"])
def test_every_code(name):
    """Of one key, O is V: CDNA's conversion is Triton's, exact for each of 256 codes."""
    v = torch.arange(256, dtype=torch.uint8).view(FLOAT8).view(1, 8, 1, 32)
    q = torch.zeros(1, 8, 1, 16).to(FLOAT8)
    with laneloom.emulated(name):
        got = laneloom.flash_attention(q, q, v, out_dtype=torch.float16)
    assert torch.equal(got.nan_to_num(nan=7e4), v.half().nan_to_num(nan=7e4))


def test_packed():
    """Each sequence by itself, to the bit, with scales of its own."""
    queries, keys = [0, 5, 5, 38, 71], [0, 9, 21, 61, 101]
    torch.manual_seed(0)
    q, k, v = (torch.randn(n, h, d).to(FLOAT8) for n, h, d in ((71, 4, D), (101, 2, D), (101, 2, D_V)))
    scales = [torch.rand(4, 2) + 0.5 for _ in SCALES]
    starts = {f"cu_seqlens_{x}": torch.tensor(at, dtype=torch.int32) for x, at in (("q", queries), ("k", keys))}
    with laneloom.emulated("gfx1201"):
        got = laneloom.flash_attention(q, k, v, causal=True, **starts, **dict(zip(SCALES, scales, strict=True)))
        for b in (2, 3):  # the others take tiles of fewer queries
            rows, columns = slice(*queries[b : b + 2]), slice(*keys[b : b + 2])
            parts = (x[at].transpose(0, 1)[None] for x, at in ((q, rows), (k, columns), (v, columns)))
            options = {name: x[b : b + 1].clone() for name, x in zip(SCALES, scales, strict=True)}
            want = laneloom.flash_attention(*parts, causal=True, **options)
            assert torch.equal(got[rows].transpose(0, 1)[None], want)


def test_in_pytorch():
    """What tests/emulator/test_torch_operators.py holds for operands that torch compares: test_schema does not."""
    q, k, v = operands(1, 2, 1, 66, 45)
    operator = torch.ops.laneloom.flash_attention_float8
    with laneloom.emulated("gfx1151"):
        tests = ("test_faketensor", "test_autograd_registration")
        options = dict.fromkeys(SCALES, torch.ones(1))
        torch.library.opcheck(operator.default, (q, k, v, "bottom_right"), options, test_utils=tests)
        want = laneloom.flash_attention(q, k, v, causal=True, **options)
        with torch.autocast("cpu", torch.float16):
            assert torch.equal(laneloom.flash_attention(q, k, v, causal=True, **options), want)
        got = torch.vmap(lambda x: operator(x, k, v, "bottom_right", **options)[0])(torch.stack([q, q]))
        assert torch.equal(got, torch.stack([want, want]))


def test_refusals():
    q, k, v = operands(1, 1, 1, 20, 20, 24, 24)
    with laneloom.emulated("gfx1151"):
        with pytest.raises(UnsupportedError, match="multiples of 16"):
            laneloom.flash_attention(q, k, v)
        q, k, v = operands(1, 1, 1, 20, 20)
        with pytest.raises(UnsupportedError, match=r"got torch\.float8_e5m2"):
            laneloom.flash_attention(q.to(torch.float8_e5m2), k, v)
        options = dict.fromkeys(SCALES, torch.ones(1))
        with pytest.raises(UnsupportedError, match="no gradients"):
            laneloom.flash_attention(q.requires_grad_(), k, v, causal=True, **options).sum().backward()
