"""Launches past the JIT, and the warm path of matmul: what can be seen of them without a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from laneloom.device.prepared import PreparedLaunch, specialise  # noqa: E402
from laneloom.device.repack import line_pitch  # noqa: E402
from laneloom.device.tma import UNUSED_PITCH, TmaView  # noqa: E402
from laneloom.ops.matmul.fast_call import call_prepared  # noqa: E402


class Kernel:
    """Stands for a jit function: remembers its calls, and gives what it "compiled"."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.calls.append(("jit", grid, arguments, options))
            return self

        def launch_compiled(*arguments):
            self.calls.append(("compiled", grid, arguments, {}))

        return launch if not self.calls else launch_compiled


def test_only_the_first_launch_goes_through_the_jit():
    kernel = Kernel()
    launch = PreparedLaunch(kernel, (7,), num_warps=4)
    assert not launch.is_compiled
    launch(1, 2)
    assert launch.is_compiled
    launch(3, 4)
    assert kernel.calls == [("jit", (7, 1, 1), (1, 2), {"num_warps": 4}), ("compiled", (7, 1, 1), (3, 4), {})]


@triton.jit(do_not_specialize=["free"])
def specialised(x_ptr, one, sixteen, free, huge, scale, BLOCK: tl.constexpr):
    tl.store(x_ptr, one + sixteen + free + huge + scale + BLOCK)


def test_specialisation_is_the_jits():
    arguments = {"one": 1, "sixteen": 32, "free": 1, "huge": 1 << 40, "scale": 0.5, "BLOCK": 16}
    signature, constants, divisible = specialise(specialised, arguments, {"x_ptr": "*fp32"})
    assert signature == {"x_ptr": "*fp32", "sixteen": "i32", "free": "i32", "huge": "i64", "scale": "fp32"}
    assert constants == {"one": 1, "BLOCK": 16}
    assert set(divisible) == {"x_ptr", "sixteen", "huge"}


def test_a_single_row_gets_a_pitch_that_tma_takes():
    assert TmaView(1, 5, 3, 1, 8).strides == [UNUSED_PITCH, 1]
    assert TmaView(2, 5, 24, 1, 8).strides == [24, 1]
    assert "tensordesc<bf16[64, 32],NVMMASharedLayout" in TmaView(64, 64, 64, 64, 32).signature("bf16")


def test_repacked_rows_are_whole_lines():
    assert (line_pitch(1, 2), line_pitch(64, 2), line_pitch(65, 2), line_pitch(4099, 2)) == (64, 64, 128, 4160)


def test_the_warm_path_leaves_alone_what_is_not_on_a_gpu():
    a, b = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4, dtype=torch.bfloat16)
    assert call_prepared(a, b, None) is None
    assert call_prepared(torch.nn.Parameter(a), b, torch.float32, torch.empty(4, 4)) is None
