"""The GPU table: one frozen row per instruction set, each figure with its source.

Peaks are dense, in TFLOP/s (TOP/s for integers), of the named product at its boost clock. LDS and register limits are
those of one workgroup and one wave, which is what a kernel has to fit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from .errors import UnknownGpuError, UnsupportedError

KIB = 1024
MOST_PROGRAMS = 1 << 24  #: of one launch: a grid of AMD's holds fewer than 2**32 threads
_SAME_PRODUCT = 0.05  #: by how much the bandwidth of one product is told differently

_LLVM = "LLVM AMDGPU backend: GCNSubtarget / AMDGPUBaseInfo (register file, allocation granule, LDS)"
_LLVM_11_7 = "LLVM AMDGPU backend: processors of FeatureISAVersion11_7 (instructions, register file)"
_LLVM_1251 = "LLVM AMDGPU backend: FeatureISAVersion12_51 (gfx1250's instructions, and FP64 ones)"
_RDNA3_ISA = "AMD RDNA 3 / RDNA 3.5 Instruction Set Architecture guides"
_RDNA4_ISA = "AMD RDNA 4 Instruction Set Architecture guide"
_CDNA1_ISA = "AMD Instinct MI100 (CDNA 1) Instruction Set Architecture guide"
_CDNA2_ISA = "AMD Instinct MI200 (CDNA 2) Instruction Set Architecture guide"
_CDNA3_ISA = "AMD Instinct MI300 (CDNA 3) Instruction Set Architecture guide"
_CDNA4_ISA = "AMD CDNA 4 Instruction Set Architecture guide"
# AMD's own pages give MI455X 20 PFLOP/s of FP8 and 40 of FP4, which LLVM's cycles make of these WGPs at this clock.
_MI455X = (
    "AMD at Hot Chips 2026, Instinct MI455X (256 WGPs, 23.3 TB/s); Chips and Cheese, 2026-07-23 (2.4 GHz)",
    "LLVM scheduling model of gfx1250 (cycles of WMMA, from which the peaks are)",
)


@dataclass(frozen=True)
class Gpu:
    """One instruction set and the product that stands for it."""

    name: str  #: the compiler's name, e.g. "gfx1151" or "sm_90a"
    vendor: str  #: "amd" or "nvidia"
    family: str  #: e.g. "RDNA 3.5"
    product: str  #: the product whose peaks and bandwidth are given
    wave_sizes: tuple[int, ...]  #: lanes per wave; the first is the one kernels are compiled for
    compute_units: int  #: CUs (WGPs on CDNA 5, which cannot be halved), or SMs on NVIDIA
    simds_per_cu: int  #: schedulers per CU or SM
    lds_bytes: int  #: most LDS / shared memory that one workgroup can allocate
    vgprs_per_wave: int  #: most vector registers that one wave can address (CDNA 1: and as many for accumulation)
    vgpr_file: int  #: vector registers per lane of one SIMD, shared by its waves
    vgpr_granule: int  #: vector registers are allocated in multiples of this
    max_waves_per_simd: int
    sgprs_per_wave: int
    clock_ghz: float  #: boost clock behind the peaks
    bandwidth_gbs: float  #: device memory, GB/s
    #: dense matrix peak per dtype; "fp32" and "fp64" are the vector (FMA) peaks
    peak_tflops: Mapping[str, float] = field(hash=False)
    matrix_instructions: str  #: "wmma", "mfma", "wgmma"; "wmma3", the third version of WMMA, which CDNA 5 has
    sources: tuple[str, ...]
    #: False where no product is announced: compute units, clock and bandwidth are then gfx1150's, of gfx1251 gfx1250's,
    #: for plans alone
    published: bool = True

    @property
    def wave(self) -> int:
        """Lanes per wave that kernels are compiled for."""
        return self.wave_sizes[0]

    @property
    def major(self) -> int:
        """Generation of the instruction set: 9, 11 or 12 for gfx9xx, gfx11xx, gfx12xx; 9 for sm_90a."""
        if self.vendor == "amd":
            return int(self.name.removeprefix("gfx")[:-2])
        return int(self.name.removeprefix("sm_").rstrip("a")) // 10

    @property
    def generation(self) -> str:
        """The instruction set's number as coverage has it: "gfx9", "gfx11", "gfx12"; CDNA 5's own is "gfx1250"."""
        return "gfx1250" if self.is_cdna5 else f"gfx{self.major}"

    def __getstate__(self) -> dict[str, object]:
        """For pickle and copy, which take no read-only mapping."""
        return {**self.__dict__, "peak_tflops": dict(self.peak_tflops)}

    def __setstate__(self, state: dict[str, object]) -> None:
        peaks: Mapping[str, float] = state["peak_tflops"]  # pyright: ignore[reportAssignmentType]
        self.__dict__.update(state, peak_tflops=MappingProxyType(peaks))

    @cached_property
    def emulated(self) -> bool:
        """Whether laneloom's emulator executes this GPU's code."""
        return self.vendor == "amd" and self.major in (9, 11, 12)

    @property
    def is_cdna5(self) -> bool:
        """Whether the instruction set is CDNA 5's, which grew out of RDNA 4's and has its number."""
        return self.family == "CDNA 5"

    @property
    def wmma_version(self) -> int:
        """Triton's number of the WMMA: 1 of RDNA 3 and 3.5, 2 of RDNA 4 and 4m, 3 of CDNA 5; 0 where there is none."""
        if self.is_cdna5:
            return 3
        if self.matrix_instructions != "wmma":
            return 0
        return 2 if self.is_rdna_4m else self.major - 10

    @property
    def products_of_step(self) -> int | None:
        """Products of 16-bit floats that matrix instructions add to a sum at once, cutting terms off; None where they
        do not, or where nobody has measured it."""
        return 8 if self.name == "gfx942" else {1: 2, 2: 4}.get(self.wmma_version)

    @property
    def matrix_depth(self) -> int:
        """Steps of K of which tiles for matrix instructions of 16 bits have a multiple."""
        return 32 if self.is_cdna5 else 16

    @property
    def is_rdna_4m(self) -> bool:
        """Whether it is RDNA 4m: gfx11's instructions, with RDNA 4's WMMA, floats of 8 bits, minimum and maximum."""
        return self.name.startswith("gfx117")

    @property
    def known_since(self) -> tuple[int, int]:
        """The first Triton, from 3.6 on, that knows this GPU."""
        if self.is_rdna_4m or self.name in ("gfx1154", "gfx1251"):
            return (3, 9)
        return (3, 7) if self.is_cdna5 else (0, 0)

    def check_triton(self, version: str) -> None:
        """Raise UnsupportedError where Triton `version` or its LLVM does not know this GPU, which 3.9 does."""
        if tuple(map(int, re.findall(r"[0-9]+", version)[:2])) < self.known_since:
            raise UnsupportedError(f"triton {version} does not know {self.name} ({self.family}); 3.9 does")

    @property
    def is_cdna_1(self) -> bool:
        """Whether it is CDNA 1: accumulation registers are a file of their own, which MFMA and moves reach and memory
        does not, and the numbers of a workgroup's lanes come in a register for each axis (LLVM AMDGPUUsage).
        """
        return self.name == "gfx908"

    @property
    def flushes_denormals(self) -> bool:
        """Whether matrix instructions and dot products of 16-bit floats take denormals for zeros, of A, B, C and D.

        AMD says so of MI200 (MIOpen, "MI200 matrix fused multiply-add behavior specifics"; PyTorch, "Numerical
        accuracy"), and that its products of fp32 and fp64 keep them. It says so of no other.
        """
        return self.name == "gfx90a"

    def registers_each(self, lanes: int | None) -> int:
        """Registers of the file that one of a wave of so many lanes takes: two of RDNA's, of 64 lanes."""
        return max(1, (lanes or self.wave) // self.wave)

    def waves_of_sgprs(self, sgprs: int) -> int:
        """Waves that fit one SIMD when each needs `sgprs` scalar registers: CDNA has 800 for them (LLVM's table)."""
        if self.vendor != "amd" or self.major != 9:
            return self.max_waves_per_simd
        fits = next((waves for most, waves in ((80, 10), (88, 9), (100, 8)) if sgprs <= most), 7)
        return min(self.max_waves_per_simd, fits)

    def waves_per_simd(self, vgprs: int, lanes: int | None = None, sgprs: int = 0) -> int:
        """Waves that fit one SIMD when each needs `vgprs` vector registers (registers only, LDS aside).

        lanes: of a wave, by default the GPU's own. sgprs: scalar registers, which limit on CDNA alone.
        """
        granules = -(-max(vgprs, 1) * self.registers_each(lanes) // self.vgpr_granule)
        return min(self.waves_of_sgprs(sgprs), self.vgpr_file // (granules * self.vgpr_granule))


def _rdna(
    name, family, product, cus, full_file, clock, bandwidth, peaks, source, isa=_RDNA3_ISA, published=True
) -> Gpu:
    return Gpu(
        name=name,
        vendor="amd",
        family=family,
        product=product,
        wave_sizes=(32, 64),
        compute_units=cus,
        simds_per_cu=2,
        lds_bytes=64 * KIB,
        vgprs_per_wave=256,
        vgpr_file=1536 if full_file else 1024,
        vgpr_granule=24 if full_file else 16,
        max_waves_per_simd=16,
        sgprs_per_wave=106,
        clock_ghz=clock,
        bandwidth_gbs=bandwidth,
        peak_tflops=MappingProxyType(peaks),
        matrix_instructions="wmma",
        sources=(source, isa, _LLVM),
        published=published,
    )


def _rdna_4m(name) -> Gpu:
    return _rdna(name, "RDNA 4m", "not announced", 16, False, 2.9, 120, {}, _LLVM_11_7, published=False)


def _cdna5(name, product, peaks, sources, published=True) -> Gpu:
    return Gpu(
        name=name, vendor="amd", family="CDNA 5", product=product, wave_sizes=(32,), compute_units=256,
        simds_per_cu=4, lds_bytes=320 * KIB, vgprs_per_wave=1024, vgpr_file=1024, vgpr_granule=16,
        max_waves_per_simd=16, sgprs_per_wave=106, clock_ghz=2.4, bandwidth_gbs=23300,
        peak_tflops=MappingProxyType(peaks), matrix_instructions="wmma3", sources=(*sources, _LLVM),
        published=published,
    )  # fmt: skip


def _rdna3_peaks(cus: int, clock: float) -> dict[str, float]:
    """512 FP16 FLOPs and 512 INT8 operations per CU and clock, INT4 twice that; FP32 dual issue 256; FP64 4."""
    per_clock = cus * clock / 1000
    half = round(512 * per_clock, 1)
    return {
        "fp16": half,
        "bf16": half,
        "int8": half,
        "int4": round(1024 * per_clock, 1),
        "fp32": round(256 * per_clock, 1),
        "fp64": round(4 * per_clock, 2),
    }


def _rdna4_peaks(cus: int, clock: float) -> dict[str, float]:
    """1024 FP16, 2048 FP8 and INT8, 4096 INT4 operations per CU and clock; FP32 dual issue 256; FP64 4."""
    per_clock = cus * clock / 1000
    return {
        "fp16": round(1024 * per_clock, 1),
        "bf16": round(1024 * per_clock, 1),
        "fp8": round(2048 * per_clock, 1),
        "int8": round(2048 * per_clock, 1),
        "int4": round(4096 * per_clock, 1),
        "fp32": round(256 * per_clock, 1),
        "fp64": round(4 * per_clock, 2),
    }


def _spec(product: str) -> str:
    return f"AMD product specifications, {product}"


_ROWS = (
    _rdna("gfx1100", "RDNA 3", "Radeon RX 7900 XTX", 96, True, 2.5, 960, _rdna3_peaks(96, 2.5),
          _spec("Radeon RX 7900 XTX")),
    _rdna("gfx1101", "RDNA 3", "Radeon RX 7800 XT", 60, True, 2.43, 624, _rdna3_peaks(60, 2.43),
          _spec("Radeon RX 7800 XT")),
    _rdna("gfx1102", "RDNA 3", "Radeon RX 7600", 32, False, 2.655, 288, _rdna3_peaks(32, 2.655),
          _spec("Radeon RX 7600")),
    _rdna("gfx1103", "RDNA 3", "Radeon 780M (Phoenix)", 12, False, 2.7, 120, _rdna3_peaks(12, 2.7),
          _spec("Ryzen 7 7840U, LPDDR5X-7500 on 128 bits")),
    _rdna("gfx1150", "RDNA 3.5", "Radeon 890M (Strix Point)", 16, False, 2.9, 120, _rdna3_peaks(16, 2.9),
          _spec("Ryzen AI 9 HX 370, LPDDR5X-7500 on 128 bits")),
    _rdna("gfx1151", "RDNA 3.5", "Radeon 8060S (Strix Halo)", 40, True, 2.9, 256, _rdna3_peaks(40, 2.9),
          _spec("Ryzen AI Max+ 395, LPDDR5X-8000 on 256 bits")),
    _rdna("gfx1152", "RDNA 3.5", "Radeon 860M (Krackan Point)", 8, False, 3.0, 128, _rdna3_peaks(8, 3.0),
          _spec("Ryzen AI 7 350, LPDDR5X-8000 on 128 bits")),
    _rdna("gfx1153", "RDNA 3.5", "Radeon 820M (Krackan Point 2)", 2, False, 2.8, 128, _rdna3_peaks(2, 2.8),
          _spec("Ryzen AI 5 330, LPDDR5X-8000 on 128 bits")),
    _rdna("gfx1154", "RDNA 3.5", "not announced", 16, False, 2.9, 120, {}, _LLVM, published=False),
    *(_rdna_4m(name) for name in ("gfx1170", "gfx1171", "gfx1172")),
    _rdna("gfx1200", "RDNA 4", "Radeon RX 9060 XT", 32, True, 3.13, 320, _rdna4_peaks(32, 3.13),
          _spec("Radeon RX 9060 XT"), _RDNA4_ISA),
    _rdna("gfx1201", "RDNA 4", "Radeon RX 9070 XT", 64, True, 2.97, 640, _rdna4_peaks(64, 2.97),
          _spec("Radeon RX 9070 XT"), _RDNA4_ISA),
    Gpu(
        name="gfx908", vendor="amd", family="CDNA 1", product="Instinct MI100", wave_sizes=(64,),
        compute_units=120, simds_per_cu=4, lds_bytes=64 * KIB, vgprs_per_wave=256, vgpr_file=256, vgpr_granule=4,
        max_waves_per_simd=10, sgprs_per_wave=102, clock_ghz=1.502, bandwidth_gbs=1228.8,
        peak_tflops=MappingProxyType({"fp16": 184.6, "bf16": 92.3, "int8": 184.6,
                                      "fp32": 23.1, "fp32_matrix": 46.1, "fp64": 11.5}),
        matrix_instructions="mfma",
        sources=("AMD Instinct MI100 accelerator brochure", _CDNA1_ISA, _LLVM),
    ),
    Gpu(
        name="gfx90a", vendor="amd", family="CDNA 2", product="Instinct MI250X, one GCD", wave_sizes=(64,),
        compute_units=110, simds_per_cu=4, lds_bytes=64 * KIB, vgprs_per_wave=512, vgpr_file=512, vgpr_granule=8,
        max_waves_per_simd=8, sgprs_per_wave=102, clock_ghz=1.7, bandwidth_gbs=1638,
        peak_tflops=MappingProxyType({"fp16": 191.5, "bf16": 191.5, "int8": 191.5,
                                      "fp32": 23.9, "fp32_matrix": 47.9, "fp64": 23.9, "fp64_matrix": 47.9}),
        matrix_instructions="mfma",
        sources=("AMD CDNA 2 architecture white paper, half of the Instinct MI250X", _CDNA2_ISA, _LLVM),
    ),
    Gpu(
        name="gfx942", vendor="amd", family="CDNA 3", product="Instinct MI300X", wave_sizes=(64,),
        compute_units=304, simds_per_cu=4, lds_bytes=64 * KIB, vgprs_per_wave=512, vgpr_file=512, vgpr_granule=8,
        max_waves_per_simd=8, sgprs_per_wave=102, clock_ghz=2.1, bandwidth_gbs=5300,
        peak_tflops=MappingProxyType({"fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9,
                                      "tf32": 653.7, "fp32": 163.4, "fp64": 81.7, "fp64_matrix": 163.4}),
        matrix_instructions="mfma",
        sources=("AMD Instinct MI300X accelerator data sheet", _CDNA3_ISA, _LLVM),
    ),
    Gpu(
        name="gfx950", vendor="amd", family="CDNA 4", product="Instinct MI355X", wave_sizes=(64,),
        compute_units=256, simds_per_cu=4, lds_bytes=160 * KIB, vgprs_per_wave=512, vgpr_file=512, vgpr_granule=8,
        max_waves_per_simd=8, sgprs_per_wave=102, clock_ghz=2.4, bandwidth_gbs=8000,
        peak_tflops=MappingProxyType({"fp16": 2516.6, "bf16": 2516.6, "fp8": 5033.2, "int8": 5033.2,
                                      "fp4": 10066.3, "fp32": 157.3, "fp64": 78.6, "fp64_matrix": 78.6}),
        matrix_instructions="mfma",
        sources=("AMD Instinct MI355X GPU data sheet", _CDNA4_ISA, _LLVM),
    ),
    _cdna5("gfx1250", "Instinct MI455X",
           {"fp16": 5033.2, "bf16": 5033.2, "fp8": 20132.7, "int8": 5033.2, "fp4": 40265.3}, _MI455X),
    _cdna5("gfx1251", "not announced", {}, (_LLVM_1251,), published=False),
    Gpu(
        name="sm_90a", vendor="nvidia", family="Hopper", product="H200 SXM", wave_sizes=(32,),
        compute_units=132, simds_per_cu=4, lds_bytes=227 * KIB, vgprs_per_wave=255, vgpr_file=512, vgpr_granule=8,
        max_waves_per_simd=16, sgprs_per_wave=63, clock_ghz=1.98, bandwidth_gbs=4800,
        peak_tflops=MappingProxyType({"fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9, "tf32": 494.7,
                                      "fp32": 66.9, "fp64": 33.5, "fp64_matrix": 66.9}),
        matrix_instructions="wgmma",
        sources=("NVIDIA H200 Tensor Core GPU data sheet", "NVIDIA CUDA C++ Programming Guide, compute capability 9.0"),
    ),
)

GPUS: Mapping[str, Gpu] = MappingProxyType({row.name: row for row in _ROWS})


_OTHERS: dict[str, Gpu] = {}  #: products of a row's instruction set that plans are fitted to as well, by their names


def as_found(row: Gpu, product: str, compute_units: int, clock_ghz: float, bandwidth_gbs: float) -> Gpu:
    """The row of an instruction set with what one device of it has: an H100 has an H200's SMs and less bandwidth, one
    on PCIe fewer SMs, a part of a GPU fewer still. The row of a product that is known where it is that one.

    Peaks are scaled by compute units and clock. Bandwidth in GB/s.
    """
    for known in (row, *_OTHERS.values()):
        same = abs(bandwidth_gbs / known.bandwidth_gbs - 1) < _SAME_PRODUCT
        if known.name == row.name and known.compute_units == compute_units and same:
            return known
    scale = compute_units * clock_ghz / (row.compute_units * row.clock_ghz)
    peaks = {dtype: round(peak * scale, 1) for dtype, peak in row.peak_tflops.items()}
    return replace(
        row, product=product, compute_units=compute_units, clock_ghz=clock_ghz, bandwidth_gbs=bandwidth_gbs,
        peak_tflops=MappingProxyType(peaks),
    )  # fmt: skip


_OTHERS["h100"] = as_found(GPUS["sm_90a"], "H100 SXM", 132, 1.98, 3350)  # NVIDIA H100 Tensor Core GPU data sheet


def get_gpu(name: str | Gpu) -> Gpu:
    """The row of `name` (case, surrounding space and what ROCm appends, as in "gfx90a:sramecc+:xnack-", do not matter;
    "sm_90" and "h200" mean sm_90a; "h100" is sm_90a with an H100's memory).

    Raises UnknownGpuError with the nearest known names and their families.
    """
    if isinstance(name, Gpu):
        return name
    if not isinstance(name, str):
        raise UnknownGpuError(f"gpu: expected a name such as 'gfx1151', got {type(name).__name__}")
    key = name.strip().lower()
    if key.startswith("gfx"):
        key = key.partition(":")[0]
    key = {"sm_90": "sm_90a", "sm90": "sm_90a", "sm90a": "sm_90a", "h200": "sm_90a"}.get(key, key)
    if key in GPUS or key in _OTHERS:
        return GPUS.get(key) or _OTHERS[key]
    sold_as = re.sub(r"[^a-z0-9]", "", key)  # "rx9070" is in "Radeon RX 9070 XT"
    near = [n for n, row in GPUS.items() if sold_as and sold_as in re.sub(r"[^a-z0-9]", "", row.product.lower())]
    near = near or difflib.get_close_matches(key, GPUS, n=3, cutoff=0.5)
    known = ", ".join(f"{n} ({GPUS[n].family}, {GPUS[n].product})" for n in near or GPUS)
    raise UnknownGpuError(f"unknown GPU {name!r}; {'the nearest ' if near else ''}known are {known}")


def emulated_gpu(name: str | Gpu) -> Gpu:
    """`get_gpu` of a GPU whose code the emulator executes. Raises UnsupportedError where it does not."""
    gpu = get_gpu(name)
    if not gpu.emulated:
        able = ", ".join(row.name for row in GPUS.values() if row.emulated)
        raise UnsupportedError(f"{gpu.name} ({gpu.family}) is not emulated; these are: {able}")
    return gpu
