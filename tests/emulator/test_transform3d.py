"""The transform on emulated AMD GPUs: the compiled code of the Triton schedule is right."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import rarely

torch = pytest.importorskip("torch")

from laneloom import emulated  # noqa: E402
from laneloom.compat import transformbench  # noqa: E402
from laneloom.errors import ArgumentError, UnsupportedError  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.transform3d import (  # noqa: E402
    ChainedConfig,
    RowsConfig,
    Transform3dProblem,
    blocks,
    ladder,
    reference,
    transform3d,
)
from laneloom.ops.transform3d.kernels import rows  # noqa: E402

BUDGET = 4.0  #: times the bound on the reference's own rounding


def random(*shape, seed=0, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def share(got, x, t, **options):
    return reference.worst_share(got.numpy(), x.numpy(), t.numpy(), **options)


@pytest.mark.covering
@pytest.mark.parametrize("gpu", [*rarely("gfx1100"), "gfx1151", "gfx1201"])
@pytest.mark.parametrize("k", [1, 4, 6, 10])
def test_plan_runs_in_the_emulator(gpu, k):
    x, t = random(3, k, k, k), random(k, k, seed=1)
    with emulated(gpu) as run:
        out = transform3d(x, t)
    assert share(out, x, t) <= BUDGET
    assert len(run.launches) == (1 if k in (1, 4) else 3)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("gpu", "level", "k"),
    [
        *(("gfx1151", level, 4 if level == "6" else 6) for level in ladder.LEVELS),
        *rarely(*(("gfx1100", level, 5) for level in "1235")),
        *(("gfx1201", level, 12) for level in "1237"),
        ("gfx1201", "5", 17),
    ],
)
def test_every_level_is_right_without_hazards(gpu, level, k):
    x, t = random(3, k, k, k), random(k, k, seed=1)
    config = ladder.level_config(level, Transform3dProblem(k, 3), get_gpu(gpu))
    out = torch.full_like(x, float("nan"))
    with emulated(gpu, strict=True) as run:
        transform3d(x, t, out=out, config=config)
    assert share(out, x, t) <= BUDGET * ladder.terms_ratio(config, k)
    assert sum(launch.matching("v_fma_f64") + launch.matching("v_fmac_f64") for launch in run.launches) > 0
    assert len(run.launches) == {"6": 1, "7": 1}.get(level, 3)


def test_chained_with_all_options():
    x, t = random(5, 6, 6, 6), random(3, 6, 6, seed=1)
    wide = torch.full((5, 300), float("nan"), dtype=torch.float64)
    start = random(5, 6, 6, 6, seed=2)
    out = wide[:, :216].unflatten(1, (6, 6, 6)).copy_(start)
    with emulated("gfx1201", strict=True):
        transform3d(x, t, out=out, transpose=True, accumulate=True, config=ChainedConfig(group=2))
    assert share(out, x, t, transpose=True, start=start.numpy()) <= BUDGET
    assert bool(wide[:, 216:].isnan().all())


def complex_random(*shape, seed=0, dtype=torch.complex128):
    return torch.complex(random(*shape, seed=seed), random(*shape, seed=seed + 50)).to(dtype)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64])
@pytest.mark.parametrize("real_matrix", [True, False])
def test_complex(dtype, real_matrix):
    x, t = complex_random(2, 3, 5, 5, 5, dtype=dtype), complex_random(3, 5, 5, seed=1, dtype=dtype)
    t = t.real if real_matrix else t
    name = str(dtype).removeprefix("torch.")
    start = complex_random(2, 3, 5, 5, 5, seed=2, dtype=dtype)
    added = start.clone()
    with emulated("gfx1151", strict=True):
        out = transform3d(x, t)
        transform3d(x.conj(), t.conj(), out=added, transpose=True, accumulate=True)
    assert share(out, x, t, dtype=name) <= BUDGET
    x, t = x.conj().resolve_conj(), t.conj().resolve_conj()
    assert share(added, x, t, dtype=name, transpose=True, start=start.numpy()) <= BUDGET


@pytest.mark.parametrize("real_matrix", [True, False])
def test_complex_gradients(real_matrix):
    x, t = complex_random(1, 2, 2, 2).requires_grad_(), complex_random(3, 2, 2, seed=1)
    t = (t.real.clone() if real_matrix else t).requires_grad_()
    weight = complex_random(1, 2, 2, 2, seed=2)
    with emulated("gfx1151"):
        (transform3d(x, t) * weight).sum().abs().backward()
    x2, t2 = x.detach().clone().requires_grad_(), t.detach().clone().requires_grad_()
    (torch.einsum("nabc,ai,bj,ck->nijk", x2, *t2.to(x2.dtype)) * weight).sum().abs().backward()
    assert torch.allclose(x.grad, x2.grad, rtol=0, atol=1e-13)
    assert torch.allclose(t.grad, t2.grad, rtol=0, atol=1e-13)


def test_one_matrix_per_axis_transposed_accumulated_and_dotted():
    x, t = random(2, 6, 6, 6), random(3, 6, 6, seed=1)
    start = random(2, 6, 6, 6, seed=2)
    out = start.clone()
    with emulated("gfx1151"):
        transform3d(x, t, out=out, transpose=True, accumulate=True, config=RowsConfig(rows=32, dot=True))
    assert share(out, x, t, transpose=True, start=start.numpy()) <= BUDGET


def test_float32():
    x, t = random(2, 6, 6, 6, dtype=torch.float32), random(6, 6, seed=1, dtype=torch.float32)
    with emulated("gfx1201"):
        out = transform3d(x, t)
    assert share(out, x, t, dtype="fp32") <= BUDGET


def test_gradients():
    x, t = random(2, 3, 3, 3).requires_grad_(), random(3, 3, seed=1).requires_grad_()
    weight = random(2, 3, 3, 3, seed=2)
    with emulated("gfx1151"):
        (transform3d(x, t) * weight).sum().backward()
    x2, t2 = x.detach().clone().requires_grad_(), t.detach().clone().requires_grad_()
    (torch.einsum("nabc,ai,bj,ck->nijk", x2, t2, t2, t2) * weight).sum().backward()
    assert torch.allclose(x.grad, x2.grad, rtol=0, atol=1e-13)
    assert torch.allclose(t.grad, t2.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dot", [False, True])
def test_products_of_any_shape_and_stride(dot):
    a, b = random(3, 20, 37), random(20, 70, seed=1).mT.contiguous().mT
    out = random(3, 37, 70, seed=2)
    want = out + a.mT @ b
    with emulated("gfx1151"):
        rows.multiply(RowsConfig(rows=32, dot=dot), a, b, out, accumulate=True)
    assert torch.allclose(out, want, rtol=0, atol=1e-13)


def test_building_blocks():
    a, b = random(2, 5, 7), random(5, 6, seed=1)
    with emulated("gfx1151"):
        results = (
            blocks.mTxm(a, b),
            blocks.mxm(a.mT, b),
            blocks.mxmT(a.mT, b.mT),
            blocks.mTxmT(a, b.mT),
        )
        start = random(2, 7, 6, seed=2)
        added = blocks.mTxm(a, b, out=start.clone(), accumulate=True)
        with pytest.raises(ArgumentError, match="mxm: a and b do not fit together"):
            blocks.mxm(a, b)
        with pytest.raises(ArgumentError, match="mTxm: accumulate needs out"):
            blocks.mTxm(a, b, accumulate=True)
    for result in results:
        assert torch.allclose(result, a.mT @ b, rtol=0, atol=1e-14)
    assert torch.allclose(added, start + a.mT @ b, rtol=0, atol=1e-14)


def test_no_batch_launches_nothing():
    with emulated("gfx1151") as run:
        assert transform3d(random(0, 6, 6, 6), random(6, 6)).shape == (0, 6, 6, 6)
    assert not run.launches


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_what_rows_cannot_do_is_refused(gpu, dtype):
    with emulated(gpu), pytest.raises(UnsupportedError, match="ends at K=64"):
        transform3d(torch.zeros(1, 65, 65, 65, dtype=dtype), torch.zeros(65, 65, dtype=dtype))


def test_transformbench_validates_levels_and_refuses_to_time():
    with emulated("gfx1151"):
        for level in ("1", "4", "7"):
            (line,) = transformbench.validate(level, 4, 3)
            assert line.passed, line
        (line,) = transformbench.validate("6", 12, 3)
        assert "REFUSED" in str(line)
        assert not line.passed
        with pytest.raises(UnsupportedError, match="times on a GPU"):
            next(transformbench.run(level="3"))
