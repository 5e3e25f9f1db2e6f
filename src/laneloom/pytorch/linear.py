"""torch.nn.Linear with a weight of few bits, and models whose linear layers become such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn

from ..errors import ArgumentError, UnsupportedError
from ..ops.quantized_matmul.api import quantized_matmul
from ..ops.quantized_matmul.quantize import quantize_weight
from ..ops.quantized_matmul.weight import DTYPES, QuantizedWeight, storage_name

#: modules that read the weights of the layers they hold themselves
_READERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
_PARTS = ("values", "scales", "zeros")
_NUMBERS: dict[str, int] = {dtype: number for number, dtype in enumerate(DTYPES)}


class QuantizedLinear(nn.Module):
    """y = x W^T + bias, W of few bits: `laneloom.quantized_matmul` as a layer.

    weight: a `laneloom.QuantizedWeight` [N, K] of tensors. Its parts become the buffers `values`, `scales` and `zeros`,
        which `.half()`, `.to(torch.bfloat16)` and their like leave in their dtypes; `layer.quantized` gives it back.
    bias: [N] or None, a parameter.

    x: [..., K], fp16 or bf16; y in x's dtype. Accumulation, errors and GPUs are those of `quantized_matmul`. Gradients
    reach x and the bias; the weight has none (QLoRA). A state_dict holds the buffers, the bias and what dtype and group
    they are of; loading one of another kind raises ArgumentError, the layer as it was. So does one of buffers in other
    dtypes, whose bits copies would change: load it with assign=True.
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bias: nn.Parameter | None

    def __init__(self, weight: QuantizedWeight, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        if not (isinstance(weight, QuantizedWeight) and isinstance(weight.values, torch.Tensor) and weight.ndim == 2):
            got = f"one of shape {weight.shape}" if isinstance(weight, QuantizedWeight) else type(weight).__name__
            raise ArgumentError(f"weight: expected a laneloom.QuantizedWeight of tensors, [N, K], got {got}")
        self.out_features, self.in_features = weight.shape
        if bias is not None and not isinstance(bias, torch.Tensor):
            raise ArgumentError(f"bias: expected a torch tensor or None, got {type(bias).__name__}")
        if bias is not None and tuple(bias.shape) != (self.out_features,):
            raise ArgumentError(f"bias: expected shape ({self.out_features},), got {tuple(bias.shape)}")
        if bias is not None and not bias.is_floating_point():
            raise UnsupportedError(f"bias: expected dtype fp32, fp16 or bf16, got {storage_name(bias)}")
        self.dtype, self.group = weight.dtype, weight.group
        for name in _PARTS:
            self.register_buffer(name, getattr(weight, name))
        self._weight = weight  #: of the buffers, while they are these
        self.register_parameter("bias", bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias))

    @classmethod
    def from_linear(cls, layer: nn.Linear, dtype: str = "int4", group: int | str | None = "usual") -> Self:
        """The layer with the weight that `laneloom.quantize_weight(layer.weight, dtype, group)` makes, and its bias."""
        if not isinstance(layer, nn.Linear):
            raise ArgumentError(f"layer: expected a torch.nn.Linear, got {type(layer).__name__}")
        return cls(quantize_weight(layer.weight, dtype, group), layer.bias)

    @property
    def quantized(self) -> QuantizedWeight:
        """The weight."""
        parts, weight = self._buffers, self._weight  # a parametrized one is no buffer, and computed anew
        if not all(parts.get(name) is getattr(weight, name) for name in _PARTS):
            weight = self._weight = QuantizedWeight(self.values, self.scales, self.dtype, self.group, self.zeros)
        return weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return quantized_matmul(x, self.quantized, bias=self.bias)

    def extra_repr(self) -> str:
        """For print(model)."""
        of = "rows" if self.group is None else f"groups of {self.group}"
        return f"{self.in_features}, {self.out_features}, {self.dtype}, scales of {of}, bias={self.bias is not None}"

    def get_extra_state(self) -> torch.Tensor:
        """dtype and group, as a tensor: files of tensors take nothing else."""
        return torch.tensor(self._kind(), device="cpu")  # whatever torch.device is in force

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Raises ArgumentError where a state_dict is of a layer of another dtype or group."""
        kind = state.tolist() if isinstance(state, torch.Tensor) else state
        if kind == self._kind():
            return
        got = f"{kind}, which says neither"
        if isinstance(kind, list) and len(kind) == 2 and kind[0] in range(len(DTYPES)):
            got = f"one of {DTYPES[kind[0]]!r} and group {kind[1] or None}"
        raise ArgumentError(f"state_dict: expected a layer of {self.dtype!r} and group {self.group}, got {got}")

    def _kind(self) -> list[int]:
        return [_NUMBERS[self.dtype], int(self.group or 0)]

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: Any, unexpected_keys: Any,
        error_msgs: Any,
    ) -> None:  # fmt: skip
        """Looks at all of it before a buffer changes."""
        if prefix + "_extra_state" in state_dict:
            self.set_extra_state(state_dict[prefix + "_extra_state"])
        for name in _PARTS if not local_metadata.get("assign_to_params_buffers", False) else ():
            own, given = self._buffers.get(name), state_dict.get(prefix + name)
            if isinstance(given, torch.Tensor) and (own is None or own.dtype != given.dtype):
                wanted = "none, as the layer has none" if own is None else f"dtype {storage_name(own)}"
                raise ArgumentError(f"state_dict: {prefix}{name}: expected {wanted}, got dtype {storage_name(given)}")
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        _ = self.quantized  # which would else keep what was there alive until the next call

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Buffers go where other tensors go, and keep their dtypes: scales in bf16 would be others."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, x in before.items():
            now = self._buffers[name]
            if x is not None and now is not None and now.dtype != x.dtype:
                self._buffers[name] = x.to(now.device)
        _ = self.quantized  # which would else keep the memory that the buffers have left
        return self


def quantize_linears(
    model: nn.Module,
    dtype: str = "int4",
    group: int | str | None = "usual",
    *,
    where: Callable[[str, nn.Linear], bool] | None = None,
) -> list[str]:
    """Make the torch.nn.Linear layers inside a model `laneloom.QuantizedLinear`, in place, and return their names.

    dtype, group: as of `laneloom.quantize_weight`; weights are rounded to nearest, nothing is trained.
    where: of a layer's name in the model and the layer, whether it is meant; by default all are. A head of a vocabulary
        loses most by rounding: `where=lambda name, layer: name != "lm_head"`.

    Subclasses of Linear stay, and so do the layers that nn.MultiheadAttention and nn.TransformerEncoderLayer hold, as
    these read weights themselves, those whose weight or bias a hook computes (weight_norm, pruning) and those whose
    forward was replaced. A layer that is in several places stays one layer, and hooks stay on it. An embedding that
    shares a layer's weight keeps it, tied no longer.

    Raises ArgumentError, the model as it was, for one that is a layer itself and for a layer that cannot be (4 bits of
    an odd K, weights that are not finite), UnsupportedError for other dtypes.
    """
    if not isinstance(model, nn.Module) or type(model) is nn.Linear:
        itself = "a Linear itself, of which QuantizedLinear.from_linear makes one"
        got = itself if isinstance(model, nn.Module) else type(model).__name__
        raise ArgumentError(f"model: expected a torch.nn.Module with layers inside, got {got}")
    if not (where is None or callable(where)):
        raise ArgumentError(f"where: expected a function of a name and a layer, or None, got {type(where).__name__}")
    made: dict[nn.Module, QuantizedLinear] = {}
    places: dict[str, tuple[nn.Module, str, nn.Module]] = {}
    for path, module in model.named_modules():
        for child, layer in () if isinstance(module, _READERS) else module._modules.items():
            name = f"{path}.{child}" if path else child
            if type(layer) is not nn.Linear or not _is_plain(layer) or not (where is None or where(name, layer)):
                continue
            places[name] = module, child, layer
            if layer not in made:
                try:
                    made[layer] = QuantizedLinear.from_linear(layer, dtype, group).train(layer.training)
                    _take_hooks(made[layer], layer)
                except (ArgumentError, UnsupportedError) as error:
                    raise type(error)(f"{name}: {error}") from None
    for module, child, layer in places.values():
        setattr(module, child, made[layer])
    return list(places)


def _is_plain(layer: nn.Linear) -> bool:
    """Whether it is the product with a weight and a bias that are its own, and nothing else."""
    own = isinstance(layer.weight, nn.Parameter) and isinstance(layer.bias, nn.Parameter | None)
    return own and "forward" not in vars(layer)


def _take_hooks(layer: nn.Module, before: nn.Module) -> None:
    """Those of forward and backward, in the dictionaries from which their handles remove them."""
    names = [name for name in vars(before) if name.startswith(("_forward", "_backward", "_is_full_backward"))]
    vars(layer).update({name: vars(before)[name] for name in names})
