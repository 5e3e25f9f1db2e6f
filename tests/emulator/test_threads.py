"""Threads that launch, and first parse and compile, Triton kernels inside one emulation."""

import gc
import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

from test_driver_features import copy_kernel, device_descriptor_kernel  # noqa: E402

import laneloom  # noqa: E402
from laneloom.codegen.diagnostics import COMPILER_LOCK  # noqa: E402
from laneloom.emulator import driver  # noqa: E402

pytestmark = pytest.mark.turning("gpu")


@pytest.fixture(params=["gfx1151", "gfx1201"])
def gpu(request):
    with laneloom.emulated(request.param) as emulation:
        yield emulation


def test_threads_parse_kernels_one_at_a_time(gpu):
    """A thread whose garbage collection falls within a parse hands the interpreter over: others must not parse then.

    Python before 3.11.8 raises SystemError in the first thread ("AST constructor recursion depth mismatch").
    """
    beside = threading.Thread(target=copy_kernel.parse)
    waited = []

    def hand_over(phase, _):
        if phase == "start" and not beside.ident:
            beside.start()
            beside.join(timeout=0.2)
            waited.append(beside.is_alive())

    threshold = gc.get_threshold()
    gc.collect()  # so that the next collection is 50 objects away, within the parse
    gc.callbacks.append(hand_over)
    try:
        gc.set_threshold(50)
        device_descriptor_kernel.parse()
    finally:
        gc.callbacks.remove(hand_over)
        gc.set_threshold(*threshold)
    beside.join(timeout=10)
    assert waited == [True]
    assert not beside.is_alive()


def test_threads_launch_inside_one_context(gpu):
    """Four threads, two kernels, each with its own data: every result right, every launch listed once."""
    failures = []

    def work(k):
        try:
            x = torch.full((500,), float(k))
            for _ in range(4):
                out = torch.zeros(500)
                copy_kernel[(4,)](x, out, 500, BLOCK=128)
                assert torch.equal(out, x)
                wide = torch.zeros(64, 64)
                device_descriptor_kernel[(4, 4)](x[:496].view(16, 31), wide, 16, 31, 31, BM=16, BN=16)
                assert (wide.flatten()[: 16 * 31] == k).all()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(gpu.launches) == 4 * 8
    assert len({r.instructions for r in gpu.launches}) == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_forked_while_a_thread_launches_can_launch(gpu):
    """As a DataLoader's workers are: the thread that is in the middle of a launch is not there to end it."""
    held, done = threading.Event(), threading.Event()

    def launch():
        with driver._one_at_a_time, driver._parsing, COMPILER_LOCK:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=launch)
    thread.start()
    held.wait()
    x, out = torch.ones(500), torch.zeros(500)
    if (child := os.fork()) == 0:
        signal.alarm(30)  # ends a child that waits for ever
        copy_kernel[(4,)](x, out, 500, BLOCK=128)
        os._exit(0 if torch.equal(out, x) else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0
