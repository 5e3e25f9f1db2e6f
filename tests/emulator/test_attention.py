"""laneloom.flash_attention on emulated GPUs: every option, forward and gradients, every element against FP64.

The kernels are compiled for few constants, because compilation is most of the time: one pair of head dimensions and
four masks for most tests.
"""

from __future__ import annotations

import linecache

import numpy as np
import pytest
from sampled import EVERYTHING, rarely

import laneloom
from laneloom import verify
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.gpu import get_gpu
from laneloom.isa.listing import Kind
from laneloom.ops.attention import execute, reference
from laneloom.ops.attention.arguments import is_direct
from laneloom.ops.attention.config import AttentionConfig, plan

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
#: of each GPU the dtype that the case matrix runs in
TARGETS = {
    "gfx1151": torch.float16, "gfx1201": torch.bfloat16, "gfx942": torch.bfloat16, "gfx950": torch.float16,
    "gfx90a": torch.float16, "gfx908": torch.bfloat16, "gfx1250": torch.float16,
}  # fmt: skip
CDNA = ("gfx942", "gfx950", "gfx90a", "gfx908")
D, D_V = 24, 40  # neither is a tile's width


@pytest.fixture(params=list(TARGETS))
def gpu(request):
    with laneloom.emulated(request.param) as emulation:
        yield emulation


@pytest.fixture
def gfx1151():
    with laneloom.emulated("gfx1151") as emulation:
        yield emulation


def operands(batch=1, heads=2, kv_heads=2, queries=70, keys=70, d=D, d_v=D_V, dtype=torch.float16, grad=True):
    shapes = ((batch, heads, queries, d), (batch, kv_heads, keys, d), (batch, kv_heads, keys, d_v))
    return tuple(torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes)


