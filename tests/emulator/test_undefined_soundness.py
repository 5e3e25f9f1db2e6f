"""Strict mode's undefined bits are sound for every instruction of the ALU tables: where a change of undefined bits
changes a bit of the result, that bit is undefined too."""

import re
from functools import cache
from zlib import crc32

import numpy as np
import pytest
from sampled import EVERYTHING
from test_alu_spelling import CDNA_PATTERNS, of_cdna_alone, of_gpus, operands, refusals
from test_undefined_bits import KERNEL, WAVES, undefined, waves

from laneloom.cli.coverage import ONE_EACH
from laneloom.emulator.program import Program
from laneloom.emulator.shadow import Shadow
from laneloom.gpu import get_gpu
from laneloom.isa.parse import EXEC, M0, VCC

ROOMY = KERNEL.replace("next_free_vgpr 16", "next_free_vgpr 64")
VGPRS, SGPRS = 64, 12  #: those with lower numbers may be undefined, but not number 0
ROUNDS = 8 if EVERYTHING else 2
#: what reads or changes more than registers: the mode, counters, messages, barriers, the place in the code
BEYOND = re.compile(
    r"s_(getreg|setreg|round_mode|denorm_mode|set_gpr_idx|getpc|mem(real)?time|sendmsg|trap|sethalt|setkill|alloc_vgpr"
    r"|barrier|get_barrier|get_shader)"
)
CDNA5_PATTERNS = [
    (r"v_pk_lshl_add_u64", "v[0:3], v[4:7], v[8:9], v[12:15]"),
    (r"v_pk_fma_f64", "v[0:3], v[4:7], v[8:11], v[12:15]"),
    (r"v_pk_\w+64", "v[0:3], v[4:7], v[8:11]"),
    (r"v_pk_(add_(max|min)|max3|min3|maximum3|minimum3)_\w+|v_fma_mix\w+|v_cvt_sr_pk_b?f16_f32", "v1, v2, v3, v4"),
    (r"v_cvt_pk_(fp8|bf8)_f16", "v1.l, v2"),
    (r"v_cvt_f16_(fp8|bf8)", "v1.l, v2"),
    (r"v_cvt_pk_f16_(fp8|bf8)", "v1, v2.l"),
    (r"v_cvt_sr_(fp8|bf8)_f16", "v1, v2.l, v3"),
    (r"v_perm_pk16_b4_u4", "v[2:3], v4, v5, v[6:7]"),
    (r"v_perm_pk16_b6_u4", "v[2:4], v5, v[6:7], v[8:9]"),
    (r"v_perm_pk16_b8_u4", "v[2:5], v[6:7], v[8:9], v[10:11]"),
    (r"v_permlane_idx_gen_b32", "v1, v2, s3"),
    (r"v_permlane_(bcast|up|down|xor)_b32", "v1, v2, s3, s4"),
]
MASKS = re.compile(r"v_(cmp|cndmask|div_scale|(add|sub|subrev)_co|mad_(co_)?[iu]64)")
SMALL_FLOATS = re.compile(r"v_cvt_(?:scale_|scalef32_)(sr_)?pk(8|16)_(\w+)_(\w+)")


def small_floats(name: str) -> str:
    """The operands of CDNA 5's conversions of 8 or 16 small floats: registers by the bits of each number."""
    match = SMALL_FLOATS.fullmatch(name)
    if match is None:
        return ""
    to, of = (int(match[2]) * int(re.findall(r"\d+$", kind)[0]) // 32 for kind in (match[3], match[4]))
    registers = [
        f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}" for first, count in ((2, to), (20, of))
    ]
    return ", ".join([*registers, "v40", *(["v41"] if match[1] else [])])


def shape(operand: str) -> tuple[str, int]:
    """The file of an operand, and how many registers it has."""
    first, _, last = operand[1:].strip("[]").partition(":")
    return operand[0], int(last or first) - int(first)


def texts(name: str, gpu: str) -> list[str]:
    """The instruction with its plain operands, with other halves of them, and over its own first source."""
    patterns = CDNA5_PATTERNS + (CDNA_PATTERNS if name in of_cdna_alone() else [])
    known = small_floats(name) or next((text for pattern, text in patterns if re.fullmatch(pattern, name)), "")
    plain = known or operands(name)
    if get_gpu(gpu).major == 9:  # halves have no names of their own, lane masks have 64 bits
        plain = re.sub(r"\.[lh]", "", plain)
        if MASKS.match(name):
            plain = re.sub(r"\bs(\d+)", lambda m: f"s[{2 * int(m[1])}:{2 * int(m[1]) + 1}]", plain).replace("_lo", "")
    found = [plain]
    if ".l" in plain:
        found.append(plain.replace(".l", ".h", 2))
    if re.match(r"v_pk_(?!fmac)\w+16$", name):
        high = ["1", *"0" * (plain.count(", ") - 1)], ["0", *"1" * (plain.count(", ") - 1)]
        found.append(f"{plain} op_sel:[{','.join(high[0])}] op_sel_hi:[{','.join(high[1])}]")
    first, second, *_ = [*re.findall(r"[vs](?:\d+|\[\d+:\d+\])", plain), "", ""]
    if second and shape(first) == shape(second) and "qsad" not in name:  # which writes before it has read all
        found.append(plain.replace(second, first, 1))
    return [f"{name} {text}" for text in found]


