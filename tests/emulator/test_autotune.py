"""Autotuners and heuristics of Triton inside `emulated`: trials restore what they change, nobody needs a clock."""


import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import laneloom  # noqa: E402

pytestmark = pytest.mark.turning("gpu")


@pytest.fixture(params=["gfx1151", "gfx1201"])
def gpu(request):
    with laneloom.emulated(request.param) as emulation:
        yield emulation


def tuned(**options):
    """An autotuned in-place kernel whose configs differ in instructions only."""

    @triton.autotune(configs=[triton.Config({"BLOCK": b}, num_warps=1) for b in (32, 256, 64)], key=["n"], **options)
    @triton.jit
    def add_kernel(x_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) + 1, mask=offsets < n)

    return add_kernel


def grid(meta):
    return (triton.cdiv(1000, meta["BLOCK"]),)


def test_autotune_restores_what_its_trials_changed(gpu):
    x = torch.arange(1000.0)
    kernel = tuned(restore_value=["x_ptr"])
    kernel[grid](x, 1000)
    assert torch.equal(x, torch.arange(1000.0) + 1)
    assert kernel.best_config.kwargs["BLOCK"] == 256
    assert gpu.launches[-1].instructions == min(r.instructions for r in gpu.launches)
    assert len(gpu.launches) == 4


def test_autotune_zeroes_between_trials(gpu):
    x = torch.full((1000,), 5.0)
    tuned(reset_to_zero=["x_ptr"])[grid](x, 1000)
    assert (x == 1).all()


def test_autotune_prunes(gpu):
    def early(configs, named_args, **kwargs):
        assert named_args["n"] == 1000
        return [c for c in configs if c.kwargs["BLOCK"] < 256]

    kernel = tuned(
        restore_value=["x_ptr"],
        prune_configs_by={
            "early_config_prune": early, "perf_model": lambda BLOCK, **kwargs: -BLOCK, "top_k": 1,
        },
    )  # fmt: skip
    x = torch.zeros(1000)
    kernel[grid](x, 1000)
    assert kernel.best_config.kwargs["BLOCK"] == 64
    assert (x == 1).all()


@pytest.mark.filterwarnings("ignore:warmup, rep, and use_cuda_graph")
@pytest.mark.parametrize("options", [{"warmup": 5, "rep": 10}, {"use_cuda_graph": True}])
def test_autotune_needs_no_clock_and_no_cuda_graph(gpu, options):
    kernel = tuned(restore_value=["x_ptr"], **options)
    x = torch.zeros(1000)
    kernel[grid](x, 1000)
    assert kernel.best_config.kwargs["BLOCK"] == 256
    assert (x == 1).all()


def test_autotuners_are_their_old_selves_outside():
    before = triton.runtime.Autotuner.do_bench
    with laneloom.emulated("gfx1151"):
        assert triton.runtime.Autotuner.do_bench is not before
    assert triton.runtime.Autotuner.do_bench is before


@triton.heuristics({"BLOCK": lambda args: 64, "EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristic_kernel(x_ptr, out_ptr, even_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets))
        tl.store(even_ptr, 1)
    else:
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)
        tl.store(even_ptr, 0)


@pytest.mark.parametrize("n", [128, 100])
def test_heuristics(gpu, n):
    x, out, even = torch.randn(n), torch.zeros(n), torch.full((1,), -1, dtype=torch.int32)
    heuristic_kernel[(2,)](x, out, even, n)
    assert torch.equal(out, x)
    assert even.item() == (n % 64 == 0)
