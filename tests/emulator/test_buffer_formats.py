"""Buffer loads and stores with a format, element by element, against Python's integers and fractions."""

import math
import re
import struct
from fractions import Fraction

import numpy as np
import pytest
from test_memory_instructions import random_bytes, run

from laneloom.cli.coverage import instructions_of
from laneloom.errors import HazardError, UnknownInstructionError
from laneloom.gpu import get_gpu

WHOLE = ["UINT", "SINT", "FLOAT"]
PLAIN = ["UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT"]
#: data format -> what its bits can mean on gfx11; gfx9 has FLOAT and PLAIN of any
FORMATS = {
    "8": PLAIN, "16": [*PLAIN, "FLOAT"], "8_8": PLAIN, "32": WHOLE, "16_16": [*PLAIN, "FLOAT"], "10_11_11": ["FLOAT"],
    "11_11_10": ["FLOAT"], "10_10_10_2": ["UNORM", "SNORM", "UINT", "SINT"], "2_10_10_10": PLAIN, "8_8_8_8": PLAIN,
    "32_32": WHOLE, "16_16_16_16": [*PLAIN, "FLOAT"], "32_32_32": WHOLE, "32_32_32_32": WHOLE,
}  # fmt: skip
CASES = [(data, kind) for data, kinds in FORMATS.items() for kind in kinds]
GPUS = ("gfx1100", "gfx1201", "gfx90a", "gfx942")
GFX9_DATA = ("8", "16", "8_8", "32", "16_16", "10_11_11", "11_11_10", "10_10_10_2", "2_10_10_10", "8_8_8_8",
             "32_32", "16_16_16_16", "32_32_32", "32_32_32_32")  # fmt: skip
GFX9_KINDS = ("UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT", "", "FLOAT")
XYZW = 4 | 5 << 3 | 6 << 6 | 7 << 9  #: the components in their order


def widths(data: str) -> list[int]:
    return [int(w) for w in reversed(data.split("_"))]


def modifier(gpu: str, data: str, kind: str) -> str:
    if get_gpu(gpu).major != 9:
        return f"format:[BUF_FMT_{data}_{kind}]"
    return f"format:[BUF_DATA_FORMAT_{data},BUF_NUM_FORMAT_{kind}]"


def resource(gpu: str, data: str, kind: str, select: int = XYZW) -> int:
    if get_gpu(gpu).major == 9:
        return select | GFX9_KINDS.index(kind) << 12 | (GFX9_DATA.index(data) + 1) << 15
    return select | (CASES.index((data, kind)) + 1) << 12


