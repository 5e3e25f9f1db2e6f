"""Machine code of the attention kernels: matrix instructions, exponentials, loads ahead of them, no spills, LDS."""

from __future__ import annotations

import re

import pytest
from sampled import rarely
from sass_listing import listing_of, sass_of

from laneloom.codegen import CodeObject
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.gpu import get_gpu
from laneloom.isa.analysis import Loop, hot_loop, loads_are_wide, order
from laneloom.isa.listing import Instruction, Kind
from laneloom.ops.attention.config import plan, plan_backward
from laneloom.ops.attention.config_decode import DecodeProblem, HopperDecodeConfig, plan_decode
from laneloom.ops.attention.execute import code_object
from laneloom.ops.attention.kernels import decode, hopper_decode
from laneloom.ops.attention.problem import AttentionProblem

ROLES = ("forward", "query", "key")


def compiled(gpu: str, role: str, d: int, dtype: str = "fp16", last: int | None = 0) -> CodeObject:
    problem = AttentionProblem(2, 4, 2, 512, 512, d, d, dtype, d**-0.5, None, last)
    code = code_object(problem, get_gpu(gpu), role)
    assert code.lds_bytes <= plan(problem, get_gpu(gpu), role).lds_bytes(problem) <= get_gpu(gpu).lds_bytes
    return code


def check_no_spills(code: CodeObject) -> None:
    assert (code.vgpr_spills, code.sgpr_spills, code.scratch_bytes) == (0, 0, 0)


def loop_of(code: CodeObject) -> Loop:
    loop = hot_loop(code.asm)
    assert loop is not None
    return loop


def narrow_loads(loop: Loop) -> list[Instruction]:
    return [i for i in loop.instructions if i.kind is Kind.GLOBAL_LOAD and i.width_bytes < 16]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("gpu", "dtype"), [*rarely(("gfx1100", "fp16")), ("gfx1151", "bf16"), ("gfx1201", "fp16")])
def test_hot_loop(gpu, dtype, role):
    code = compiled(gpu, role, 128, dtype)
    check_no_spills(code)
    loop = loop_of(code)
    matrix = {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX}
    assert matrix == {f"v_wmma_f32_16x16x16_{'bf16' if dtype == 'bf16' else 'f16'}"}
    rows, columns, d, out = 16, 32, 128, {"forward": 128, "query": 64, "key": 2 * 64}[role]
    products = d * (1 if role == "forward" else 2) + out
    assert loop.count(Kind.MATRIX) == rows * columns * products // 16**3
    exponentials = sum(i.mnemonic.startswith("v_exp_f32") for i in loop.instructions)
    # a weight per pair and lane, and the forward's fading of 16 rows, two lanes to a row
    assert exponentials == rows * columns // 32 + (role == "forward")
    assert len(narrow_loads(loop)) == (2 if role == "key" else 0), "lse and delta of the columns alone"
    assert role == "key" or loads_are_wide(loop)


@pytest.mark.parametrize(
    ("gpu", "dtype", "depth", "role"),
    [
        *(("gfx908", "bf16", 8, role) for role in ROLES), ("gfx90a", "fp16", 16, "key"),
        *(("gfx942", "bf16", 16, role) for role in ROLES), *(("gfx950", "fp16", 32, role) for role in ROLES),
        *rarely(("gfx90a", "fp16", 16, "forward"), ("gfx90a", "fp16", 16, "query")),
    ],
)  # fmt: skip
def test_hot_loop_on_cdna(gpu, dtype, depth, role):
    """MFMA only, all of D in one program, and weights that stay in their lanes on the way to the operand."""
    code = compiled(gpu, role, 128, dtype)
    check_no_spills(code)
    loop = loop_of(code)
    matrix = {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX}
    name = ("" if gpu in ("gfx908", "gfx90a") else "_") + dtype.replace("fp", "f")
    assert matrix == {f"v_mfma_f32_16x16x{depth}{name}"}
    rows, columns, d = 16, 32, 128
    tiles = {"forward": 2, "query": 3, "key": 4}[role]
    assert loop.count(Kind.MATRIX) == tiles * rows * columns * d // (16 * 16 * depth)
    exponentials = sum(i.mnemonic.startswith("v_exp_f32") for i in loop.instructions)
    # a weight per pair and lane, and the forward's fading of 16 rows, four lanes to a row
    assert exponentials == rows * columns // 64 + (role == "forward")
    assert len(narrow_loads(loop)) == (2 if role == "key" else 0), "lse and delta of the columns alone"
    stores = [i for i in loop.instructions if i.kind is Kind.LDS_STORE]
    stored = sum(i.width_bytes * (1 + i.mnemonic.startswith("ds_write2")) for i in stores)
    assert stored == tiles * columns * d * 2 // 256 + (2 * 4 if role == "key" else 0), "the tiles, and no weights"


