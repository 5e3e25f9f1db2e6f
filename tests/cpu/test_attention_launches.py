"""What warm calls of Hopper's attention hand to the driver, held against the operands of each call."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from math import e, log2

import pytest

torch = pytest.importorskip("torch")

from attention_driver import (  # noqa: E402
    COUNTER,
    ENDS,
    FORWARD_JOIN,
    GPU,
    MOST_RELATIVE,
    PROCESSORS,
    SCHEDULES,
    address_of,
    assert_same,
    boxed,
    forget,
    stand_in,
    steps,
)

import laneloom  # noqa: E402
from laneloom.codegen import cuda_call  # noqa: E402
from laneloom.ops import warm  # noqa: E402
from laneloom.ops.attention import execute, hopper_gradients, torch_op  # noqa: E402
from laneloom.ops.attention.config import plan, plan_backward  # noqa: E402
from laneloom.ops.attention.hopper_gradients import waves  # noqa: E402
from laneloom.ops.attention.kernels import hopper_forward  # noqa: E402


@pytest.fixture
def driver(monkeypatch):
    """The driver to which launches on the CPU's tensors go."""
    found, load = stand_in(monkeypatch, (hopper_forward, hopper_gradients), (torch_op,))
    monkeypatch.setattr(hopper_gradients, "_load", lambda _, *arguments: load(*arguments))
    monkeypatch.setattr(hopper_forward, "_load_join", lambda *_: found.function(FORWARD_JOIN, 256, 0))
    monkeypatch.setattr(
        hopper_gradients, "_load_end", lambda problem, gpu, device, what, *_: found.function(ENDS[what], 256, 0))
    forget(torch_op)
    yield found
    forget(torch_op)


