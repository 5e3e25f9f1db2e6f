"""Linear layers with weights of few bits: the layer, its state, and models whose layers become such."""

from __future__ import annotations

import copy
import io
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrize, prune  # noqa: E402

import laneloom  # noqa: E402
from laneloom import QuantizedLinear, quantize_linears  # noqa: E402
from laneloom.errors import ArgumentError, UnsupportedError  # noqa: E402

BF16 = torch.bfloat16


class Model(nn.Module):
    """Two layers, one of them in two places, and what reads weights itself."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 96), nn.Linear(96, 64, bias=False)
        self.again = nn.ModuleList([self.up])
        self.attention = nn.MultiheadAttention(64, 2)
        self.encoder = nn.TransformerEncoderLayer(64, 2, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def model():
    torch.manual_seed(0)
    return Model().to(BF16)


def exact(layer, x):
    """The layer in FP64, of the weight that it has."""
    out = x.double() @ layer.quantized.dequantize(torch.float32).double().T
    return out if layer.bias is None else out + layer.bias.double()


@pytest.mark.parametrize(
    ("dtype", "group"), [("int4", "usual"), ("uint4", 32), ("fp4", "usual"), ("int8", None), ("fp8", None)]
)
def test_a_layer_is_the_product_with_its_weight(dtype, group):
    torch.manual_seed(1)
    linear = nn.Linear(160, 40).to(BF16)
    layer = QuantizedLinear.from_linear(linear, dtype, group)
    assert layer.bias is linear.bias
    assert f"160, 40, {dtype}" in repr(layer)
    x = torch.randn(2, 3, 160, dtype=BF16, requires_grad=True)
    with laneloom.emulated("gfx1151"):
        y = layer(x)
        y.float().square().sum().backward()
    truth = exact(layer, x.detach())
    assert (y.detach().double() - truth).norm() < 2**-8 * truth.norm()  # one rounding to bf16
    assert x.grad.shape == x.shape
    assert layer.bias.grad is not None
    assert [name for name, _ in layer.named_parameters()] == ["bias"]


def test_dtypes_of_buffers_stay():
    layer = QuantizedLinear.from_linear(nn.Linear(64, 32), "fp8", None)
    before = layer.quantized
    for cast in (lambda m: m.half(), lambda m: m.to(BF16), lambda m: m.float()):
        cast(layer)
        for name in ("values", "scales"):
            assert getattr(layer, name).dtype == getattr(before, name).dtype
            assert torch.equal(getattr(layer, name).view(torch.uint8), getattr(before, name).view(torch.uint8))
    assert layer.bias.dtype == torch.float32
    assert layer.to("meta").values.device.type == layer.bias.device.type == "meta"


def test_state_goes_into_files_and_copies():
    layer = QuantizedLinear.from_linear(nn.Linear(64, 32), "uint4", 16)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = QuantizedLinear.from_linear(nn.Linear(64, 32), "uint4", 16)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(5, 64, dtype=torch.float16)
    with laneloom.emulated("gfx1151"):
        expected = layer.half()(x)
        for same in (other.half(), copy.deepcopy(layer)):
            assert torch.equal(same(x), expected)
    for dtype, group in (("int4", 16), ("uint4", 16)):
        target = QuantizedLinear.from_linear(nn.Linear(64, 32), dtype, group)
        if dtype == "int4":
            with pytest.raises(ArgumentError, match="expected a layer of 'int4' and group 16, got one of 'uint4'"):
                target.load_state_dict(layer.state_dict(), strict=False)


def fp4_layer(values=None, scales=None):
    """A layer of MXFP4 numbers, or with others in their place."""
    few = laneloom.quantize_weight(torch.randn(32, 64, generator=torch.Generator().manual_seed(2)), "fp4")
    values, scales = (few.values if values is None else values), (few.scales if scales is None else scales)
    return QuantizedLinear(laneloom.QuantizedWeight(values, scales, "fp4", few.group), torch.zeros(32))


def test_a_state_of_another_kind_changes_nothing():
    """Of other dtypes a copy would take bits for numbers: a power of two's 121 for 121.0."""
    state = fp4_layer().state_dict()
    of_floats = fp4_layer(scales=torch.ones(32, 2))
    unsigned = QuantizedLinear.from_linear(nn.Linear(64, 32), "uint4", 32)
    refused = (
        (of_floats, state, "^state_dict: scales: expected dtype float32, got dtype uint8$"),
        (fp4_layer(), {**state, "zeros": state["scales"]}, "zeros: expected none, as the layer has none, got"),
        (unsigned, state, "expected a layer of 'uint4' and group 32, got one of 'fp4' and group 32"),
        (fp4_layer(), {**state, "_extra_state": torch.tensor([99, 32])}, r"got \[99, 32\], which says neither"),
        (fp4_layer(), {**state, "_extra_state": torch.tensor(2)}, "got 2, which says neither"),
    )
    for layer, wrong, message in refused:
        before = {name: x.clone() for name, x in layer.state_dict().items()}
        with pytest.raises(ArgumentError, match=message):
            layer.load_state_dict(wrong, strict=False)
        assert all(torch.equal(x, before[name]) for name, x in layer.state_dict().items())
    of_floats.load_state_dict(state, assign=True)
    assert torch.equal(of_floats.quantized.dequantize(), fp4_layer().quantized.dequantize())