def f32(x: Fraction | float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


def small_float(code: int, width: int) -> int:
    """11 and 10 bits: no sign, five bits of exponent."""
    if width == 32:
        return code
    if width == 16:
        value = struct.unpack("<e", struct.pack("<H", code))[0]
        return f32(value) if value == value else 0x7FC00000
    fraction = width - 5
    exponent, mantissa = code >> fraction, code & (1 << fraction) - 1
    if exponent == 31:
        return 0x7FC00000 if mantissa else 0x7F800000
    return f32(Fraction(mantissa + ((1 << fraction) if exponent else 0), 1 << fraction)
               * Fraction(2) ** (max(exponent, 1) - 15))  # fmt: skip


def loaded(code: int, width: int, kind: str) -> int:
    signed = code - (1 << width) if code >> width - 1 else code
    if kind == "FLOAT":
        return small_float(code, width)
    if kind in ("UINT", "SINT"):
        return (code if kind == "UINT" else signed) & 0xFFFFFFFF
    if kind == "UNORM":
        return f32(np.float32(code / ((1 << width) - 1)))
    if kind == "SNORM":
        return f32(np.float32(max(signed / ((1 << width - 1) - 1), -1.0)))
    return f32(np.float32(code if kind == "USCALED" else signed))


def components(image: np.ndarray, data: str) -> list[list[int]]:
    """By lane, the codes of its element."""
    total, result = sum(widths(data)), []
    for lane in range(32):
        element = int.from_bytes(image[lane, : total // 8].tobytes(), "little")
        codes = []
        for width in widths(data):
            codes.append(element & (1 << width) - 1)
            element >>= width
        result.append(codes)
    return result


def same(got: np.ndarray, want: np.ndarray, is_float: bool) -> None:
    nan = (want & 0x7FFFFFFF) > 0x7F800000 if is_float else np.zeros(want.shape, bool)
    np.testing.assert_array_equal(got[~nan], want[~nan])
    assert ((got[nan] & 0x7FFFFFFF) > 0x7F800000).all()


@pytest.mark.covering(together=2)
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("data", "kind"), CASES)
def test_typed_load(gpu, data, kind):
    """All four components: what the element lacks is 0, and 1 as W."""
    image, registers = random_bytes(len(data) + len(kind))
    text = f"tbuffer_load_format_xyzw v[8:11], v1, s[4:7], {soffset(gpu)} {modifier(gpu, data, kind)} offen"
    _, got = run(gpu, text, image, registers, strict=True)
    absent = [0, 0, 0, 1 if kind in ("UINT", "SINT") else f32(1)]
    want = [[loaded(c, w, kind) for c, w in zip(codes, widths(data), strict=True)] for codes in components(image, data)]
    want = np.array([row + absent[len(row) :] for row in want], np.uint32)
    same(got.view(np.uint32).reshape(32, 4), want, kind not in ("UINT", "SINT"))


def soffset(gpu: str) -> str:
    return "null" if get_gpu(gpu).major == 12 else "0"


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_format_of_the_resource(gpu, count):
    """The resource reorders: here W, 1, 0, X."""
    data, kind = "8_8_8_8", "UNORM"
    image, registers = random_bytes(count)
    word = resource(gpu, data, kind, 7 | 1 << 3 | 0 << 6 | 4 << 9)
    last = 8 + count - 1
    register = f"v[8:{last}]" if count > 1 else "v8"
    text = f"""s_mov_b32 s7, 0x{word:x}
    buffer_load_format_{"xyzw"[:count]} {register}, v1, s[4:7], {soffset(gpu)} offen"""
    _, got = run(gpu, text, image, registers, strict=True)
    want = registers.view(np.uint32).reshape(32, 4).copy()
    for lane, codes in enumerate(components(image, data)):
        x, w = (loaded(codes[k], 8, kind) for k in (0, 3))
        want[lane, :count] = [w, f32(1), 0, x][:count]
    np.testing.assert_array_equal(got.view(np.uint32).reshape(32, 4), want)


@pytest.mark.covering(together=2)
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("data", "kind"), CASES)
def test_store_brings_back_what_was_loaded(gpu, data, kind):
    """Storing what a load gave writes the element again, at an offset; what lies beside it stays."""
    image, registers = random_bytes(9)
    nbytes = sum(widths(data)) // 8
    if kind == "FLOAT":  # no NaN, of which codes differ; denormals and infinities are kept
        image = np.where(image & 0x78 == 0x78, image & 0x87, image)
        tops = {"10_11_11": 1 << 10 | 1 << 21 | 1 << 31, "11_11_10": 1 << 9 | 1 << 20 | 1 << 31}.get(data, 0)
        image = (image.view(np.uint32) & np.uint32(~tops & 0xFFFFFFFF)).view(np.uint8)
    if kind == "SNORM":  # two codes mean -1
        image[image == 0x80] = 0x81
        image[:, 3::4] &= 0x3F
    text = f"""s_mov_b32 s7, 0x{resource(gpu, data, kind):x}
    tbuffer_load_format_xyzw v[8:11], v1, s[4:7], {soffset(gpu)} {modifier(gpu, data, kind)} offen
    {{waits}}
    v_xor_b32 v13, 16, v1
    {{store}} v[8:11], v13, s[4:7], {soffset(gpu)} {{names}} offen"""
    want = image.copy()
    if nbytes:
        want[:, :nbytes] = image.reshape(16, 2, 16)[:, ::-1, :nbytes].reshape(32, nbytes)
    for store, names in (("tbuffer", modifier(gpu, data, kind)), ("buffer", "")):
        body = text.replace("{store}", f"{store}_store_format_xyzw").replace("{names}", names)
        after, _ = run(gpu, body, image, registers, strict=True)
        same_element(after, want, data, kind)


def same_element(after: np.ndarray, want: np.ndarray, data: str, kind: str) -> None:
    if kind == "SNORM" and not data.startswith(("8", "16")):  # -512 comes back as -511, -2 as -1
        low = [1 << w - 1 for w in widths(data)]
        for mine, theirs in zip(components(after, data), components(want, data), strict=True):
            assert mine == [c + (c == least) for c, least in zip(theirs, low, strict=True)]
        return
    if kind == "SNORM" and data.startswith("16"):
        got, expected = after.view(np.int16), want.view(np.int16)
        np.testing.assert_array_equal(got, np.where(got == expected, expected, np.maximum(expected, -32767)))
        return
    np.testing.assert_array_equal(after, want)


@pytest.mark.parametrize(
    ("data", "kind", "value", "code"),
    [
        ("8", "UNORM", 0.5, 128), ("8", "UNORM", 2.0, 255), ("8", "UNORM", -1.0, 0), ("8", "UNORM", math.nan, 0),
        ("8", "SNORM", -2.0, 0x81), ("8", "SNORM", 0.25, 32), ("8", "USCALED", 300.0, 255),
        ("8", "SSCALED", -200.0, 0x80),
        ("16", "FLOAT", 1e6, 0x7C00), ("16", "FLOAT", 1 + 2**-11, 0x3C00), ("16", "FLOAT", 1 + 3 * 2**-11, 0x3C02),
        ("8", "UINT", 256, 255), ("8", "SINT", -129, 0x80), ("8", "SINT", 128, 0x7F), ("16", "SINT", -5, 0xFFFB),
    ],
)  # fmt: skip
def test_store_beyond_the_range(data, kind, value, code):
    image, registers = random_bytes(1)
    bits = f32(value) if isinstance(value, float) else value & 0xFFFFFFFF
    body = f"""v_mov_b32 v8, 0x{bits:x}
    tbuffer_store_format_x v8, v1, s[4:7], 0 {modifier("gfx1100", data, kind)} offen"""
    after, _ = run("gfx1100", body, image, registers)
    size = int(data) // 8
    assert {int.from_bytes(row[:size].tobytes(), "little") for row in after} == {code}
    np.testing.assert_array_equal(after[:, size:], image[:, size:])


@pytest.mark.parametrize(
    ("value", "eleven", "ten"),
    [(1 + 3 / 128, 0x3C2, 0x1E1), (2.0**-20, 1, 0), (1.5 * 2.0**-20, 2, 1), (1e6, 0x7BF, 0x3DF), (-1.0, 0, 0),
     (math.inf, 0x7C0, 0x3E0), (math.nan, 0x7E0, 0x3F0)],
)  # fmt: skip
def test_floats_of_11_and_10_bits_are_rounded(value, eleven, ten):
    """To nearest even; X stands for the components that the store has no register for (rocjitsu)."""
    image, registers = random_bytes(1)
    body = f"""v_mov_b32 v8, 0x{f32(value):x}
    tbuffer_store_format_x v8, v1, s[4:7], 0 {modifier("gfx1100", "10_11_11", "FLOAT")} offen"""
    after, _ = run("gfx1100", body, image, registers)
    codes = {int.from_bytes(row[:4].tobytes(), "little") for row in after}
    assert codes == {eleven | eleven << 11 | ten << 22}


def test_singles_that_become_halves_are_cut_off():
    """Other numbers are rounded to nearest even (rocjitsu)."""
    image, registers = random_bytes(1)
    image[:, :4] = np.array([1 + 0.75 * 2.0**-10], np.float32).view(np.uint8)
    text = f"tbuffer_load_d16_format_x v8, v1, s[4:7], 0 {modifier('gfx1100', '32', 'FLOAT')} offen"
    _, got = run("gfx1100", text, image, registers)
    assert (got.view(np.uint16)[:, 0] == 0x3C00).all()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_packed_halves(gpu, count):
    """Two components a register; gfx9 clears the half that none is for, RDNA leaves it."""
    image, registers = random_bytes(5)
    name = f"tbuffer_{{way}}_{'format_d16' if get_gpu(gpu).major == 9 else 'd16_format'}_{'xyzw'[:count]}"
    register = "v8" if count < 3 else "v[8:9]"
    where = f"{register}, v1, s[4:7], {soffset(gpu)} {modifier(gpu, '8_8_8_8', 'SSCALED')} offen"
    _, got = run(gpu, f"{name.format(way='load')} {where}", image, registers, strict=True)
    want = registers.view(np.uint16).reshape(32, 8).copy()
    want[:, :count] = image[:, :count].view(np.int8).astype(np.float16).view(np.uint16)
    if count % 2 and get_gpu(gpu).major == 9:
        want[:, count] = 0
    np.testing.assert_array_equal(got.view(np.uint16).reshape(32, 8), want)
    small = registers.view(np.uint16).reshape(32, 8) % 100
    halves = small.astype(np.float16).view(np.uint8).reshape(32, 16)
    after, _ = run(gpu, f"{name.format(way='store')} {where}", image, halves, strict=True)
    codes = small[:, :count].astype(np.uint8)
    np.testing.assert_array_equal(after[:, :count], codes)
    np.testing.assert_array_equal(after[:, 4:], image[:, 4:])


NAMES = [
    (gpu, name)
    for gpu in GPUS
    for name in instructions_of(get_gpu(gpu))
    if name.startswith(("buffer_", "tbuffer_")) and "format_" in name
]


@pytest.mark.parametrize(("gpu", "name"), NAMES)
def test_every_name(gpu, name):
    """Four unsigned bytes: each lane's, of as many components as the name has, in words or half words."""
    image, registers = random_bytes(len(name))
    count, half = len(name.rpartition("_")[2]), "d16" in name
    total = (count + 1) // 2 if half else count
    data = "v8" if total == 1 else f"v[8:{7 + total}]"
    names = modifier(gpu, "8_8_8_8", "UINT") if name.startswith("tbuffer") else ""
    put = f"s_mov_b32 s7, 0x{resource(gpu, '8_8_8_8', 'UINT'):x}"
    kind = np.uint16 if half else np.uint32
    held = registers.view(kind).reshape(32, -1)
    places = slice(1, 2) if "_hi_" in name else slice(0, count)
    after, got = run(gpu, f"{put}\n{name} {data}, v1, s[4:7], {soffset(gpu)} {names} offen", image, registers)
    if "_store_" in name:
        np.testing.assert_array_equal(after[:, :count], np.minimum(held[:, places], 255))
        np.testing.assert_array_equal(after[:, 4:], image[:, 4:])
    else:
        np.testing.assert_array_equal(got.view(kind).reshape(32, -1)[:, places], image[:, :count])


@pytest.mark.parametrize(("gpu", "way"), [(g, w) for g in ("gfx1100", "gfx942") for w in ("load", "store")])
def test_upper_half(gpu, way):
    image, registers = random_bytes(6)
    old = get_gpu(gpu).major == 9
    name = f"buffer_{way}_{'format_d16_hi' if old else 'd16_hi_format'}_x"
    body = f"s_mov_b32 s7, 0x{resource(gpu, '16', 'UINT'):x}\n{name} v8, v1, s[4:7], 0 offen"
    after, got = run(gpu, body, image, registers, strict=True)
    if way == "store":
        np.testing.assert_array_equal(after[:, :2], registers[:, 2:4])
        return
    np.testing.assert_array_equal(got[:, 2:4], image[:, :2])
    np.testing.assert_array_equal(got[:, :2], 0 if old else registers[:, :2])


def test_elements_beyond_the_records():
    """Lanes from 16 on are out of range: they load zeros and store nothing."""
    image, registers = random_bytes(2)
    where = "v8, v1, s[4:7], 0 format:[BUF_FMT_32_UINT] offen"
    after, got = run("gfx1100", f"s_movk_i32 s6, 0x100\ntbuffer_load_format_x {where}", image, registers)
    np.testing.assert_array_equal(got[:16, :4], image[:16, :4])
    assert not got[16:, :4].any()
    after, _ = run("gfx1100", f"s_movk_i32 s6, 0x100\ntbuffer_store_format_x {where}", image, registers)
    np.testing.assert_array_equal(after[:16, :4], registers[:16, :4])
    np.testing.assert_array_equal(after[16:], image[16:])


def test_elements_by_index():
    """A stride of 16 bytes, an index in a register."""
    image, registers = random_bytes(3)
    body = "s_mov_b32 s5, s3\ns_or_b32 s5, s5, 0x100000\ntbuffer_load_format_x v8, v0, s[4:7], 0 format:22 idxen"
    _, got = run("gfx1100", body, image, registers)
    np.testing.assert_array_equal(got[:, :4], image[:, :4])


@pytest.mark.parametrize("text", ["dfmt:4, nfmt:4,", "format:68,"])
def test_older_spellings(text):
    image, registers = random_bytes(4)
    body = f"tbuffer_load_format_x v8, v1, s[4:7], {text} 0 offen"
    _, got = run("gfx90a", body, image, registers)
    np.testing.assert_array_equal(got[:, :4], image[:, :4])


def test_a_format_that_does_not_exist():
    image, registers = random_bytes(4)
    with pytest.raises(UnknownInstructionError, match="no buffer has the format 70"):
        run("gfx1100", "tbuffer_load_format_x v8, v1, s[4:7], 0 format:70 offen", image, registers)
    body = "s_mov_b32 s7, 0\nbuffer_load_format_x v8, v1, s[4:7], 0 offen"
    with pytest.raises(UnknownInstructionError, match="no buffer has the format 0"):
        run("gfx1100", body, image, registers)


def test_strict_mode_wants_what_is_stored():
    image, registers = random_bytes(4)
    body = "tbuffer_store_format_xy v[14:15], v1, s[4:7], 0 format:[BUF_FMT_8_8_UINT] offen"
    with pytest.raises(HazardError, match="stores bits that nobody wrote"):
        run("gfx1100", body, image, registers, strict=True)
    body = "tbuffer_load_format_x v8, v1, s[4:7], 0 format:[BUF_FMT_8_UINT] offen\nv_mov_b32 v9, v8"
    with pytest.raises(HazardError, match="before a wait for vmcnt"):
        run("gfx1100", body, image, registers, strict=True)


def test_names_of_the_table():
    """The numbers of gfx11's formats are those of LLVM's names, which count on from 1."""
    assert len(CASES) == 63
    assert CASES[21] == ("32", "FLOAT")
    assert CASES[-1] == ("32_32_32_32", "FLOAT")
    assert not re.search("FLOAT", CASES[57][1])
