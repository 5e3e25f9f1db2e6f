"""Strict mode's undefined bits are sound in what changes an instruction's operands: DPP, SDWA, dual issue."""

import random
import re
from collections.abc import Iterator
from functools import cache
from zlib import crc32

import pytest
from sampled import EVERYTHING
from test_alu_spelling import of_gpus, refusals
from test_undefined_soundness import BEYOND, texts, unsound

from laneloom.cli.coverage import ONE_EACH
from laneloom.gpu import get_gpu

ROWS = " row_mask:0xf bank_mask:0xf"
GFX9_DPP = (
    f"quad_perm:[1,1,3,0]{ROWS}", "quad_perm:[3,2,1,0] row_mask:0x5 bank_mask:0x7", f"row_shr:3{ROWS} bound_ctrl:0",
    f"row_shl:5{ROWS}", f"row_ror:7{ROWS}", "row_mirror row_mask:0x3 bank_mask:0xf bound_ctrl:0", f"wave_shr:1{ROWS}",
    f"wave_rol:1{ROWS} bound_ctrl:0", "row_bcast:15 row_mask:0xa bank_mask:0xf", f"row_bcast:31{ROWS} bound_ctrl:0",
    f"row_newbcast:4{ROWS}",
)  # fmt: skip
DPP = (
    f"quad_perm:[1,1,3,0]{ROWS}", "quad_perm:[3,2,1,0] row_mask:0x1 bank_mask:0x7 fi:1",
    f"row_shr:3{ROWS} bound_ctrl:1", f"row_shl:5{ROWS}", f"row_ror:7{ROWS} fi:1",
    "row_half_mirror row_mask:0x2 bank_mask:0xf bound_ctrl:1", "row_share:9 row_mask:0xf bank_mask:0x3",
    f"row_xmask:6{ROWS} bound_ctrl:1 fi:1", "dpp8:[7,6,5,4,3,2,1,0]", "dpp8:[0,0,3,3,1,7,5,5] fi:1",
)  # fmt: skip
PARTS = ("DWORD", "BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1")
TWICE = re.compile(
    r"v_(fmac|fmaak|fmamk|mul|add|sub|subrev|mul_dx9_zero|max|min|max_num|min_num|fma)_f(32|64)"
    r"|v_(mov|cndmask|lshlrev|lshrrev|and|bitop2)_b32|v_(add|sub)_nc_u32|v_ashrrev_i32|v_(max|min)_i32"
)
DUAL_ALONE = {"v_bitop2_b32", "v_dot2acc_f32_f16", "v_dot2acc_f32_bf16"}
TRIES = 20 if EVERYTHING else 2  #: of each instruction


def shapes(name: str, gpu: str) -> list[str]:
    """The instruction as elsewhere, and with the registers that short encodings know: VCC for masks, vector sources."""
    found = []
    for text in texts(name, gpu):
        vcc = re.sub(r"\bs\d+\b", "vcc_lo", re.sub(r"\bs\[\d+:\d+\]", "vcc", text))
        result = re.sub(r"\bs\[\d+:\d+\]", "vcc", re.sub(r"\bs\d+\b", "vcc_lo", text, count=1), count=1)
        found += [text, vcc, re.sub(r"\bs(\d+)\b", r"v\1", text), re.sub(r"\bs(\d+)\b", r"v\1", result)]
    return list(dict.fromkeys(found))


def with_dpp(text: str, gpu: str, rng: random.Random) -> str:
    return f"{text} {rng.choice(GFX9_DPP if get_gpu(gpu).major == 9 else DPP)}"