def test_a_buffer_may_be_parametrized():
    class Twice(nn.Module):
        def forward(self, x):
            return 2 * x

    layer = QuantizedLinear.from_linear(nn.Linear(64, 32))
    once = layer.quantized.dequantize()
    parametrize.register_parametrization(layer, "scales", Twice())
    assert torch.equal(layer.quantized.dequantize(), 2 * once)


def test_a_state_loads_where_new_tensors_have_no_data():
    layer, state = fp4_layer(), fp4_layer().state_dict()
    with torch.device("meta"):
        assert layer.state_dict()["_extra_state"].device.type == "cpu"
        layer.load_state_dict(state, assign=True)
    assert layer.values is state["values"]


def test_what_buffers_were_is_not_kept():
    layer = fp4_layer()
    moved = weakref.ref(layer.values)
    layer.to("meta")
    assert moved() is None
    layer.load_state_dict(fp4_layer().state_dict(), assign=True)
    replaced = weakref.ref(layer.values)
    layer.load_state_dict(fp4_layer().state_dict(), assign=True)
    assert replaced() is None


def test_layers_of_a_model_become_such():
    plain, few = model(), model()
    assert quantize_linears(few, "int8", None) == ["up", "down", "again.0"]
    assert few.again[0] is few.up
    assert type(few.encoder.linear1) is nn.Linear
    assert quantize_linears(few) == []
    x = torch.randn(4, 64, dtype=BF16)
    with laneloom.emulated("gfx942"):
        got = few(x)
        compiled = torch.compile(few, fullgraph=True, backend="eager")(x)
    assert torch.equal(got, compiled)
    expected = plain(x)
    assert (got - expected).float().norm() < 0.02 * expected.float().norm()


def test_a_layer_under_two_names_stays_one():
    tied = nn.Module()
    tied.a = tied.b = nn.Linear(32, 32)
    assert quantize_linears(tied) == ["a", "b"]
    assert type(tied.a) is QuantizedLinear
    assert tied.a is tied.b


def test_hooks_stay_and_so_do_weights_that_hooks_compute():
    calls = []
    few = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))).half()
    handle = few[0].register_forward_hook(lambda module, args, y: calls.append(type(module)))
    few[0].register_full_backward_hook(lambda module, grads, grad: calls.append(grad[0].shape))
    prune.l1_unstructured(few[1], "weight", 0.5)
    few[2].forward = lambda x: x
    prune.l1_unstructured(few[3], "bias", 0.5)
    assert quantize_linears(few) == ["0"]
    with laneloom.emulated("gfx1151"):
        few(torch.randn(2, 32, dtype=torch.float16, requires_grad=True)).float().sum().backward()
        assert calls == [QuantizedLinear, (2, 32)]
        handle.remove()
        few(torch.randn(2, 32, dtype=torch.float16))
    assert len(calls) == 2


def test_which_layers():
    few = model()
    assert quantize_linears(few, "fp4", where=lambda name, layer: name == "down") == ["down"]
    assert type(few.up) is nn.Linear
    assert few.down.group == 32


def test_refused():
    few = nn.Sequential(nn.Linear(32, 16), nn.Linear(33, 16))
    with pytest.raises(ArgumentError, match=r"^1: w: expected an even K"):
        quantize_linears(few)
    assert [type(x) for x in few] == [nn.Linear, nn.Linear]
    with pytest.raises(ArgumentError, match="with layers inside, got a Linear itself"):
        quantize_linears(nn.Linear(32, 16))
    with pytest.raises(ArgumentError, match="got dict"):
        quantize_linears({})
    with pytest.raises(UnsupportedError, match="dtype: expected"):
        quantize_linears(model(), "int3")
    with pytest.raises(UnsupportedError, match=r"^0: w: expected a tensor with numbers, got one on the device meta"):
        quantize_linears(nn.Sequential(nn.Linear(32, 16, device="meta")))
    weight = laneloom.quantize_weight(torch.randn(16, 32))
    with pytest.raises(ArgumentError, match=r"bias: expected shape \(16,\), got \(3,\)"):
        QuantizedLinear(weight, torch.zeros(3))
    with pytest.raises(ArgumentError, match="bias: expected a torch tensor or None, got list"):
        QuantizedLinear(weight, [0.0] * 16)
    with pytest.raises(UnsupportedError, match="bias: expected dtype fp32, fp16 or bf16, got int32"):
        QuantizedLinear(weight, torch.zeros(16, dtype=torch.int32))
    with pytest.raises(ArgumentError, match=r"layer: expected a torch.nn.Linear, got Conv1d"):
        QuantizedLinear.from_linear(nn.Conv1d(3, 3, 1))
    with pytest.raises(ArgumentError, match="where: expected a function of a name and a layer, or None, got str"):
        quantize_linears(model(), where="lm_head")
    with pytest.raises(ArgumentError, match=r"QuantizedWeight of tensors, \[N, K\], got Tensor"):
        QuantizedLinear(torch.zeros(16, 32))