def expected(operands, options, results, sums):
    """The launches of one backward, from nothing but its operands, its results and where its sums are, and the bytes
    of its sums and lines."""
    g, dlse, q, k, v, out, lse = operands
    causal, scale, left, right, first_q, first_k, *longest, deterministic, _ = options
    packing = torch_op.packing_of_tensors(first_q, first_k, *longest)
    problem = execute.problem_of(q, k, v, "bf16", scale, execute.Band(causal, left, right), packing)
    (config,) = plan_backward(problem, GPU, deterministic=deterministic)
    assert config.schedule == SCHEDULES[q.shape[3]]
    dq, dk, dv = results
    cluster, line_bytes = (2, 4) if config.schedule == "hopper_backward_wide" else (1, 16)
    blocks = -(-problem.queries // 64)
    sum_blocks = q.shape[2] // 64 + problem.batch + 1 if packing else blocks
    all_blocks = problem.heads * sum_blocks * (1 if packing else problem.batch)
    sums_bytes, lines_bytes = all_blocks * 64 * q.shape[3] * 4, all_blocks * 2 * 64 * line_bytes
    lines, parts, sharers = sums + sums_bytes, sums + sums_bytes + lines_bytes, config.sharers
    tiles = problem.batch * problem.kv_heads * sharers * -(-problem.keys // 128)
    section, wave = waves(problem, -(-problem.keys // 128), PROCESSORS // cluster, sharers)
    box = 128 // cluster
    ends = {
        "grid": (problem.batch * problem.heads * blocks, 1, 1), "block": (256, 1, 1), "shared": 0, "sums": sums,
        "first_q": address_of(first_q), "scale": scale, "queries": problem.queries, "heads": problem.heads,
        "blocks": blocks, "sum_blocks": sum_blocks,
    }  # fmt: skip
    start = ends | steps(g=g, out=out) | {
        "g": g.data_ptr(), "out": out.data_ptr(), "lse": lse.data_ptr(), "dlse": address_of(dlse), "lines": lines,
        "lse_batch": lse.stride(0), "lse_head": lse.stride(1),
    }  # fmt: skip
    main = steps(dk=dk, dv=dv) | {
        "grid": (cluster * min(tiles, PROCESSORS // cluster), 1, 1), "block": (32 * config.num_warps, 1, 1),
        "shared": config.lds_bytes(problem), "q_map": boxed(q, 64), "k_map": boxed(k, box), "v_map": boxed(v, box),
        "g_map": boxed(g, 64), "lines": lines, "dq_sums": sums, "dk": dk.data_ptr(), "dv": dv.data_ptr(),
        "first_q": address_of(first_q), "first_k": address_of(first_k), "counter": COUNTER, "scale2": scale * log2(e),
        "scale": scale, "queries": problem.queries, "keys": problem.keys, "heads": problem.heads,
        "group": problem.group // sharers, "sharers": sharers, "batches": problem.batch, "first": problem.first or 0,
        "last": problem.last or 0, "section": section, "wave": wave, "tiles": tiles, "sum_blocks": sum_blocks,
    }  # fmt: skip
    finish = ends | steps(dq=dq) | {"dq": dq.data_ptr()}
    launches = [(ENDS["START"], start), (f"attention_{config.schedule}", main), (ENDS["FINISH"], finish)]
    if sharers == 1:
        return launches, sums_bytes + lines_bytes
    left = [torch.empty(x.shape[0], x.shape[1] * sharers, *x.shape[2:], device="meta") for x in (dk, dv)]
    to_v = parts + 2 * left[0].numel()
    main |= {"dk": parts, "dv": to_v} | steps(dk=left[0], dv=left[1])
    join = steps(dk=dk, dv=dv) | {
        "grid": (-(-(dk.numel() + dv.numel()) // 8 // 256), 1, 1), "block": (256, 1, 1), "shared": 0,
        "dk_parts": parts, "dv_parts": to_v, "dk": dk.data_ptr(), "dv": dv.data_ptr(), "first_k": address_of(first_k),
        "keys": dk.shape[2], "heads": problem.kv_heads, "sharers": sharers, "batches": problem.batch,
    }  # fmt: skip
    return [*launches, (ENDS["JOIN"], join)], sums_bytes + lines_bytes + 2 * sum(x.numel() for x in left)


def backward_of(case, d, seed):
    """Operands of a backward that lie as `case` says, and its options."""
    packed, rows_first = case == "packed", case in ("packed", "views")
    batch, queries, keys = (1, 300, 410) if packed else (2, 150, 200)
    generator = torch.Generator().manual_seed(seed)

    def random(heads, n):
        x = torch.randn((batch, n, heads, d) if rows_first else (batch, heads, n, d), generator=generator)
        x = x.to(torch.bfloat16)
        return x.transpose(1, 2) if rows_first else x

    g, q, out = (random(4, queries) for _ in range(3))
    k, v = (random(4 if case == "own keys" else 2, keys) for _ in "kv")
    lse, dlse = (torch.randn(batch, 4, queries, generator=generator) for _ in range(2))
    lengths = (None, None, 0, 0)
    if packed:
        lengths = (*(torch.tensor(x, dtype=torch.int32) for x in ((0, 20, 300), (0, 210, 410))), 280, 210)
    band = {"causal": ("bottom_right", 0.3, None, None), "window": ("none", 0.3, 40, 3)}
    options = (*band.get(case, ("none", 0.3, None, None)), *lengths, False, 0.0)
    return (g, dlse if case in ("LSE", "packed") else None, q, k, v, out, lse), options


@pytest.fixture
def rooms(monkeypatch):
    """What backwards take for sums and lines: addresses and sizes."""
    found, make = [], torch.empty_strided

    def note(shape, strides, **options):
        x = make(shape, strides, **options)
        if x.dtype == torch.uint8:
            found.append((x.data_ptr(), x.numel()))
        return x

    monkeypatch.setattr(torch, "empty_strided", note)
    return found


@pytest.mark.parametrize("d", SCHEDULES)
@pytest.mark.parametrize("case", ["plain", "own keys", "causal", "window", "views", "LSE", "packed"])
def test_every_call_hands_over_its_own_operands(driver, rooms, monkeypatch, case, d):
    monkeypatch.setattr(cuda_call, "_MOST_ADDRESSES", 1)  # maps of the last call are forgotten
    calls = [backward_of(case, d, seed) for seed in (1, 2)]
    for operands, options in (*calls, calls[0]):
        driver.launches.clear()
        with torch.no_grad():
            results = torch_op.attention_backward_operator(*operands, *options)
        sums, size = rooms.pop()
        launches, wanted_size = expected(operands, options, results, sums)
        assert_same(driver.launches, launches)
        assert size == wanted_size
        assert not rooms, "one for each call"
    assert len(torch_op._warm_backward) == 1


def test_capped_scores(driver):
    """The cap in base 2 in the scale's place, and what the argument of tanh is multiplied by, at the end."""
    q, k, v = (torch.randn(1, 4, 100, 64, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    laneloom.flash_attention(q, k, v, scale=0.3, softcap=20.0).sum().backward()
    found = {name: values for name, values in driver.launches if "scale2" in values}
    assert found.keys() == {"attention_hopper_forward", "attention_hopper_backward_wide"}
    for values in found.values():
        assert values["scale2"] == pytest.approx(20 * log2(e), rel=MOST_RELATIVE)
        assert values["slope2"] == pytest.approx(2 * log2(e) * 0.3 / 20, rel=MOST_RELATIVE)
    assert found["attention_hopper_backward_wide"]["scale"] == pytest.approx(0.3, rel=MOST_RELATIVE)


#: how incoming gradients lie that are copied first
INCOMING = {
    "one for all": lambda x: x[:1, :1].expand_as(x),
    "transposed": lambda x: x.mT.contiguous().mT,
    "shifted": lambda x: torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x),
}


def bytes_of(x):
    return x.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("incoming", INCOMING)
@pytest.mark.parametrize("d", SCHEDULES)
def test_incoming_gradients_that_are_copied(driver, d, incoming):
    for seed in (1, 2):
        (g, _, *rest), options = backward_of("plain", d, seed)
        g, dlse = INCOMING[incoming](g), INCOMING[incoming](torch.randn(g.shape[:3], dtype=torch.float64))
        read = []

        def look(name, values, g=g, dlse=dlse, read=read):
            if name == ENDS["START"]:  # the copies live no longer than the call
                sizes = {"g": g.numel() * 2, "dlse": dlse.numel() * 4}
                read += [ctypes.string_at(values[x], size) for x, size in sizes.items()]

        driver.on_launch = look
        with torch.no_grad():
            torch_op.attention_backward_operator(g, dlse, *rest, *options)
        assert read == [bytes_of(g), bytes_of(dlse.float())]
        (_, start), (_, main), *_ = driver.launches[-4:]
        dense = torch.empty(g.shape, dtype=g.dtype)
        assert start.items() >= steps(g=dense).items()
        assert main["g_map"] == (*boxed(dense, 64)[:1], start["g"], *boxed(dense, 64)[2:])
    assert len(torch_op._warm_backward) == 1


@pytest.mark.parametrize("d", SCHEDULES)
def test_autograd_prepares_once(driver, monkeypatch, d):
    met = []
    for name in ("prepare_forward", "prepare_backward"):
        original = getattr(execute, name)
        monkeypatch.setattr(
            execute, name, lambda *a, o=original, n=name, **options: (met.append(n), o(*a, **options))[1])
    for seed in (1, 2, 3):
        (g, _, q, k, v, *_), _ = backward_of("plain", d, seed)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        driver.launches.clear()
        results = torch.autograd.grad(laneloom.flash_attention(*leaves, causal=True), leaves, g)
        (_, forward), (_, start), (_, main), (_, finish), (_, join) = driver.launches
        assert [forward[f"{name}_map"][1] for name in "qkv"] == [x.data_ptr() for x in leaves]
        assert [main[f"{name}_map"][1] for name in "qkvg"] == [x.data_ptr() for x in (*leaves, g)]
        assert (forward["out"], forward["lse"]) == (start["out"], start["lse"])
        assert forward["out_map"][1] == forward["out"]
        assert [finish["dq"], join["dk"], join["dv"]] == [x.data_ptr() for x in results]
    assert met == ["prepare_forward", "prepare_backward"]


def test_parts_of_the_keys_are_joined(driver):
    """Few queries over many keys: every part a head of its own, added up into the call's own output. What is prepared
    holds none."""
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(1, h, n, 64, generator=generator).bfloat16() for h, n in ((4, 70), (2, 4000), (2, 4000)))
        driver.launches.clear()
        out, lse = laneloom.flash_attention(q, k, v, return_lse=True)
        parts = plan(execute.problem_of(q, k, v, "bf16", None, execute.Band()), GPU).parts
        assert parts > 1
        (_, forward), (name, join) = driver.launches
        assert name == FORWARD_JOIN
        assert [forward[f"{x}_map"][1] for x in "qkv"] == [x.data_ptr() for x in (q, k, v)]
        assert (forward["heads"], forward["group"], forward["parts"]) == (4 * parts, 2 * parts, parts)
        assert (join["part_out"], join["part_lse"]) == (forward["out"], forward["lse"])
        assert (join["out"], join["lse"]) == (out.data_ptr(), lse.data_ptr())
        assert (join["queries"], join["heads"], join["parts"], join["batches"]) == (70, 4, parts, 1)
        assert {x: join[x] for x in steps(out=out)} == steps(out=out)
        assert join["grid"] == (-(-out.numel() // 8 // 256), 1, 1)
        shape = out.shape
        del q, out, lse
    gc.collect()
    assert not [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape == shape and x.device.type == "cpu"]


def test_threads_do_not_mix_what_they_launch(driver, monkeypatch):
    """One prepared call serves all threads, each with tensors of its own."""
    monkeypatch.setattr(driver, "on_launch", lambda name, values: of_thread[threading.get_ident()].append(values))
    of_thread, wrong = {}, []

    def work(seed):
        operands, options = backward_of("plain", 64, seed)
        launches = of_thread[threading.get_ident()] = []
        for _ in range(50):
            with torch.no_grad():
                results = torch_op.attention_backward_operator(*operands, *options)
            wanted, _ = expected(operands, options, results, launches[0]["sums"])
            if [x["grid"] for x in launches] != [x["grid"] for _, x in wanted]:
                wrong.append("order")
            for values, (name, truth) in zip(launches, wanted, strict=True):
                wrong.extend((name, n) for n, x in truth.items() if not isinstance(x, float) and values[n] != x)
            launches.clear()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert len(driver.launches) == 4 * 50 * 4


@pytest.mark.parametrize("d", SCHEDULES)
def test_tensors_elsewhere_than_on_the_current_gpu(driver, rooms, monkeypatch, d):
    """Such calls have no key: each is prepared by itself, and hands over the same."""
    monkeypatch.setattr(warm, "current_device", lambda: 1)
    for seed in (1, 2):
        operands, options = backward_of("LSE", d, seed)
        driver.launches.clear()
        with torch.no_grad():
            results = torch_op.attention_backward_operator(*operands, *options)
        launches, _ = expected(operands, options, results, rooms.pop()[0])
        assert_same(driver.launches, launches)
    assert not len(torch_op._warm_backward)
