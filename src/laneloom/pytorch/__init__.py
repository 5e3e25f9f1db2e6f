"""PyTorch's side of laneloom: importing this package registers the operators of `torch.ops.laneloom`.

The public functions register theirs when they first see a tensor; code that calls `torch.ops.laneloom` itself imports
this package before.
"""

from __future__ import annotations

from ..ops.attention import torch_decode as _decode  # noqa: F401
from ..ops.attention import torch_float8 as _attention_float8  # noqa: F401
from ..ops.attention import torch_op as _attention  # noqa: F401
from ..ops.gemm_chain import torch_op as _gemm_chain  # noqa: F401
from ..ops.matmul import torch_gemm as _gemm  # noqa: F401
from ..ops.matmul import torch_grouped as _grouped  # noqa: F401
from ..ops.matmul import torch_op as _matmul  # noqa: F401
from ..ops.quantize import torch_op as _quantize  # noqa: F401
from ..ops.quantized_matmul import torch_op as _quantized  # noqa: F401
from ..ops.transform3d import torch_op as _transform3d  # noqa: F401
from ..ops.transpose import torch_op as _transpose  # noqa: F401
