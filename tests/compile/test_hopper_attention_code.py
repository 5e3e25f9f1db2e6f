"""Machine code of Hopper's attention in CUDA C++: products in flight, what stands between them, no spills."""

from __future__ import annotations

import re

import pytest
from sampled import rarely

pytest.importorskip("cuda.bindings.nvrtc")

from sass_listing import listing_of, sass_of

from laneloom.codegen.nvrtc import nvrtc_version
from laneloom.gpu import get_gpu
from laneloom.ops.attention.config import plan, plan_backward
from laneloom.ops.attention.config_decode import DecodeProblem, HopperDecodeConfig, HopperRangesConfig
from laneloom.ops.attention.execute import code_object
from laneloom.ops.attention.hopper_decode_call import compiled
from laneloom.ops.attention.problem import AttentionProblem


def check_begins_early(ops, looped=False):
    """The L2 is asked for the first tile's boxes, and nothing is loaded, before kernels ahead have ended. looped: the
    wait stands at a loop's head, in front of what comes before it."""
    asked, loaded = ([i for i, op in enumerate(ops) if op.startswith(word)] for word in ("UTMAPF.L2", "UTMALDG"))
    (waits,) = [i for i, op in enumerate(ops) if op == "ACQBULK"]
    assert asked
    assert waits < min(loaded)
    assert max(asked) < (min(loaded) if looped else waits)