def exact(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def seen(queries: int, keys: int, causal, window) -> torch.Tensor:
    """The mask, written out: true where a query sees a key."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    at = i if causal == "top_left" else i + keys - queries
    mask = torch.ones(queries, keys, dtype=torch.bool)
    left, right = window or (None, None)
    if causal:
        mask &= j <= at
    if left is not None:
        mask &= j >= at - left
    if right is not None:
        mask &= j <= at + right
    return mask


def torchs_own(q, k, v, causal, window, scale, grad):
    """torch's flash attention and gradients in the same dtype, of the queries that see a key; the others are zeros.

    Its CPU kernel wants one head dimension: zeros after D or D_V change no score and no sum.
    """
    mask = seen(q.shape[2], k.shape[2], causal, window)
    some = mask.any(-1)
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k_each, v_each = (x.repeat_interleave(group, 1) for x in (k, v))
    d, d_v = q.shape[3], v.shape[3]
    scale = d**-0.5 if scale is None else scale
    q_wide, k_wide = (torch.nn.functional.pad(x, (0, max(0, d_v - d))) for x in (q[:, :, some], k_each))
    v_wide = torch.nn.functional.pad(v_each, (0, max(0, d - d_v)))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(
            q_wide, k_wide, v_wide, attn_mask=None if mask.all() else mask[some], scale=scale
        )[..., :d_v]
    whole = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    whole[:, :, some] = out.detach()
    if grad is None:
        return [whole]
    out.backward(grad[:, :, some])
    return [whole, q.grad, k.grad, v.grad]


def judge(got: list[torch.Tensor], theirs: list[torch.Tensor], truths: list[np.ndarray], name: str) -> None:
    """Each result errs at most twice as much as the worst element of torch's flash attention, and one rounding."""
    unit, least = verify.UNIT_ROUNDOFF[name], verify.SMALLEST[name] / 2
    for what, mine, other, truth in zip(("out", "dq", "dk", "dv"), got, theirs, truths, strict=False):
        assert mine.shape == truth.shape
        assert torch.isfinite(mine).all(), f"{what} has an element that no kernel wrote, or an overflow"
        allowed = 2 * np.abs(exact(other) - truth).max(initial=0.0)
        budget = allowed + np.maximum(unit * (np.abs(truth) + allowed), least)
        share = (np.abs(exact(mine) - truth) / budget).max(initial=0.0)
        assert share <= 1, f"{what}: error is {share:.2f} of the budget"


def judge_lse(lse: torch.Tensor, truth: np.ndarray, depth: int) -> None:
    """lse against FP64: the score's FP32 sum, the sum of weights, exp2 and log2, a few roundings each."""
    assert lse.dtype is torch.float32
    assert (np.isinf(truth) == np.isinf(exact(lse))).all()
    finite = np.isfinite(truth)
    error = np.abs(exact(lse)[finite] - truth[finite])
    assert error.max(initial=0.0) <= (depth + 16) * 2.0**-24 * max(1.0, np.abs(truth[finite]).max(initial=0.0))


def check(q, k, v, *, causal=False, window=None, scale=None) -> None:
    """Forward and, where gradients are recorded, backward against FP64 and torch."""
    out, lse = laneloom.flash_attention(q, k, v, causal=causal, window=window, scale=scale, return_lse=True)
    assert out.dtype is q.dtype
    grad = torch.randn(out.shape).to(q.dtype) if q.requires_grad else None
    left, right = window or (None, None)
    word = {False: "none", True: "bottom_right", "top_left": "top_left"}[causal]
    truth = reference.attention(
        exact(q), exact(k), exact(v), causal=word, scale=scale, left=left, right=right,
        grad=None if grad is None else exact(grad),
    )  # fmt: skip
    got, truths = [out], [truth.out]
    if grad is not None:
        got += torch.autograd.grad(out, (q, k, v), grad)
        truths += [truth.dq, truth.dk, truth.dv]
    judge(got, torchs_own(q, k, v, causal, window, scale, grad), truths, NAMES[q.dtype])
    judge_lse(lse, truth.lse, q.shape[3])


MASKS = {
    "all": (False, None), "causal": (True, None), "top-left": ("top_left", None), "window": (False, (37, 5)),
    "narrow": (False, (0, 1)), "causal-window": (True, (20, None)), "top-left-window": ("top_left", (9, 40)),
    "ahead": (False, (None, 3)),
}  # fmt: skip
MASKED = {"gfx1151": "all", "gfx1201": "narrow", "gfx942": "causal", "gfx1250": "causal-window"}


@pytest.mark.parametrize(  # other masks and GPUs: of packed sequences
    ("name", "mask"), [(x, mask) for x in TARGETS for mask in MASKS if EVERYTHING or MASKED.get(x) == mask]
)
def test_masks_lengths_and_groups(name, mask):
    causal, window = MASKS[mask]
    for heads, kv_heads, queries, keys in ((2, 2, 67, 67), (4, 2, 40, 97), (3, 1, 97, 40)):
        q, k, v = operands(2 if heads == 2 else 1, heads, kv_heads, queries, keys, dtype=TARGETS[name])
        with laneloom.emulated(name) as gpu:
            check(q, k, v, causal=causal, window=window)
        ran = [record.kernel for record in gpu.launches]
        assert ran == ["attention_forward", "attention_backward", "attention_backward"]


@pytest.mark.turning("gpu", 2)
@pytest.mark.covering
@pytest.mark.parametrize("queries", [1, 16])
def test_few_queries(gpu, queries):
    q, k, v = operands(2, 4, 1, queries, 75, grad=False, dtype=TARGETS[gpu.gpu.name])
    assert plan(execute.problem_of(q, k, v, "fp16", None, execute.Band()), gpu.gpu).num_warps == 1
    check(q, k, v)
    check(q, k, v, causal=True)


@pytest.mark.parametrize(
    ("name", "d", "d_v", "grad"),
    [
        ("gfx1151", 16, 16, True), *rarely(("gfx1151", 512, 512, False), ("gfx1201", 80, 128, True)),
        ("gfx942", 16, 40, False), ("gfx942", 136, 136, True), ("gfx1250", 16, 40, EVERYTHING),
        *rarely(("gfx1201", 264, 16, False), ("gfx950", 80, 16, True), ("gfx950", 512, 200, True)),
        *rarely(("gfx1250", 136, 512, False)),
        *rarely(("gfx1151", 136, 200, True), ("gfx942", 264, 264, True), ("gfx1151", 512, 512, True)),
        *rarely(("gfx1201", 160, 64, True), ("gfx1151", 64, 160, True), ("gfx1250", 136, 512, True)),
    ],
)  # fmt: skip
def test_head_dimensions(name, d, d_v, grad):
    with laneloom.emulated(name):
        check(*operands(1, 1, 1, 35, 50, d, d_v, TARGETS[name], grad), causal=True)


@pytest.mark.parametrize(
    ("name", "d", "d_v"),
    [("gfx942", D, D_V), ("gfx950", 64, 64),
     *rarely(("gfx942", 128, 128), *(("gfx950", d, d) for d in (16, 24, 128, 256)))],
)  # fmt: skip
def test_reads_of_lds_on_cdna(name, d, d_v):
    """No bank conflicts in any read of a tile, and strictly right: rows are permuted differently for each width."""
    with laneloom.emulated(name, strict=True, seed=7, profile=True) as emulation:
        check(*operands(1, 1, 1, 66, 45, d, d_v, TARGETS[name]), causal=True)
    assert [launch.kernel for launch in emulation.launches] == ["attention_forward", *["attention_backward"] * 2]
    for launch in emulation.launches:
        for read in (i for i in launch.profile.instructions if i.kind is Kind.LDS_LOAD):
            # Triton before 3.8 turns results, once a program, through LDS that it lays out with conflicts.
            if parse_version(triton_version()) >= (3, 8) or "convert_layout" not in python_line(read.source):
                assert read.conflicts == 0, read.source


def python_line(source: str) -> str:
    """The text of "file:line"."""
    file, _, line = source.rpartition(":")
    return linecache.getline(file, int(line))


def test_tile_edges(gfx1151):
    """One less, as many, and one more than a program's queries and a step's keys."""
    for queries, keys in ((63, 31), (64, 32), (65, 33), (64, 64), (128, 1)):
        check(*operands(1, 1, 1, queries, keys, grad=False))


def test_gfx1100():
    with laneloom.emulated("gfx1100"):
        check(*operands(1, 2, 1, 40, 40, grad=False), causal=True)


@pytest.mark.parametrize("name", ["gfx1151", *rarely("gfx1250", "gfx942", "gfx1201", "gfx950", "gfx90a", "gfx908")])
def test_strict(name):
    """Waits, races, bits that nobody wrote, barriers; waves and workgroups in another order give the same bits."""
    q, k, v = operands(1, 2, 1, 66, 45, dtype=TARGETS[name])
    results = []
    for strict, seed in ((False, 0), (True, 7)):
        with laneloom.emulated(name, strict=strict, seed=seed):
            out, lse = laneloom.flash_attention(q, k, v, causal=True, return_lse=True, deterministic=True)
            grads = torch.autograd.grad((out, lse), (q, k, v), (torch.ones_like(out), torch.ones_like(lse)))
        results.append([out.detach(), lse.detach(), *grads])
    for plain, strict in zip(*results, strict=True):
        assert torch.equal(plain, strict)


def test_nothing_to_see(gfx1151):
    q, k, v = operands(2, 4, 2, 5, 0)
    out, lse = laneloom.flash_attention(q, k, v, return_lse=True)
    assert out.shape == (2, 4, 5, D_V)
    assert not out.any()
    assert (lse == -torch.inf).all()
    out.sum().backward()
    assert not q.grad.any()
    for batch, heads, queries, keys in ((2, 2, 0, 9), (0, 2, 3, 3), (1, 0, 3, 3), (1, 2, 0, 0)):
        q, k, v = operands(batch, heads, heads, queries, keys)
        out = laneloom.flash_attention(q, k, v)
        assert out.shape == (batch, heads, queries, D_V)
        out.sum().backward()
        assert not k.grad.any()
    assert not gfx1151.launches


def test_rows_that_see_nothing(gfx1151):
    """Causal, more queries than keys: the first 57 rows are zeros, LSE -inf, and no gradient comes from them."""
    q, k, v = operands(1, 2, 1, 97, 40)
    out, lse = laneloom.flash_attention(q, k, v, causal=True, return_lse=True)
    assert not out[:, :, :57].any()
    assert (lse[:, :, :57] == -torch.inf).all()
    assert torch.isfinite(lse[:, :, 57:]).all()
    (dq,) = torch.autograd.grad((out, lse), q, (torch.ones_like(out), torch.zeros_like(lse)))
    assert not dq[:, :, :57].any()


def test_strides(gfx1151):
    """Views of [B, N, H, D] are read where they lie; what kernels cannot read is copied; the same bits either way."""
    dense = operands(2, 2, 2, 40, 40, grad=False)
    expected = laneloom.flash_attention(*dense)
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in dense]
    assert all(is_direct(x, x.data_ptr()) and not x.is_contiguous() for x in swapped)
    across = [x.mT.contiguous().mT for x in dense]
    odd = [torch.nn.functional.pad(x, (3, 2))[..., 3:-2] for x in dense]
    assert not any(is_direct(x, x.data_ptr()) for x in (*across, *odd))
    for variant in (swapped, across, odd):
        assert torch.equal(laneloom.flash_attention(*variant), expected)
    q, k, v = dense
    one = laneloom.flash_attention(q, k[:1].expand(2, -1, -1, -1), v[:1].expand(2, -1, -1, -1))
    assert torch.equal(one, laneloom.flash_attention(q, k[:1].repeat(2, 1, 1, 1), v[:1].repeat(2, 1, 1, 1)))


