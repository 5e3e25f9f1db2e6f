"""Published Triton kernels, unchanged, forward and backward, in strict mode: liger-kernel and fla-core from PyPI.

Budget: twice the error of torch's own FP32 on the same data, plus two roundings of the largest value: exp, log and
division of the GPUs differ from the CPU's by a few units in the last place.
"""

import pytest
from sampled import rarely

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import laneloom  # noqa: E402

pytestmark = pytest.mark.turning("gpu", 2)
GPUS = [*rarely("gfx1100"), "gfx1151", "gfx1201", "gfx90a"]
#: In 64 lanes: more waves than a workgroup has; a sum of two waves that both store, in different roundings.
NOT_IN_64_LANES = ("test_cross_entropy", "test_gated_linear_attention")


@pytest.fixture(params=GPUS)
def gpu(request):
    if request.param == "gfx90a" and request.node.originalname in NOT_IN_64_LANES:
        pytest.skip("not for 64 lanes")
    torch.manual_seed(3)
    with laneloom.emulated(request.param, strict=True) as emulation:
        yield emulation
    assert len(emulation.launches) >= 2  # one forward, one backward at least: nothing fell back


def check(kernel, plain, inputs):
    """Output and gradients of `kernel` against `plain` in FP64, within the budget that `plain` in FP32 gives."""
    generator = torch.Generator().manual_seed(7)

    def run(function, dtype):
        leaves = [x.to(dtype).clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
        # Some packages write their gradients over their inputs: hand them copies that autograd knows.
        out = function(*[x.clone() if x.is_floating_point() else x for x in leaves])
        weights = torch.randn(out.shape, generator=generator.manual_seed(11), dtype=torch.float64).to(dtype)
        wanted = [x for x in leaves if x.is_floating_point()]
        return [out.detach(), *torch.autograd.grad(out, wanted, weights)]

    got, truth, single = run(kernel, torch.float32), run(plain, torch.float64), run(plain, torch.float32)
    for k, (g, t, s) in enumerate(zip(got, truth, single, strict=True)):
        scale = t.abs().max().clamp(min=1e-3)
        budget = 2 * (s.double() - t).abs().max() + 8 * 2.0**-24 * scale
        error = (g.double() - t).abs().max()
        assert error <= budget, f"{'output' if k == 0 else f'gradient {k}'}: {error:.3g} of {budget:.3g}"


class TestLiger:
    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("liger_kernel")

    def test_rms_norm(self, gpu):
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        check(
            lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False),
            lambda x, w: F.rms_norm(x, (100,), w, 1e-6),
            [torch.randn(6, 100), torch.randn(100)],
        )

    def test_layer_norm(self, gpu):
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        check(
            lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-6),
            lambda x, w, b: F.layer_norm(x, (100,), w, b, 1e-6),
            [torch.randn(6, 100), torch.randn(100), torch.randn(100)],
        )

    def test_swiglu(self, gpu):
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        check(LigerSiLUMulFunction.apply, lambda a, b: F.silu(a) * b, [torch.randn(6, 100), torch.randn(6, 100)])

    def test_geglu(self, gpu):
        from liger_kernel.ops.geglu import LigerGELUMulFunction

        check(
            LigerGELUMulFunction.apply, lambda a, b: F.gelu(a, approximate="tanh") * b,
            [torch.randn(6, 100), torch.randn(6, 100)],
        )  # fmt: skip

    def test_softmax(self, gpu):
        from liger_kernel.ops.softmax import LigerSoftmaxFunction

        check(LigerSoftmaxFunction.apply, lambda x: x.softmax(-1), [torch.randn(5, 300)])

    def test_rope(self, gpu):
        from liger_kernel.ops.rope import LigerRopeFunction

        angles = torch.outer(torch.arange(16.0), 1 / 10000 ** (torch.arange(0, 32, 2) / 32)).repeat(1, 2)
        cos, sin = angles.cos()[None], angles.sin()[None]

        def turned(x):
            half = torch.cat([-x[..., 16:], x[..., :16]], -1)
            return x * cos.to(x.dtype) + half * sin.to(x.dtype)

        check(
            lambda q, k: torch.cat(LigerRopeFunction.apply(q, k, cos, sin), 1),
            lambda q, k: torch.cat([turned(q), turned(k)], 1),
            [torch.randn(1, 4, 16, 32), torch.randn(1, 2, 16, 32)],
        )

    def test_cross_entropy(self, gpu):
        from liger_kernel.transformers.functional import liger_cross_entropy

        targets = torch.randint(0, 130, (7,))
        targets[2] = -100
        check(
            lambda x: liger_cross_entropy(x, targets), lambda x: F.cross_entropy(x, targets),
            [torch.randn(7, 130)],
        )  # fmt: skip


class TestFlashLinearAttention:
    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("fla")

    def test_gated_linear_attention(self, gpu):
        from fla.ops.gla import fused_recurrent_gla

        def plain(q, k, v, g):
            """S_t = exp(g_t) S_{t-1} + k_t v_t^T; o_t = q_t S_t / sqrt(K)."""
            state = q.new_zeros(1, 2, 16, 16)
            steps = []
            for t in range(q.shape[1]):
                state = state * g[:, t, :, :, None].exp() + k[:, t, :, :, None] * v[:, t, :, None, :]
                steps.append((q[:, t, :, :, None] * state).sum(2) / 4)
            return torch.stack(steps, 1)

        q, k, v = (torch.randn(1, 12, 2, 16) for _ in range(3))
        g = F.logsigmoid(torch.randn(1, 12, 2, 16))
        check(lambda *x: fused_recurrent_gla(*x)[0], plain, [q, k, v, g])