@pytest.mark.skipif(parse_version(triton_version()) < (3, 9), reason="Triton compiles for it from 3.9 on")
@pytest.mark.parametrize("role", ROLES)
def test_hot_loop_on_cdna_5(role):
    """WMMA of the third version only, all of D in one program, and weights that are where the operand wants them."""
    code = compiled("gfx1250", role, 128, "bf16")
    check_no_spills(code)
    loop = loop_of(code)
    assert {i.mnemonic for i in loop.instructions if i.kind is Kind.MATRIX} == {"v_wmma_f32_16x16x32_bf16"}
    rows, columns, d = 16, 32, 128
    tiles = {"forward": 2, "query": 3, "key": 4}[role]
    assert loop.count(Kind.MATRIX) == tiles * rows * columns * d // (16 * 16 * 32)
    exponentials = sum(i.mnemonic.startswith("v_exp_f32") for i in loop.instructions)
    assert exponentials == rows * columns // 32 + (role == "forward")
    stores = [i for i in loop.instructions if i.kind is Kind.LDS_STORE]
    stored = sum(i.width_bytes * (1 + ("2addr" in i.mnemonic)) for i in stores)
    assert stored == tiles * columns * d * 2 // 128 + (2 * 4 if role == "key" else 0), "the tiles, and no weights"
    moved = [i.mnemonic for i in loop.instructions if "perm" in i.mnemonic or "swap" in i.mnemonic]
    assert moved == ["v_permlanex16_b32"] * (2 if role == "forward" else 0), "a row's maximum and its sum alone"


@pytest.mark.skipif(parse_version(triton_version()) < (3, 9), reason="Triton compiles for it from 3.9 on")
@pytest.mark.parametrize("role", ROLES)
def test_no_vector_registers_spill_on_cdna_5(role):
    for d in (16, 512):
        code = compiled("gfx1250", role, d)
        assert (code.vgpr_spills, code.scratch_bytes) == (0, 0)


@pytest.mark.parametrize(("gpu", "d", "role"), [("gfx942", 256, role) for role in ROLES] + [
    ("gfx908", 512, "key"), ("gfx90a", 256, "key"), ("gfx942", 512, "forward"), ("gfx950", 512, "forward"),
    ("gfx950", 512, "key"),
])  # fmt: skip
def test_no_spills_on_cdna(gpu, d, role):
    check_no_spills(compiled(gpu, role, d))


@pytest.mark.parametrize(("gpu", "page"), [("gfx90a", 16), ("gfx942", 16), ("gfx950", 0)])
def test_decode_on_cdna(gpu, page):
    problem = DecodeProblem(16, 32, 8, 1, 8192, 128, 128, "bf16", 128**-0.5, None, page)
    config = plan_decode(problem, get_gpu(gpu))
    code = decode.code_object(problem, config, get_gpu(gpu))
    check_no_spills(code)
    assert code.lds_bytes <= config.lds_bytes(problem) <= get_gpu(gpu).lds_bytes
    loop = loop_of(code)
    assert len(narrow_loads(loop)) <= (2 if page else 0), "the pages of keys and values alone"
    depth = 16 if page else 32
    assert loop.count(Kind.MATRIX) == 2 * 16 * config.columns * 128 // (16 * 16 * depth)


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("gpu", [*rarely("gfx1100"), "gfx1151", "gfx1201"])
def test_decode_on_rdna(gpu, page):
    problem = DecodeProblem(16, 32, 8, 1, 8192, 128, 128, "bf16", 128**-0.5, None, page)
    code = decode.code_object(problem, plan_decode(problem, get_gpu(gpu)), get_gpu(gpu))
    assert (code.vgpr_spills, code.scratch_bytes) == (0, 0)


@pytest.mark.parametrize("role", ["query", "key"])
@pytest.mark.parametrize(("gpu", "dtype", "products"), [("gfx942", "bf16", 16), ("gfx950", "fp16", 8)])
def test_first_product_of_the_backward_on_cdna(gpu, dtype, products, role):
    """All of it stands above the wait for the second tile."""
    above = order(loop_of(compiled(gpu, role, 128, dtype))).split(" WAIT S")[0]
    assert sum(map(int, re.findall(r"\bW(\d+)", above.replace("W ", "W1 ") + " "))) == products, above


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_loads_run_under_the_matrix_instructions(gpu):
    """The values come while the scores are computed, the next keys while the values are summed."""
    loop = loop_of(compiled(gpu, "forward", 64))
    # No wait and no barrier between the loads and the last matrix instruction, twice.
    products = r"BAR G\d (L\d* W\d* )+"
    assert re.search(products + r"(WAIT\S* |S\d* )+" + products, order(loop) + " "), order(loop)


@pytest.mark.parametrize(
    ("gpu", "role"),
    [*(("gfx1151", role) for role in ROLES), ("gfx1201", "key"), *rarely(("gfx1201", "forward"), ("gfx1201", "query"))],
)
def test_no_spills_up_to_256(gpu, role):
    check_no_spills(compiled(gpu, role, 256))


def test_widest_fits():
    """D = 512: the forward has no spills either; of the backward only that it compiles is promised."""
    check_no_spills(compiled("gfx1201", "forward", 512))