def test_gradients_through_views(gfx1151):
    """The result and the gradients lie as the operands do: what models make of [B, N, H, D] copies nothing."""
    q, k, v = operands(1, 2, 2, 40, 40)
    out = laneloom.flash_attention(q, k, v)
    base = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    view = laneloom.flash_attention(*views)
    gradients = torch.autograd.grad(view.sum(), views)  # an expanded gradient
    for one, other in zip(base, gradients, strict=True):
        assert torch.equal(one, other)
    assert [x.stride() for x in (view, *gradients)] == [x.stride() for x in (views[2], *views)]


def test_lse_is_differentiable(gfx1151):
    q, k, v = operands(1, 2, 1, 50, 40)
    out, lse = laneloom.flash_attention(q, k, v, causal="top_left", scale=0.3, return_lse=True)
    grad, grad_lse = torch.randn(out.shape).half(), torch.randn(lse.shape)
    words = {"causal": "top_left", "scale": 0.3}
    both = reference.attention(exact(q), exact(k), exact(v), **words, grad=exact(grad), grad_lse=exact(grad_lse))
    only = reference.attention(exact(q), exact(k), exact(v), **words, grad=0 * exact(grad), grad_lse=exact(grad_lse))
    got = torch.autograd.grad((out, lse), (q, k, v), (grad, grad_lse), retain_graph=True)
    from_lse = torch.autograd.grad(lse, (q, k), grad_lse)
    # dS is rounded to fp16 and summed, one more rounding ends it: two units of the largest sum of magnitudes.
    for mine, truth in zip((*got, *from_lse), (both.dq, both.dk, both.dv, only.dq, only.dk), strict=True):
        assert np.abs(exact(mine) - truth).max() <= 4 * 2.0**-11 * np.abs(truth).max()


