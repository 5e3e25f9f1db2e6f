"""Two products of 16-bit floats and an addend: values seen on GPUs, and sums that are exact."""

from fractions import Fraction

import numpy as np
import pytest

# a, b, addend, result: as seen on gfx1201 and gfx1100 (rocjitsu's records of hardware).
SEEN = {
    ("gfx1201", "f16"): """
        48004200 44004800 bf800000 425c0000  3c00bc00 3c003c00 3f800000 3f800000  3c003c00 3c003c00 c0000000 00000000
        3c003c00 3c003c00 7f812345 7fc12345  3c007e01 3c003c00 00000000 ffc00a3d  3c007c00 3c000000 7fc12345 ffc00000
        fc007c00 3c003c00 7fc12345 ffc00000  80000000 3c003c00 00800000 00800000  00000001 3c003c00 00000000 33800000
        00000001 3c008001 00000000 a7800000  eb9b023d 803b6249 f96d2663 f96d2663  058ef3f3 2b241c4a b8eed486 c2886106
        cd6c4d6c 78af78af 00000000 00000000  bc003c00 0001fbff 7f800000 7f800000  8000fc00 04013c00 00800000 ff800000
    """,
    ("gfx1201", "bf16"): """
        00800000 3f808000 00000001 00800001  00000001 3f804980 00000000 07000000  ff7f7f7f 7f7f7f7f 00000000 00000000
        f9e2d6b1 e2adf60c eddb846f 7f800000  49b3fce2 573a122b 246a3c33 61820e00  058ef3f3 2b241c4a b8eed486 d0bfbe00
        c395629b d9633359 dc60025c 5d504184  2061bc39 96b40093 0056dd77 00553463  81ff0e0d 12cc2d3b 007a3a08 007a6d87
        37d6ba90 8901852c 80800007 81674c04  08e7393d b7d307aa 80800005 8006c205  0364bc8c 3c468385 807ffffe 0069a402
        993b1798 263ca825 00800000 8026a200  8129061c bfaab964 007ffffd 017db7fe  afebac5f 8fe594b6 80800002 0198d0e0
        0d040199 b3fb3e6b 807ffff8 817c9e7c  89298151 b6953e7a 00800007 007c5007  2dd81116 924aaedf 807ffffa 81568cfd
    """,
    ("gfx1151", "f16"): """
        48004200 44004800 bf800000 425c0001  c800c200 44004800 3f800000 c25c0001  3c00bc00 3c003c00 3f800000 3f7fffff
        3c003c00 3c003c00 c0000000 34000000  3c004000 3c003c00 c0000000 3f800002  4800c800 48004800 3f800000 3f7fffc0
        3c003c00 3c000000 80000000 3f800001  00000001 3c000001 00000000 27800000  00000001 3c008001 00000000 a7880000
        058ef3f3 2b241c4a b8eed486 c2886106  cd6c4d6c 78af78af 00000000 bd000000  84950495 3d283d28 80000000 2c800000
    """,
    ("gfx1151", "bf16"): """
        00800000 3f808000 00000001 00000000  00000001 3f804980 00000000 00000000  00000700 3f803f80 00000000 07000000
        ff7f7f7f 7f7f7f7f 00000000 ff800000  c395629b d9633359 dc60025c 5d504185  ce354e35 7bfd7bfd 00000000 fe000000
        afb72fb7 0d170d17 00000000 00000000  35b3b5b3 c398c398 80000000 2d800000  7f800081 80000081 ff9a5ce2 ffc00000
    """,
}  # fmt: skip


@pytest.mark.parametrize("mode", [0xF0, 0x05, 0x0A, 0xFF])
@pytest.mark.parametrize(("gpu", "kind"), SEEN)
def test_values_seen_on_gpus(execute, gpu, kind, mode):
    """MODE's roundings and denormals are ignored."""
    rows = np.array([int(x, 16) for x in SEEN[gpu, kind].split()], np.uint64).astype(np.uint32).reshape(-1, 4)
    a, b, c, want = (np.resize(rows[:, k], 32) for k in range(4))
    code = f"s_round_mode {mode & 15}\ns_denorm_mode {mode >> 4}\nv_dot2_f32_{kind} v0, v1, v2, v3"
    got = execute(code, gpu=gpu, v={1: a, 2: b, 3: c}).vector(0, np.uint32)
    np.testing.assert_array_equal(got, want)


def test_sums_of_moderate_numbers_are_rounded_once_on_rdna_4(execute, exact):
    """Where no term is cut: integers below 2^8 as factors, below 2^16 as the addend."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(-255, 256, (2, 64, 2)).astype(np.float16)
    c = rng.integers(-(2**16), 2**16, 64).astype(np.float32)
    pairs = {1: a.view(np.uint32)[:, 0], 2: b.view(np.uint32)[:, 0]}
    got = execute("v_dot2_f32_f16 v0, v1, v2, v3", gpu="gfx1201", v={**pairs, 3: c}).vector(0, np.float32)
    want = c + (a.astype(np.float32) * b.astype(np.float32)).sum(axis=1)
    np.testing.assert_array_equal(got, want)
    short = rng.integers(-60000, 60000, 64).astype(np.float16)
    code = "s_round_mode 15\nv_dot2_f16_f16 v0, v1, v2, v3"
    got = execute(code, gpu="gfx1201", v={**pairs, 3: short}).vector(0, np.uint16)
    for k in range(64):
        total = Fraction(float(short[k])) + sum(
            Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[k], b[k], strict=True)
        )
        assert int(got[k]) == (exact.encode(total, "f16") if total else 0)
    stop = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\nv_dot2_f16_f16 v0, v1, v2, v3"
    big = np.full(32, 0x7BFF7BFF, np.uint32)
    for text, bits in ((code, 0x7C00), (stop, 0x7BFF)):
        assert (execute(text, gpu="gfx1201", v={1: big, 2: big, 3: big}).vector(0, np.uint16) == bits).all()
