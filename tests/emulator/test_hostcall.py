"""What a kernel asks of the host, and calls: device_print, device_assert, noinline functions, constant tables."""

import struct

import pytest
from sampled import rarely

from laneloom.emulator.hostcall import format_printf

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import laneloom  # noqa: E402
from laneloom.errors import TrapError  # noqa: E402

pytestmark = pytest.mark.turning("gpu")


@pytest.fixture(params=["gfx1100", "gfx1151", "gfx1201", "gfx90a"])
def gpu(request):
    with laneloom.emulated(request.param) as emulation:
        yield emulation


def text_words(text: str) -> list[int]:
    raw = text.encode() + b"\0"
    raw += bytes(-len(raw) % 8)
    return list(struct.unpack(f"<{len(raw) // 8}Q", raw))


@pytest.mark.parametrize(
    ("layout", "arguments", "want"),
    [
        ("plain %% text", [], "plain % text"),
        ("%d|%i|%lld", [(1 << 32) - 5, 7, (1 << 64) - 9], "-5|7|-9"),
        ("%u|%llu|%x|%#o", [(1 << 64) - 1, (1 << 64) - 1, 255, 8], "4294967295|18446744073709551615|ff|010"),
        ("%hd|%hhu", [0x18000, 0x1FF], "-32768|255"),
        ("[%6.2f] [%-8d] [%+e]", [1.5, 12, -2.0], "[  1.50] [12      ] [-2.000000e+00]"),
        ("%*d|%.*f", [5, 42, 1, 2.25], "   42|2.2"),
        ("%c%c", [72, 105], "Hi"),
    ],
)
def test_printf_formats_as_c_does(layout, arguments, want):
    words = [struct.unpack("<Q", struct.pack("<d", a))[0] if isinstance(a, float) else a for a in arguments]
    assert format_printf(text_words(layout) + words) == want


def test_printf_takes_strings_from_the_message():
    assert format_printf([*text_words("<%s> %d <%5s>"), *text_words("eight by"), 3, *text_words("x")]) == (
        "<eight by> 3 <    x>"
    )


@triton.jit
def print_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.device_print("element", tl.load(x_ptr + offsets))
    tl.device_print("a line without operands, longer than what fits into one message of seven words")
    if tl.program_id(1) == 1:
        tl.device_print("n", n)


def test_device_print_goes_to_stdout(gpu, capsys):
    lanes = gpu.gpu.wave
    x = torch.arange(40, 40 + lanes, dtype=torch.int32)
    print_kernel[(1, 2)](x, -3, BLOCK=lanes, num_warps=1)
    lines = capsys.readouterr().out.splitlines()
    elements = [line for line in lines if "element" in line]
    assert len(elements) == 2 * lanes
    for program in range(2):
        mine = [line for line in elements if line.startswith(f"pid (0, {program}, 0)")]
        assert [int(line.split()[-1]) for line in mine] == x.tolist()
    plain = [line for line in lines if "seven words" in line]
    assert len(plain) == 2 * lanes
    assert plain[0] == "pid (0, 0, 0) a line without operands, longer than what fits into one message of seven words"
    numbers = [line for line in lines if " n: " in line]
    assert len(numbers) == lanes
    assert all(line.startswith("pid (0, 1, 0)") and line.endswith(" -3") for line in numbers)


@pytest.mark.parametrize("name", ["gfx1201", "gfx942", *rarely("gfx1151")])
def test_waves_that_share_the_buffer_are_no_hazard(name, capsys):
    with laneloom.emulated(name, strict=True):
        print_kernel[(1, 1)](torch.arange(16, dtype=torch.int32), 0, BLOCK=16, num_warps=4)
    lines = [line for line in capsys.readouterr().out.splitlines() if "element" in line]
    assert {int(line.split()[-1]) for line in lines} == set(range(16))


@triton.jit
def assert_twice(x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 2))
    tl.device_print("x", x)
    tl.device_assert(tl.load(x_ptr) > 5, "too small")


def test_gfx1250_adds_a_functions_whole_distance(capsys):
    with laneloom.emulated("gfx1250", strict=True) as emulation:
        assert_twice[(1,)](torch.tensor([6, 7], dtype=torch.int32), debug=True)
        assert emulation.launches
        with pytest.raises(TrapError, match="too small"):
            assert_twice[(1,)](torch.tensor([5, 7], dtype=torch.int32), debug=True)


@triton.jit
def count_kernel(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) % 4 == 0:
        tl.device_print("x", tl.load(x_ptr + offsets))


def test_more_waves_print_than_run_together(capsys):
    x = torch.arange(600 * 32, dtype=torch.int32)
    with laneloom.emulated("gfx1151"):
        count_kernel[(600,)](x, BLOCK=32, num_warps=1)
    got = sorted(int(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert got == x.view(150, 4, 32)[:, 0].flatten().tolist()


@triton.jit
def assert_kernel(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.device_assert(x < 100, "x is too big")
    tl.store(x_ptr + offsets, x + 1)


def test_a_failing_assertion_stops_with_its_message_and_program(gpu, capsys):
    x = torch.zeros(256, dtype=torch.int32)
    assert_kernel[(2,)](x, BLOCK=128, debug=True)
    assert (x == 1).all()
    x[200] = 100
    place = rf"workgroup \(1, 0, 0\), wave {72 // gpu.gpu.wave}"
    with pytest.raises(TrapError, match=rf"assert_kernel: .*x is too big.*{place}") as caught:
        assert_kernel[(2,)](x, BLOCK=128, debug=True)
    assert __file__ in str(caught.value)
    assert "x is too big" in capsys.readouterr().err
    assert x[200] == 100
    x[128:160] = 100
    with pytest.raises(TrapError, match="x is too big"):
        assert_kernel[(2,)](x, BLOCK=128, debug=True)
    assert sum(int(line[-9:-7]) for line in capsys.readouterr().err.splitlines() if line.endswith("2 lanes)")) == 32


def test_assertions_cost_nothing_without_debug(gpu):
    x = torch.full((128,), 1000, dtype=torch.int32)
    assert_kernel[(1,)](x, BLOCK=128, debug=False)
    assert (x == 1001).all()
    assert gpu.launches[-1].matching("s_trap") == 0


@triton.jit(noinline=True)
def collatz(n):
    steps = 0
    while n != 1:
        n = tl.where(n % 2 == 0, n // 2, 3 * n + 1)
        steps += 1
    return steps


@triton.jit(noinline=True)
def twice(n):
    return collatz(n) + collatz(n + 1)


@triton.jit
def call_kernel(out_ptr, n):
    pid = tl.program_id(0)
    if pid < n:
        tl.store(out_ptr + pid, twice(pid + 1) * 1000 + collatz(pid + 1))


def test_functions_that_are_not_inlined(gpu):
    """Calls inside calls, with programs that stay in them for different times."""

    def steps(n):
        count = 0
        while n != 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count

    out = torch.full((40,), -1, dtype=torch.int32)
    call_kernel[(50,)](out, 40, num_warps=1)
    assert out.tolist() == [(steps(k + 1) + steps(k + 2)) * 1000 + steps(k + 1) for k in range(40)]
    assert gpu.launches[-1].matching("s_swappc_b64") > 0