@pytest.mark.parametrize("scale", [-0.7, 0.0, 40.0])
def test_scales(gfx1151, scale):
    """Negative, none, and so steep that most weights are 0: nothing overflows."""
    check(*operands(1, 1, 1, 40, 40, grad=False), scale=scale)


def test_same_bits_whatever_else_is_in_the_batch(gfx1151):
    q, k, v = operands(3, 4, 2, 40, 50, grad=False)
    whole = laneloom.flash_attention(q, k, v, causal=True)
    assert torch.equal(whole, laneloom.flash_attention(q, k, v, causal=True))
    part = laneloom.flash_attention(q[1:2, 2:], k[1:2, 1:], v[1:2, 1:], causal=True)
    assert torch.equal(whole[1:2, 2:], part)


def test_arrays(gfx1151):
    q, k, v = (exact(x).astype(np.float16) for x in operands(1, 2, 1, 40, 40, grad=False))
    out, lse = laneloom.flash_attention(q, k, v, causal=True, return_lse=True)
    tensors = laneloom.flash_attention(*map(torch.from_numpy, (q, k, v)), causal=True, return_lse=True)
    assert (out == tensors[0].numpy()).all()
    assert (lse == tensors[1].numpy()).all()
    assert (laneloom.flash_attention(q[:, ::-1], k, v, causal=True) == out[:, ::-1]).all()


