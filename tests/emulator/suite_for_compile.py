"""torch.compile in a suite for device="cuda"; test_pytest_plugin.py runs it beside suite_for_cuda.py."""

import torch
import triton


def test_torch_compile_knows_every_function():
    import torch._dynamo.trace_rules as rules

    assert torch.cuda.synchronize in rules.get_torch_obj_rule_map()


def test_torch_compile_sees_where_tensors_live():
    def places(x, host):
        y, twice = x + torch.ones(4, device=x.device), host * 2
        said = [(t.is_cuda, t.is_cpu, t.device.type, t.device.index, t.get_device()) for t in (x, y, host, twice)]
        return said, y if y.is_cuda and not twice.is_cuda else x

    x, host = torch.ones(4, device="cuda"), torch.ones(4)
    said, y = torch.compile(places, backend="eager", fullgraph=True)(x, host)
    assert said == places(x, host)[0] == [(True, False, "cuda", 0, 0)] * 2 + [(False, True, "cpu", None, -1)] * 2
    assert y.is_cuda and (y == 2).all()


def test_gradients_through_torch_compile():
    x = torch.ones(4, device="cuda", requires_grad=True)
    torch.compile(lambda x: (x * x).sum(), backend="aot_eager")(x).backward()
    assert x.grad.is_cuda and (x.grad == 2).all()


def test_inductor_writes_triton():
    x = torch.arange(100.0, device="cuda")
    y = torch.compile(lambda x: x * 2 + 1)(x)
    assert y.is_cuda and torch.equal(y, x * 2 + 1)
    assert triton.runtime.driver.active.emulation.launches[-1].kernel.startswith("triton_poi_fused")