@pytest.mark.parametrize(("d", "last"), [(128, 0), (256, None), *rarely((128, None), (64, 0))])
def test_hopper_forward(d, last):
    """The softmax begins between the wait for the scores and the wait for the values, and nothing is spilled before the
    last product: behind it a few registers are, once."""
    gpu = get_gpu("sm_90a")
    problem = AttentionProblem(4, 16, 16, 4096, 4096, d, d, "bf16", d**-0.5, None, last)
    config = plan(problem, gpu)
    assert config.schedule == "hopper_forward"
    code = code_object(problem, gpu)
    assert code.vgpr_spills <= 8
    assert code.lds_bytes + 2048 <= gpu.lds_bytes
    steps_of_d, steps_of_columns = -(-d // 16), config.columns // 16
    values = code.asm.count(f"m64n{d}k16.f32.bf16.bf16")
    # The first tile's first scores, the loop's, and the next tile's, beside the last values.
    assert values == 2 * steps_of_columns + (3 * steps_of_d if config.columns == d else 0)
    ops = sass_of(code)
    products = [i for i, op in enumerate(ops) if op.startswith("HGMMA") and ".F32." in op]
    assert not [op for op in ops[: products[-1]] if op.startswith(("STL", "LDL"))]
    assert not [op for op in ops[: products[-1]] if op.startswith(("STL", "LDL"))], "of those that multiply"
    assert len(products) == 3 * steps_of_d + 2 * steps_of_columns
    # The loop's: its scores, then its values, all issued before the first wait.
    loop = products[steps_of_d : 2 * steps_of_d + steps_of_columns]
    waits = [i for i, op in enumerate(ops) if op.startswith("WARPGROUP.DEPBAR")]
    assert not [i for i in waits if loop[0] < i < loop[-1]]
    scores_done, values_done = [i for i in waits if i > loop[-1]][:2]
    maximum = [op for op in ops[scores_done:values_done] if op.startswith("FMNMX")]
    assert len(maximum) >= config.columns // 2, "of a thread's scores, while the values are summed"
    softmax = ops[scores_done : products[2 * steps_of_d + steps_of_columns]]
    assert sum(op == "MUFU.EX2" for op in softmax) == config.columns // 2 + 2, "and the fading of two rows"
    assert sum(op.startswith("UTMASTG") for op in ops) == -(-d // 64), "the output leaves by the copy engine"
    check_begins_early(ops)


@pytest.mark.parametrize(("d", "d_v", "last"), [(128, 128, 0), (256, 64, None)])
def test_hopper_forward_float8(d, d_v, last):
    """Products of e4m3, values transposed by matrices, three scores a maximum; the loop keeps all but a few sums."""
    gpu = get_gpu("sm_90a")
    problem = AttentionProblem(4, 16, 16, 4096, 4096, d, d_v, "fp8", d**-0.5, None, last, out="bf16")
    config = plan(problem, gpu)
    assert (config.schedule, config.consumers) == ("hopper_forward_float8", 3)
    code = code_object(problem, gpu)
    assert code.lds_bytes + 2048 <= gpu.lds_bytes
    ops = sass_of(code)
    products = [i for i, op in enumerate(ops) if op.startswith("QGMMA.64x") and op.endswith("x32.F32.E4M3.E4M3")]
    steps = d // 32
    assert len(products) == steps + 4, "and no second copy of the loop"
    assert ops[products[-1]] == f"QGMMA.64x{d_v}x32.F32.E4M3.E4M3"
    inside = ops[products[0] : products[-1]]
    assert len([op for op in inside if op.startswith(("STL", "LDL"))]) <= 6 + (nvrtc_version() == "13.0")
    assert sum(op == "MUFU.EX2" for op in inside) == 64 + 2, "of a thread's scores, and the fading of two rows"
    assert sum(op.startswith("F2FP.SATFINITE.E4M3") for op in inside) == 32
    assert sum(op == "VIMNMX3" for op in inside) == 2 * 2 * 15, "of two rows, and again where all are negative"
    assert sum(op.startswith("FMNMX") for op in inside) == 6, "between lanes, and with the rows' former largest"
    assert sum(op.startswith("LDSM.16.MT88.4") for op in ops) == 4
    outputs = d_v // 16  # stores of the output; the others are of transposed values
    assert sum(op.startswith("STSM.16.M88.4") for op in ops) == 4 + outputs
    check_begins_early(ops)


@pytest.mark.parametrize(("d", "last"), [(128, 0), (64, None)])
def test_hopper_backward(d, last):
    """Five products of a step, of which no two wait for each other, and two more that add lse and delta."""
    gpu = get_gpu("sm_90a")
    problem = AttentionProblem(4, 16, 16, 4096, 4096, d, d, "bf16", d**-0.5, None, last)
    narrow = d == 64
    (config,) = plan_backward(problem, gpu)
    assert config.schedule == ("hopper_backward_narrow" if narrow else "hopper_backward")
    code = code_object(problem, gpu, "backward")
    # The producer's one thread may keep a few addresses in memory; the products' threads nothing in the loop.
    assert code.vgpr_spills <= 40
    assert code.lds_bytes + 2048 * config.stages + 2048 <= gpu.lds_bytes
    ops = sass_of(code)
    products = [i for i, op in enumerate(ops) if op.startswith("HGMMA") and ".F32." in op]
    block = d // 16 + 1
    if narrow:  # dQ by its own warpgroup; S and dP, dV and dK by the others
        groups = {"dQ": 8, "S, dP": 2 * block, "dV, dK": 4 + 4}
    else:  # S before the loop; dP and dV, dQ and the next S and dK in it; dQ of the last block after it
        groups = {"S": block, "dP, dV": block + 4, "dQ, S, dK": 8 + block + 4, "dQ": 8}
    assert len(products) == sum(groups.values())
    at = 0
    for count in groups.values():
        together = ops[products[at] : products[at + count - 1]]
        assert not [op for op in together if op.startswith("WARPGROUP.DEPBAR")]
        at += count
    first = sum(list(groups.values())[:1])
    inside = ops[products[first] : products[first + sum(list(groups.values())[1:3]) - 1]]
    assert not [op for op in inside if op in ("STL", "LDL") or op.startswith(("STL.", "LDL."))]
    assert not [op for op in inside if op.startswith("R2UR")], "descriptors are made of what a warp shares"
    exponentials = [i for i, op in enumerate(ops) if op == "MUFU.EX2"]
    assert len(exponentials) == 32
    assert sum(op.startswith("RED") for op in ops) == (8 if narrow else 16), "dQ leaves in additions of 16 bytes"
    among = ops[exponentials[0] : exponentials[-1]]
    assert not [op for op in among if op.startswith("LDS")], "nothing is loaded for them"
    stores = [op for op in ops if op.startswith("STG")]
    assert stores.count("STG.E.128") == 2 * d // 16, "dK and dV leave in 16 bytes"
    assert len(stores) == 2 * d // 16 + 1, "and the tiles' counter"
    check_begins_early(ops)


@pytest.mark.parametrize("last", [None, 0])
def test_hopper_backward_does_not_wait_for_its_additions(last):
    """Until the L2 has taken dQ, nothing writes the registers that the additions read."""
    problem = AttentionProblem(4, 16, 16, 4096, 4096, 128, 128, "bf16", 128**-0.5, None, last)
    lines = listing_of(code_object(problem, get_gpu("sm_90a"), "backward"))
    additions = [i for i, line in enumerate(lines) if re.search(r"\bRED", line)][:8]
    read = set()
    for i in additions:
        address, value = re.search(r"\[R(\d+)\.64.*\], R(\d+)", lines[i]).groups()
        read |= {int(address), int(address) + 1, *range(int(value), int(value) + 4)}
    assert len(read) == 34
    # To the end of the loop, and from its beginning to the exponentials' last.
    end = next(i for i in range(additions[-1], len(lines)) if re.search(r"\bBRA\b", lines[i]))
    begin = next(i for i, line in enumerate(lines) if "MUFU.EX2" in line)
    until = max(i for i, line in enumerate(lines) if "MUFU.EX2" in line)
    for line in lines[additions[-1] + 1 : end] + lines[begin:until]:
        written = re.match(r"(?:@!?U?P\d+ )?[A-Z][A-Z0-9_.]+ R(\d+)", line)
        assert not (written and int(written[1]) in read), line


@pytest.mark.parametrize(("d", "d_v", "last"), [(256, 256, 0), *rarely((192, 128, None))])
def test_hopper_backward_wide(d, d_v, last):
    """dK and dV stay in registers of two warpgroups, the third issues its next S before dQ, two CTAs share loads."""
    gpu = get_gpu("sm_90a")
    problem = AttentionProblem(2, 8, 8, 2048, 2048, d, d_v, "bf16", d**-0.5, None, last)
    (config,) = plan_backward(problem, gpu)
    assert config.schedule == "hopper_backward_wide"
    code = code_object(problem, gpu, "backward")
    # The producer's one thread keeps addresses in memory, a scorer's at most one number, under its exponentials.
    assert code.vgpr_spills <= 28
    assert code.lds_bytes + 1536 <= gpu.lds_bytes
    ops = sass_of(code)
    scores, parts = d // 16 + d_v // 16, -(-d // 128)  # parts: of 64 columns of dQ, in each of two CTAs
    products = [i for i, op in enumerate(ops) if op.startswith("HGMMA")]
    # S and dP before the loop; in it S, dQ from this CTA's keys and the other one's, dP; dV and dK in one or two
    # instructions of each of four steps
    sums = 4 * sum(-(-n // 128) for n in (d, d_v))
    assert len(products) == 2 * scores + 8 * parts + sums
    loop = products[scores : 2 * scores + 8 * parts]
    inside = ops[loop[0] : loop[-1]]
    assert not [op for op in inside if op.startswith(("STL", "LDL"))]
    assert sum(op.startswith("WARPGROUP.DEPBAR") for op in inside) == parts - 1
    assert sum(op.startswith("RED") for op in inside) == 8 * (parts - 1), "the last part leaves under the next dP"
    assert sum(op.startswith("RED") for op in ops) == 8 * parts
    assert sum(op == "MUFU.EX2" for op in ops) == 32
    assert sum(op.startswith("UTMALDG.4D.MULTICAST") for op in ops) == 2, "each CTA fetches half of Q and dO for both"


@pytest.mark.parametrize("schedule", ["hopper_decode", "hopper_decode_ranges"])
@pytest.mark.parametrize(("d", "page", "left"), [(128, 0, None), (256, 16, 100)])
def test_hopper_decode(schedule, d, page, left):
    """Copies of the keys and values run ahead of mma, and one launch puts the parts together."""
    gpu = get_gpu("sm_90a")
    problem = DecodeProblem(16, 32, 8, 1, 8192, d, d, "bf16", d**-0.5, left, page)
    configs = (HopperDecodeConfig(splits=1, stages=2, early=True), HopperRangesConfig(ranges=128, stages=2))
    code = next(compiled(problem, config, gpu) for config in configs if config.schedule == schedule)
    assert (code.vgpr_spills, code.scratch_bytes) == (0, 0)
    assert code.lds_bytes + 2048 <= gpu.lds_bytes
    ops = sass_of(code)
    assert sum(op.startswith("UTMALDG.4D") for op in ops) == 2 * d // 64
    assert sum(op.startswith("HMMA.16816.F32.BF16") for op in ops) == 2 * d // 16 + 2 * d // 16
    assert sum(op.startswith("ATOMG.E.INC") for op in ops) == 1
    wide = {op for op in ops if op.startswith("LDG") and ".128" in op}
    assert wide == {"LDG.E.128.STRONG.GPU"}, "of the parts; keys and values do not pass through registers"
    check_begins_early(ops, looped=schedule == "hopper_decode_ranges")


@pytest.mark.parametrize(
    ("d", "d_v", "abreast", "most"),
    [(16, 16, 1, 128), (64, 64, 1, 128), (64, 64, 2, 168), (80, 80, 2, 168), (32, 32, 4, 168), (160, 160, 1, 168),
     (96, 96, 2, 255), (208, 256, 1, 255)],
)  # fmt: skip
def test_registers_of_hopper_decode(d, d_v, abreast, most):
    """As many programs share a processor as the plan counts on: three with 128 registers a thread, two with 168."""
    gpu = get_gpu("sm_90a")
    problem = DecodeProblem(4, 16, 16, 1, 8192, d, d_v, "fp16", left=5, page=16, adjacent=True)
    runs = HopperDecodeConfig(splits=32, stages=2, cluster=8, abreast=abreast)
    ranges = HopperRangesConfig(ranges=99, stages=1 + (most < 255), abreast=abreast)
    for config, limit in ((runs, most), (ranges, most if abreast * max(d, d_v) <= 128 else 255)):
        assert config.why_invalid(problem, gpu) is None
        code = compiled(problem, config, gpu)
        assert (code.vgpr_spills, code.scratch_bytes) == (0, 0)
        assert code.vgprs <= limit
