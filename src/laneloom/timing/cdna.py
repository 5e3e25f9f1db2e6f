"""CDNA 3 and 4 as the timing model imagines them: what differs from RDNA, each figure with its source.

Sources, by the letter that stands behind a figure:
  [G]  AMD CDNA 3 and CDNA 4 Instruction Set Architecture guides.
  [H]  AMD CDNA 3 and CDNA 4 white papers; AMD HIP documentation, "Hardware implementation".
  [D]  AMD, ROCm/gfx950-gluon-tutorials, "Understanding ds_read Throughput" and "Memory Bandwidth Model": checked there
       by thread traces of MI355X. gfx942 has half the banks and ports half as wide [H].
  [M]  AMD, "Measuring Max-Achievable FLOPs - Part 2", 2025: MI300X does 654 TFLOP/s in FP16 at 1115 MHz, 94% of what
       its matrix cores could at that clock, 708 in BF16 at 1207 MHz and 1273 in FP8 at 1230 MHz.
  [R]  AMD, ROCm/gfx950-gluon-tutorials, a16w16: v8 does 1610 TFLOP/s on MI355X with matrix cores that are 99% busy.
  [A]  assumed: no source; a round figure of the right size.
  [F]  fitted on half of the published figures (docs/timing-model.md).
"""

from __future__ import annotations

from typing import Any

L2_PEAK = 8 * 16 * 128.0  #: bytes per clock: 16 channels of each die [H]
_COMMON: dict[str, Any] = {
    "issue_cycles": 4,  # a wave of 64 lanes on 16: every instruction takes as many [G]
    "valu_lanes": 16,  # [G]
    "valu_latency": 1,  # the next instruction of a wave finds the result: 4 cycles later [G]
    "trans_cycles": 4,  # quarter rate [G]
    "trans_latency": 16,
    "trans_apart": False,
    "multiply_latency": 16,  # quarter rate [G]
    "double_cycles": 1,  # FP64 at full rate: 128 FLOP per CU and clock [H]
    "double_latency": 4,
    "salu_latency": 4,
    "matrix_apart": True,
    "matrix_extra": 0,  # the same sum goes on without a gap [G]
    "scalar_latency": 64,  # [A]
    "lds_latency": 60,  # 50 to 70 [D]
    "lds_pace": 1.0,
    "lds_queue": 8,  # [D]
    "l0_ways": 64,  # [A]
    "l0_bytes_per_clock": 64,  # [H]
    "l0_lanes_per_clock": 16,  # [A]
    "l0_latency": 120,  # [A]
    "l0_in_flight": 256,  # 32 KB of lines of 128 bytes [D]
    "l2_latency": 300,  # [A]
    "l2_bytes_per_clock": 0.4 * L2_PEAK,  # [F] of [H]
    "l2_kept": False,  # written back and emptied between kernels, since dies do not see each other's [H]
    "mall_latency_ns": 220.0,  # [A]
    "memory_latency_ns": 350.0,  # [A]
    "barrier_latest": True,
    "dies": 8,  # [H]
}
_MIB = 1 << 20
_COPY_SHARE = 0.8  #: of the bus, by a copy [A]
#: What `Machine` is made of
MACHINES: dict[str, dict[str, Any]] = {
    "gfx942": _COMMON | {
        "l2_bytes": 4 * _MIB, "mall_bytes": 256 * _MIB, "mall_gbs": 17200.0, "memory_gbs": 5300 * _COPY_SHARE,  # [H]
        "clock_ghz": 2.1, "matrix_clock_ghz": 1.15,  # [H]; [M], BF16
        "lds_bytes_per_clock": 128, "lds_port_bytes": 64,  # [H]
    },
    "gfx950": _COMMON | {
        "l2_bytes": 4 * _MIB, "mall_bytes": 256 * _MIB, "mall_gbs": 17200.0, "memory_gbs": 8000 * _COPY_SHARE,  # [H]
        "clock_ghz": 2.4, "matrix_clock_ghz": 1.55,  # [H]; [R]
        "lds_bytes_per_clock": 256, "lds_port_bytes": 128,  # [D]
    },
}  # fmt: skip