def with_parts(text: str, gpu: str, rng: random.Random) -> str:
    name, operands = text.split(" ", 1)
    words = operands.split(", ")
    if rng.random() < 0.3 and len(words) > 1:
        changed = rng.randrange(1, len(words))
        words[changed] = rng.choice(("sext({})", "-|{}|")).format(words[changed])
    unused = rng.choice(("PAD", "SEXT", "PRESERVE"))
    into = f"dst_sel:{rng.choice(PARTS)} dst_unused:UNUSED_{unused} "
    first, second = f"src0_sel:{rng.choice(PARTS)}", f" src1_sel:{rng.choice(PARTS)}"
    if name.startswith("v_cmp"):
        into = ""
    return f"{name}_sdwa {', '.join(words)} {into}{first}{second if len(words) > 2 or not into else ''}"


def half(name: str, odd: int, rng: random.Random) -> str:
    def register(count: int = 1) -> str:
        n = rng.randrange(16)
        return f"v[{n}:{n + 1}]" if count == 2 else f"v{n}"

    def source() -> str:
        return register() if rng.random() < 0.6 else rng.choice(("s3", "vcc_lo", "0x1234567", "1.0"))

    into = f"v{2 * rng.randrange(8) + odd}"
    if "64" in name:
        return f"{name} {', '.join(register(2) for _ in range(4 if '_fma_' in name else 3))}"
    if "fmaak" in name:
        return f"{name} {into}, {source()}, {register()}, 0x1234567"
    if "fmamk" in name:
        return f"{name} {into}, {source()}, 0x1234567, {register()}"
    if "mov" in name:
        return f"{name} {into}, {source()}"
    if "dot2" in name:  # LLVM aborts at some constants
        return f"{name} {into}, {register()}, {register()}"
    more = {"v_fma_f32": f", {register()}", "v_bitop2_b32": " bitop3:0x14"}.get(name, "")
    if name == "v_cndmask_b32":
        more = rng.choice(("", ", vcc_lo", ", s5"))
    return f"{name} {into}, {source()}, {register()}{more}"


def pairs(gpu: str, names: list[str], count: int, rng: random.Random) -> Iterator[str]:
    """Dual-issue pairs, of which some read in the second half what the first writes."""
    for k in range(count):
        odd = rng.randrange(2)
        x, y = half(names[k % len(names)], odd, rng), half(rng.choice(names), 1 - odd, rng)
        written, words = x.split()[1].rstrip(","), y.split(", ")
        if rng.random() < 0.4 and len(words) > 1 and "[" not in written + words[1]:
            words[1] = written
        yield f"{x} :: {', '.join(words)}".replace("v_", "v_dual_")


@cache
def cases(kind: str, gpu: str) -> list[str]:
    """What LLVM takes of each instruction with such a change, drawn from the GPU's name."""
    rng = random.Random(crc32(f"{kind} {gpu}".encode()))
    vector = sorted(name for name in of_gpus([gpu]) if name.startswith("v_") and not BEYOND.match(name))
    if kind == "dual":
        names = sorted({name for name in vector if TWICE.fullmatch(name)} | DUAL_ALONE)
        codes = list(pairs(gpu, names, 200 * TRIES, rng))
    else:
        change = {"dpp": with_dpp, "sdwa": with_parts}[kind]
        codes = [change(text, gpu, rng) for name in vector for text in shapes(name, gpu) for _ in range(TRIES)]
        codes = [code for code in codes if not code.startswith("v_pk_fmac_f16_sdwa")]  # refused when it is reached
    refused = refusals(["\t" + code for code in codes], gpu)
    taken = [code for k, code in enumerate(codes) if k not in refused]
    return taken if EVERYTHING else rng.sample(taken, min(100, len(taken)))


@pytest.mark.parametrize("kind", ["dpp", "sdwa", "dual"])
@pytest.mark.parametrize("gpu", ONE_EACH)
def test_what_depends_on_undefined_bits_is_undefined(gpu, kind):
    if (kind == "sdwa") > (get_gpu(gpu).major == 9) or (kind == "dual") > (get_gpu(gpu).major > 9):
        pytest.skip(f"{gpu} has none")
    codes = cases(kind, gpu)
    assert len(codes) > 30
    found = {code: register for code in codes if (register := unsound(code, gpu))}
    assert not found, "registers with bits that are called defined and depend on undefined ones"
