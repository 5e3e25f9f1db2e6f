"""The machine that the timing model imagines: what each step costs on RDNA (CDNA: cdna.py), each with its source.

Sources, by the letter that stands behind a figure:
  [I]  AMD RDNA 3 / RDNA 4 Instruction Set Architecture guides.
  [W]  AMD RDNA architecture white paper (2019); the shape of a WGP is the same in RDNA 3 and 4.
  [L]  LLVM's scheduling models GFX11SpeedModel and GFX12SpeedModel (SISchedule.td).
  [T]  hipBLASLt, TensileLite schedule validator: measured by AMD on gfx1151.
  [C]  Chips and Cheese, "Latency Testing is Hard (RDNA 3 Power Saving)", 2023: RX 7900 XTX, vector accesses.
  [S]  Sebastien Vince, "Optimizing Matrix Multiplication on RDNA3", 2025: RX 7900 XTX.
  [B]  rocm_bandwidth_test on Ryzen AI Max+ 395 (github.com/lhl/strix-halo-testing), 2025: 212.6 GB/s of 256.
  [P]  AMD's product pages.
  [A]  assumed: no source; a round figure of the right size.
  [F]  fitted on half of the published figures (docs/timing-model.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnsupportedError
from ..gpu import KIB, Gpu, get_gpu
from .cdna import MACHINES as _CDNA

MIB = KIB * KIB


@dataclass(frozen=True)
class Machine:
    """One GPU as the model sees it. Cycles are of the shader clock."""

    gpu: Gpu
    l2_bytes: int  #: [P]
    mall_bytes: int  #: Infinity Cache, 0 where there is none [P]
    clock_ghz: float  #: while the kernel runs [F]
    valu_latency: int = 5  #: result to dependent instruction [L]
    trans_latency: int = 10  #: [L]; 9 on RDNA 4
    trans_cycles: int = 4  #: quarter rate, beside the VALU [W]
    multiply_latency: int = 8  #: of 32-bit integer products, at quarter rate [L]
    double_latency: int = 38  #: [L]
    double_cycles: int = 32  #: 4 FP64 FLOP per CU and clock [P]
    salu_latency: int = 2  #: [L]
    matrix_extra: int = 2  #: a dependent WMMA starts 34 cycles after one of 32 [T]
    scalar_latency: int = 40  #: a scalar load that hits its cache: 16 ns [C]
    lds_latency: int = 64  #: first data of an LDS load, no queue [A]; [S] saw 90 under load
    lds_pace: float = 0.7  #: part that a CU's LDS reaches [F] of 128 bytes per clock: 32 banks of 4 bytes [I]
    l0_bytes: int = 32 * KIB  #: of one CU [P]
    l0_ways: int = 4  #: lines of one set [W], of RDNA 1's half as large cache
    l0_bytes_per_clock: int = 64  #: of one CU, to registers [W]
    l0_lanes_per_clock: int = 4  #: addresses that a CU's texture unit makes per clock [W]
    l0_latency: int = 120  #: a vector load that hits L0 [A]
    l2_latency: int = 280  #: a vector load that hits L2 [A]
    l2_bytes_per_clock: float = 2048.0  #: of the whole GPU [A]: 64 bytes for each of its channels
    mall_latency_ns: float = 150.0  #: [C]
    memory_latency_ns: float = 300.0  #: [A]
    mall_gbs: float = 0.0  #: [P] or [A], see _CHIPS
    memory_gbs: float = 0.0  #: what a copy reaches
    branch_cycles: int = 16  #: from a taken branch to the wave's next instruction [A]; LLVM says 32
    barrier_cycles: int = 16  #: from the last arrival to the first to go on [A]
    launch_us: float = 5.0  #: from one kernel to the next in a queue [A]
    wave_start_cycles: int = 100  #: registers and LDS of a workgroup are set up [A]
    issue_cycles: int = 1  #: from one instruction of a wave to its next [W]
    valu_lanes: int = 32  #: of one SIMD [I]
    trans_apart: bool = True  #: transcendentals run beside the other vector instructions [W]
    matrix_apart: bool = False  #: so do matrix instructions, but for the cycles of their issue
    matrix_clock_ghz: float | None = None  #: with every matrix core busy all the time, where that lowers the clock
    lds_port_bytes: int = 0  #: that a pair of SIMDs gets per clock, where all four share one LDS
    lds_bytes_per_clock: int = 128  #: of all banks of a CU [I]
    lds_queue: int = 0  #: LDS instructions of a pair of SIMDs that wait for their turn without keeping their waves
    l0_in_flight: int = 0  #: lines of one CU that can be under way; 0: any number
    #: A barrier ends with the latest wave. RDNA's parameters were fitted to barriers that end with the wave that is
    #: followed last, which need not be the latest; with this they have to be fitted again.
    barrier_latest: bool = False
    dies: int = 1  #: with an L2 each; workgroups go to them in turn
    l2_kept: bool = True  #: what a kernel leaves in the L2 is there for the next

    @property
    def cus(self) -> int:
        """Compute units that are simulated together: the two of a workgroup processor, or one of CDNA."""
        return cus_together(self.gpu)

    @property
    def wgps(self) -> int:
        """Workgroup processors: two CUs, four SIMDs. On CDNA a CU has four."""
        return self.gpu.compute_units // self.cus


def cus_together(gpu: Gpu) -> int:
    """Compute units that share what the model simulates as one."""
    return 1 if gpu.major == 9 else 2


# Fitted [F] on gfx1100 and gfx1151; other cards are taken to be like the one, other APUs like the other.
_CARD, _APU = 0.8, 0.6
# name: L2, Infinity Cache (MiB) [P], bandwidth of the latter (GB/s; [P] for gfx1100 to gfx1102, else [A]), L2 bytes per
# clock [A], clock as a part of boost [F]
_CHIPS = {
    "gfx1100": (6, 96, 3500, 3072, _CARD),
    "gfx1101": (4, 64, 2700, 2048, _CARD),
    "gfx1102": (2, 32, 476, 1024, _CARD),
    "gfx1103": (2, 0, 0, 512, _APU),
    "gfx1150": (2, 0, 0, 512, _APU),
    "gfx1151": (2, 32, 1000, 1024, _APU),
    "gfx1152": (2, 0, 0, 512, _APU),
    "gfx1153": (2, 0, 0, 512, _APU),  # L2 [A]
    "gfx1200": (4, 32, 1400, 1024, _CARD),
    "gfx1201": (8, 64, 2800, 2048, _CARD),
}
_COPY_SHARE = 0.83  #: of the bus, by a copy [B]


def machine_of(gpu: str | Gpu) -> Machine:
    """The machine of a GPU. Raises UnsupportedError where there is none."""
    row = get_gpu(gpu)
    if row.name in _CDNA:
        return Machine(row, **_CDNA[row.name])
    if row.name not in _CHIPS:
        known = ", ".join((*_CHIPS, *_CDNA))
        raise UnsupportedError(f"laneloom models the timing of {known}, not of {row.name} ({row.family})")
    l2, mall, mall_gbs, l2_clock, share = _CHIPS[row.name]
    return Machine(
        row, l2 * MIB, mall * MIB, share * row.clock_ghz, l2_bytes_per_clock=l2_clock, mall_gbs=mall_gbs,
        memory_gbs=row.bandwidth_gbs * _COPY_SHARE, trans_latency=9 if row.major == 12 else 10,
    )  # fmt: skip