@cache
def cases() -> dict[str, list[str]]:
    """What runs on each GPU: everything, or each instruction once, on a GPU and with operands that its name chooses."""
    every = {gpu: sorted(name for name in of_gpus([gpu]) if not BEYOND.match(name)) for gpu in ONE_EACH}
    if EVERYTHING:
        return {gpu: [text for name in names for text in texts(name, gpu)] for gpu, names in every.items()}
    chosen: dict[str, list[str]] = {gpu: [] for gpu in ONE_EACH}
    for name in sorted({name for names in every.values() for name in names}):
        seed = crc32(name.encode())
        having = [gpu for gpu, names in every.items() if name in names]
        gpu = having[seed % len(having)]
        chosen[gpu].append((known := texts(name, gpu))[seed // 16 % len(known)])
    return chosen


def unsound(code: str, gpu: str, rounds: int = ROUNDS) -> str:
    """A register with a bit that is called defined and is not; empty where there is none."""
    program = Program(ROOMY.format(code=code), gpu, strict=True)
    built, lanes = program.blocks[0].code, program.lanes
    rng = np.random.default_rng(crc32(code.encode()))

    def words(*shape: int) -> np.ndarray:
        return rng.integers(0, 1 << 32, shape, np.uint32)

    for _ in range(rounds):
        V, S, scc = words(VGPRS, WAVES, lanes), words(128, WAVES), words(WAVES) % 2 > 0
        S[EXEC], S[M0] = S[EXEC] | 1, S[M0] % 4
        u_v, u_s, u_scc = np.zeros_like(V), np.zeros_like(S), words(WAVES) % 4 == 0
        u_v[1:] = undefined(rng, (VGPRS - 1, WAVES, lanes)) * (words(VGPRS - 1, 1, 1) % 4 > 0)
        u_s[1:SGPRS] = undefined(rng, (SGPRS - 1, WAVES)) * (words(SGPRS - 1, 1) % 4 > 0)
        u_s[VCC : VCC + 2] = undefined(rng, (2, WAVES))
        dirty = (sum(1 << int(n) for n in np.flatnonzero(u.any(axis=tuple(range(1, u.ndim))))) for u in (u_v, u_s))
        g = waves(V, S, scc)
        g.shadow = Shadow(u_v.copy(), u_s.copy(), u_scc.copy(), np.zeros(WAVES, np.int64), {}, *dirty, None)
        built.guards[0].follow(g)
        results = []
        fill_v, fill_s = words(*V.shape), words(*S.shape)
        for flip in np.array([0, 0xFFFFFFFF], np.uint32):  # undefined bits as 0 and as 1, others beside them as either
            flag = scc ^ (u_scc & (flip > 0))
            other = waves(V & ~u_v | (fill_v ^ flip) & u_v, S & ~u_s | (fill_s ^ flip) & u_s, flag)
            with np.errstate(all="ignore"):
                built.steps[0](other)
            results.append(other)
        one, two = results
        for file, a, b, bits in ("v", one.V, two.V, g.shadow.V), ("s", one.S, two.S, g.shadow.S):
            if (bad := (a ^ b) & ~bits).any():
                return f"{file}{np.argwhere(bad)[0][0]}"
        if ((one.scc != two.scc) & ~g.shadow.scc).any():
            return "scc"
    return ""


@pytest.mark.parametrize("gpu", ONE_EACH)
def test_what_depends_on_undefined_bits_is_undefined(gpu):
    codes = cases()[gpu]
    assert len(codes) > 20
    assert not {codes[k]: why for k, why in refusals(["\t" + code for code in codes], gpu).items()}
    found = {code: register for code in codes if (register := unsound(code, gpu))}
    assert not found, "registers with bits that are called defined and depend on undefined ones"


@pytest.mark.parametrize(
    "code", ["s_fmac_f32 s1, s2, s3", "s_bitset1_b64 s[2:3], s4", "v_permlanex16_var_b32 v1, v2, v3"]
)
def test_bits_of_the_destination_that_are_read_or_kept(code):
    assert not unsound(code, "gfx1201", rounds=12)