@pytest.mark.parametrize("role", ROLES)
def test_hopper_fallback(role):
    """What Hopper's own schedules cannot, here a deterministic backward and a negative scale."""
    problem = AttentionProblem(2, 4, 2, 512, 512, 64, 64, "bf16", -0.1, None, 0)
    code = code_object(problem, get_gpu("sm_90a"), role)
    assert code.vgpr_spills == 0
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in code.asm
    assert "ex2.approx" in code.asm


@pytest.mark.parametrize(("d", "last"), [(128, None), (128, 0), (64, 0), (256, None)])
def test_hopper_forward(d, last):
    """The softmax begins between the wait for the scores and the wait for the values, and nothing is spilled."""
    pytest.importorskip("cuda.bindings.nvrtc")
    gpu = get_gpu("sm_90a")
    problem = AttentionProblem(4, 16, 16, 4096, 4096, d, d, "bf16", d**-0.5, None, last)
    config = plan(problem, gpu)
    assert config.schedule == "hopper_forward"
    code = code_object(problem, gpu)
    # Beside three warpgroups the thread that loads has 32 registers: and reads the number of tiles again, once a tile.
    assert code.vgpr_spills <= (1 if config.consumers == 3 else 0)
    assert code.lds_bytes + 2048 <= gpu.lds_bytes
    steps_of_d, steps_of_columns = -(-d // 16), config.columns // 16
    values = code.asm.count(f"m64n{d}k16.f32.bf16.bf16")
    # The first tile's first scores, the loop's, and the next tile's, beside the last values.
    assert values == 2 * steps_of_columns + (3 * steps_of_d if config.columns == d else 0)
    ops = sass_of(code)
    products = [i for i, op in enumerate(ops) if op.startswith("HGMMA") and ".F32." in op]
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


@pytest.mark.parametrize(("d", "d_v", "last"), [(128, 128, 0), (256, 64, None)])
def test_hopper_forward_float8(d, d_v, last):
    """Products of e4m3, values transposed by matrices, three scores a maximum; the loop keeps all but a few sums."""
    pytest.importorskip("cuda.bindings.nvrtc")
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
    assert len([op for op in inside if op.startswith(("STL", "LDL"))]) <= 6
    assert sum(op == "MUFU.EX2" for op in inside) == 64 + 2, "of a thread's scores, and the fading of two rows"
    assert sum(op.startswith("F2FP.SATFINITE.E4M3") for op in inside) == 32
    assert sum(op == "VIMNMX3" for op in inside) == 2 * 2 * 15, "of two rows, and again where all are negative"
    assert sum(op.startswith("FMNMX") for op in inside) == 6, "between lanes, and with the rows' former largest"
    assert sum(op.startswith("LDSM.16.MT88.4") for op in ops) == 4
    outputs = d_v // 16  # stores of the output; the others are of transposed values
    assert sum(op.startswith("STSM.16.M88.4") for op in ops) == 4 + outputs


@pytest.mark.parametrize(("d", "last"), [(128, 0), (64, None)])
def test_hopper_backward(d, last):
    """Five products of a step, of which no two wait for each other, and two more that add lse and delta."""
    pytest.importorskip("cuda.bindings.nvrtc")
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


@pytest.mark.parametrize("last", [None, 0])
def test_hopper_backward_does_not_wait_for_its_additions(last):
    """Until the L2 has taken dQ, nothing writes the registers that the additions read."""
    pytest.importorskip("cuda.bindings.nvrtc")
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


@pytest.mark.parametrize(("d", "d_v", "last"), [(256, 256, 0), (192, 128, None)])
def test_hopper_backward_wide(d, d_v, last):
    """dK and dV stay in registers of two warpgroups, the third issues its next S before dQ, two CTAs share loads."""
    pytest.importorskip("cuda.bindings.nvrtc")
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


@pytest.mark.parametrize(("d", "page", "left"), [(128, 0, None), (256, 16, 100)])
def test_hopper_decode(d, page, left):
    """Copies of the keys and values run ahead of mma, and one launch puts the parts together."""
    pytest.importorskip("cuda.bindings.nvrtc")
    gpu = get_gpu("sm_90a")
    problem = DecodeProblem(16, 32, 8, 1, 8192, d, d, "bf16", d**-0.5, left, page)
    config = plan_decode(problem, gpu)
    assert isinstance(config, HopperDecodeConfig)
    code = hopper_decode.code_object(problem, config, gpu)
    assert (code.vgpr_spills, code.scratch_bytes) == (0, 0)
    assert code.lds_bytes + 2048 <= gpu.lds_bytes
    ops = sass_of(code)
    assert sum(op.startswith("UTMALDG.4D") for op in ops) == 2 * d // 64
    assert sum(op.startswith("HMMA.16816.F32.BF16") for op in ops) == 2 * d // 16 + 2 * d // 16
    assert sum(op.startswith("ATOMG.E.INC") for op in ops) == 1
    wide = {op for op in ops if op.startswith("LDG") and ".128" in op}
    assert wide == {"LDG.E.128.STRONG.GPU"}, "of the parts; keys and values do not pass through registers"