def test_nothing_beyond_the_output_is_written(gfx1151):
    q, k, v = operands(1, 2, 2, 67, 40, grad=False)
    out, lse = verify.Guarded((1, 2, 67, D_V), "fp16"), verify.Guarded((1, 2, 67), "fp32")
    problem = execute.problem_of(q, k, v, "fp16", None, execute.Band())
    arrays = {"q": q.numpy(), "k": k.numpy(), "v": v.numpy(), "out": out.array, "lse": lse.array}
    execute.attend_into(problem, gfx1151.gpu, arrays)
    assert np.isfinite(out.array).all()
    assert out.untouched_outside()
    assert lse.untouched_outside()


def test_operator(gfx1151):
    q, k, v = operands(1, 2, 1, 20, 30)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")  # the others: test_torch_operators.py
    operator, arguments = torch.ops.laneloom.flash_attention.default, (q, k, v, "bottom_right", None, None, None)
    torch.library.opcheck(operator, arguments, test_utils=tests)


def test_second_derivatives_are_refused(gfx1151):
    q, k, v = operands(1, 1, 1, 20, 20)
    (dq,) = torch.autograd.grad(laneloom.flash_attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match="no second derivatives"):
        dq.sum().backward()


BAD = {
    "q: expected 4 axes": (ArgumentError, lambda q, k, v: ((q[0], k, v), {})),
    "k: expected q's batch": (ArgumentError, lambda q, k, v: ((q, k[..., :16], v), {})),
    "v: expected k's batch": (ArgumentError, lambda q, k, v: ((q, k, v[:, :, 1:]), {})),
    "multiple of k's 2 heads": (ArgumentError, lambda q, k, v: ((q[:, :1], k, v), {})),
    "k: expected q's dtype": (ArgumentError, lambda q, k, v: ((q, k.bfloat16(), v), {})),
    "v: expected a torch tensor": (ArgumentError, lambda q, k, v: ((q, k, v.numpy()), {})),
    "q: expected dtype": (UnsupportedError, lambda q, k, v: ((q.float(), k, v), {})),
    "D must be a multiple of 8": (UnsupportedError, lambda q, k, v: ((q[..., :20], k[..., :20], v), {})),
    "D of v must be a multiple of 8": (UnsupportedError, lambda q, k, v: ((q, k, v[..., :8]), {})),
    "causal: expected": (ArgumentError, lambda q, k, v: ((q, k, v), {"causal": "left"})),
    "window: expected": (ArgumentError, lambda q, k, v: ((q, k, v), {"window": 5})),
    "window: expected (left, right)": (ArgumentError, lambda q, k, v: ((q, k, v), {"window": (-2, 1)})),
    "scale: expected a number": (ArgumentError, lambda q, k, v: ((q, k, v), {"scale": float("nan")})),
    "deterministic: expected": (ArgumentError, lambda q, k, v: ((q, k, v), {"deterministic": 1})),
}  # fmt: skip


@pytest.mark.parametrize("message", list(BAD))
def test_refusals(gfx1151, message):
    kind, spoil = BAD[message]
    arguments, options = spoil(*operands(1, 2, 2, 20, 20, grad=False))
    with pytest.raises(kind) as caught:
        laneloom.flash_attention(*arguments, **options)
    assert message in str(caught.value)
    assert not gfx1151.launches


@pytest.mark.parametrize("number", [np.float16, np.float32, np.int8])
def test_a_scale_may_be_numpys(gfx1151, number):
    q, k, v = operands(1, 1, 1, 33, 7, grad=False)
    assert torch.equal(laneloom.flash_attention(q, k, v, scale=number(2)), laneloom.flash_attention(q, k, v, scale=2))


def test_config_that_cannot(gfx1151):
    q, k, v = operands(1, 1, 1, 20, 20, d=512, d_v=512, grad=False)
    problem = execute.problem_of(q, k, v, "fp16", None, execute.Band())
    config = AttentionConfig(role="forward", rows=64, columns=32, out=128, num_warps=4)
    with pytest.raises(InvalidConfigError, match="bytes of LDS"):
        execute.attend_into(problem, get_gpu("gfx1151"), {}, config)


def test_outside_the_emulator():
    with pytest.raises(UnsupportedError, match=r"laneloom\.emulated"):
        laneloom.flash_attention(*operands(1, 1, 1, 4, 4, grad=False))
