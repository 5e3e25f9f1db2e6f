"""hopper_cluster.cu: clusters of CTAs share by multicast what they load; wgmma; the epilogue in the accumulators.

The idea: neighbours in C need the same rows of A or the same columns of B, so each brings a part of them from the L2
and the copy engine writes it into every neighbour's shared memory. Less traffic where loads are the limit (the L2), and
less power where power is. Any wgmma type; FP32 operands as TF32, or in pieces (3xTF32, 3xBF16) with sums promoted to
FP32. Wins on large products, on few rows, and wherever an epilogue, a batch or FP32 pieces are asked for. CUDA C++
because Triton 3.6 has neither multicast nor indexed sums. Hopper (sm_90a).
Source: PTX ISA, `wgmma` and `cp.async.bulk.tensor`; Ootomo and Yokota, "Recovering single precision accuracy from
Tensor Cores while surpassing the FP32 theoretical peak performance" (pieces, promoted sums).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from math import gcd
from typing import Any

from ....codegen import CodeObject
from ....codegen.cuda_call import CudaCall, TensorMap
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....device.pieces import placing
from ....device.prepared import current_stream, prepared_on
from ....isa.words import counted
from ..config_cluster import NARROWER, piece_dtype
from ..config_hopper import adds_lines, tma_writes
from ..parts_of_k import Parts
from ..problem import DTYPE_BYTES
from ..tma_operand import (
    ELEMENT_BYTES,
    UNUSED_PITCH,
    Order,
    Sizes,
    TmaOperand,
    kernel_source,
    prepare_launches,
)

_SHARED = (
    "hopper_cluster_epilogue.cuh", "hopper_cluster_store.cuh", "hopper_cluster_lanes.cuh", "hopper_cluster_ring.cuh",
    "hopper_cluster_multiply.cuh",
)  # fmt: skip
SLICE_BYTES = 128
_EDGE_STEP = 16  #: elements of two bytes in a sector: rows of the copy engine that break one are slow
_OUT = {"bf16": ("u16", 2, 0), "fp16": ("u16", 2, 1), "fp32": ("float", 4, 2), "int32": ("int", 4, 2)}
_INDEX_TYPES = "typedef unsigned int u32;\ntypedef unsigned long long u64;\n"
_TERM_TYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": "float", "": "float"}
_SCALES = {None: 0, "tensor": 1, "row": 2, "column": 2}
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "silu": 3}


class _OperandScales(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("outer", "inner", "along", "block"))
    )  # fmt: skip


class _Scales(ctypes.Structure):
    _fields_ = (("a", _OperandScales), ("b", _OperandScales))


class _Terms(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("addend", "bias", "scale_a", "scale_b")),
        *((name, ctypes.c_int64) for name in ("addend_outer", "addend_inner", "addend_m", "addend_n", "bias_step")),
        ("alpha", ctypes.c_float), ("beta", ctypes.c_float),
    )  # fmt: skip


def _tail(config, whole: int) -> int:
    """What one box of the copy engine writes of a tile's last panel where the panel is not whole: of so many of C's
    columns, or rows where C is turned; `whole` where it always is."""
    finished = config.finished
    return gcd(finished % whole, (finished - NARROWER) % whole if config.tiles_n else 0) or whole


def _few(problem, config) -> bool:
    """Whether a quarter of the SMs has none of them."""
    return 4 * config.ctas(problem) <= 3 * config.programs


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; copies of operands are kernels of their own."""
    problem = config.as_launched(problem)
    multiplied = config.as_multiplied(problem)
    a, b = piece_dtype(multiplied, config, "a"), piece_dtype(multiplied, config, "b")
    a_is_km, b_is_nk = not config.along_k(multiplied, "a"), config.along_k(multiplied, "b")
    out_type, out_bytes, out_kind = _OUT[problem.dtype_out]
    e = multiplied.epilogue
    integer = a in ("int8", "uint8")
    one_tile = config.one_tile(problem)
    constants = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "STAGES": config.stages, "CONSUMERS": config.consumers,
        "CLUSTER_M": config.cluster_m, "CLUSTER_N": config.cluster_n, "CLUSTER_K": config.cluster_k,
        "FINISHERS": config.finishers, "K_PARTS": config.split_k,
        "STRIPS": config.strips, "B_COLUMNS": config.b_columns(multiplied), "GROUP_M": config.group_m,
        "GROUPED": int(config.grouped), "K_GROUPED": int(config.k_grouped), "SWAPPED": int(config.swapped),
        "TAIL_ROWS": _tail(config, 64), "PANELS": config.panels, "ONE_TILE": int(one_tile),
        "HOLD_BACK": 0 if one_tile else config.hold_back, "SPLIT": int(config.split),
        "OWN_TILES": int(config.own_tiles), "PIECES": config.pieces,
        "BATCHED_PIECES": int(config.pieces > 1 and problem.batches > 1),
        "PROMOTE": config.promote, "HANDS_OVER": int(config.hands_over(problem)),
        "SCALED": int(problem.scales is not None),
        "FETCHED": config.fetched, "RELEASE_LATE": int(_few(problem, config)), "UNEVEN": int(config.tiles_n > 0),
        "TMA_STORE": int(config.tma_store), "LINE_STORE": int(tma_writes(problem)),
        "OUT_VECTOR": problem.vector_out,
        "ROW_STORE": int(not config.tma_store and not config.swapped and problem.out.strides[3] == 1),
        "ELEMENT_BYTES": ELEMENT_BYTES[a], "A_IS_KM": int(a_is_km), "B_IS_NK": int(b_is_nk),
        "OUT_TYPE": out_type, "OUT_BYTES": out_bytes, "OUT_KIND": out_kind,
        "STORED": "int" if problem.dtype_out == "int32" else "float",
        "ACCUMULATOR": "int" if integer else "float", "ACCUMULATOR_OPERAND(x)": '"+r"(x)' if integer else '"+f"(x)',
        "EPILOGUE": int(bool(e)), "HAS_ALPHA": int(bool(e and e.scaled)), "HAS_ADDEND": int(bool(e and e.addend)),
        "SCALE_A": _SCALES[e.scale_a if e else None], "SCALE_B": _SCALES[e.scale_b if e else None],
        "ADDEND_DENSE": int(bool(e and e.addend and e.addend.strides[3] == 1)),
        "ADDEND_IN_LINES": int(adds_lines(problem)),
        "BIAS_AXIS": {None: 0, "m": 1, "n": 2}[e.bias[0] if e and e.bias else None],
        "ADDEND_TYPE": _TERM_TYPES[e.dtype_addend if e else ""], "BIAS_TYPE": _TERM_TYPES[e.dtype_bias if e else ""],
        "ACTIVATION": ACTIVATIONS[e.activation if e else None],
    }  # fmt: skip
    # Groups of rows end anywhere, an addend may be what C overwrites, and scales are of blocks of columns.
    if not (e and e.addend) and not config.scaled:
        if not config.grouped:
            constants["EDGE_STEP_M"] = _EDGE_STEP if a_is_km else 1
        constants["EDGE_STEP_N"] = 1 if b_is_nk else _EDGE_STEP
    if config.scaled:
        rows, columns = (scales.rows, scales.columns) if (scales := multiplied.scales) else (0, 0)
        constants |= {
            "ROWS_SCALED": rows, "COLUMNS_SCALED": columns, "PARTS": config.scaled, "DUAL": int(config.dual),
        }  # fmt: skip
    elements = config.line // ELEMENT_BYTES[a]
    constants |= {"LINE": elements, "LINE_STEP": problem.a.strides[1] % elements if elements else 0}
    widths = [config.block_n // (config.scaled or 1)] + [config.block_n - NARROWER] * (config.tiles_n > 0)
    multiply = "".join(
        wgmma_function(
            "wgmma", width, a, dtype_b=b, a_in_registers=config.scaled > 1, a_by_column=a_is_km, b_by_row=not b_is_nk
        ) for width in widths
    )  # fmt: skip
    own = ("hopper_cluster_blocks.cuh" if config.scaled else "hopper_cluster_sums.cuh", "hopper_cluster.cu")
    if config.k_grouped:
        own = ("hopper_cluster_groups.cuh", *own)
    return compile_cuda(
        _INDEX_TYPES + multiply + kernel_source(__package__, *_SHARED, *own), gpu,
        constants=constants, num_warps=4 * (config.consumers + 1), lds_bytes=config.shared_bytes(problem),
        name="hopper_cluster.cu",
    )  # fmt: skip


def _operand(problem, config, name: str, columns: int = 64) -> TmaOperand:
    """Operand "a" or "b" of what is multiplied; clusters cut a tile into shares along the rows of its boxes.

    columns: in a box of an operand that is not contiguous along K."""
    dtype = piece_dtype(problem, config, name)
    if name == "a":
        matrix, rows, block, sharers = problem.a.strides, problem.m, config.block_m, config.cluster_n
        copied = config.copy_a
    else:
        matrix = (*problem.b.strides[:2], problem.b.strides[3], problem.b.strides[2])
        rows, block, sharers = problem.n, config.block_n, config.cluster_m
        copied = config.copy_b
    along_k = config.along_k(problem, name)
    box = (config.block_k, block // sharers) if along_k else (columns, config.block_k // sharers)
    return TmaOperand(
        matrix, dtype, rows, problem.k, problem.batch, along_k=along_k, box=box, swizzle=SLICE_BYTES, copied=copied,
        pieces=config.pieces,
    )  # fmt: skip


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        of_call, problem = problem, config.as_launched(problem)
        multiplied = config.as_multiplied(problem)
        self.swapped, self.scaled = config.swapped, problem.scales is not None
        self.a, self.b = _operand(multiplied, config, "a"), _operand(multiplied, config, "b")
        self.place = placing(self.a.copy, self.b.copy, pdl=config.pdl)
        tail = 0 if config.along_k(multiplied, "b") else config.block_n % 64
        self.b_tail = _operand(multiplied, config, "b", tail) if tail else None
        size = DTYPE_BYTES[problem.dtype_out]
        self.c = self.c_tail = None
        if config.tma_store:
            outer, inner, row, _ = problem.out.strides
            strides = tuple(step * size or UNUSED_PITCH for step in (row, inner, outer))
            products = (1, 1) if config.grouped else problem.batch[::-1]
            sizes = (problem.n, problem.m, *products)
            panel = SLICE_BYTES // size

            def writes(*box: int) -> TensorMap:
                return TensorMap(problem.dtype_out, sizes, strides, (*box, 1, 1), SLICE_BYTES)

            if config.swapped:
                self.c, self.c_tail = writes(panel, 64), writes(panel, _tail(config, 64))
            else:
                self.c, self.c_tail = writes(panel, 16), writes(_tail(config, panel), 16)
        items, wide = config.tiles(problem), config.wide_tiles(multiplied.n)
        outer, inner, row, column = multiplied.out.strides
        rows = -(-multiplied.m // (config.block_m * config.cluster_m))
        narrow = config.tiles_n - wide
        across = wide if config.tiles_n else -(-multiplied.n // (config.block_n * config.cluster_n))
        order, of_narrow = (Order.of(rows, columns, problem.batch[1], config.group_m) for columns in (across, narrow))
        self.sizes = Sizes(
            multiplied.m, multiplied.n, problem.k, problem.batch[1], items, order, *self.a.steps, *self.b.steps, outer,
            inner, row, column, None, problem.batch[1] if config.grouped else 0,
            wide, narrow, items // max(config.tiles_n, 1) * wide, of_narrow.tiling)  # fmt: skip
        self.terms = _Terms()
        e = problem.epilogue
        if e and e.addend:
            terms = self.terms
            terms.addend_outer, terms.addend_inner, terms.addend_m, terms.addend_n = e.addend.strides
        self.terms.bias_step = e.bias[1] if e and e.bias else 0
        self.scales = _Scales()
        if scales := multiplied.scales:
            outer, inner, along, block = scales.a.strides
            self.scales.a = _OperandScales(None, outer, inner, along, block)
            outer, inner, block, along = scales.b.strides
            self.scales.b = _OperandScales(None, outer, inner, along, block)
        self.pointer = ctypes.c_void_p()
        maps = (
            self.a.map, self.b.map, (self.b_tail or self.b).map, self.c or self.a.map,
            self.c_tail or self.a.map,
        )  # fmt: skip
        arguments = (*maps, self.pointer, self.sizes, self.terms, *[self.scales] * self.scaled)
        self.launch = CudaCall(
            code_object(of_call, config, gpu), arguments, device,
            ctas=config.ctas(problem), cluster=config.peers, pdl=config.pdl,
        )  # fmt: skip
        self.lock = threading.Lock()
        self.parts = Parts(of_call, config, config.parts_shape(of_call)) if config.split_k > 1 else None

    def __call__(
        self, a, b, out, add=None, bias=None, alpha=None, beta=None, scale_a=None, scale_b=None, group_ends=None
    ) -> None:
        if self.swapped:
            a, b = b, a
        a, b = self.place(a, b)
        written = out if self.parts is None else self.parts.allocate(out.device)
        stream = current_stream(out.get_device())
        with self.lock:  # the arguments are filled in place
            self.a.map.set_address(a.data_ptr())
            self.b.map.set_address(b.data_ptr())
            if self.b_tail is not None:
                self.b_tail.map.set_address(b.data_ptr())
            self.pointer.value = written.data_ptr()
            if self.c is not None and self.c_tail is not None:
                self.c.set_address(written.data_ptr())
                self.c_tail.set_address(written.data_ptr())
            terms = self.terms
            if alpha is not None:
                terms.alpha = alpha
            if add is not None:
                terms.addend, terms.beta = add.data_ptr(), beta
            if bias is not None:
                terms.bias = bias.data_ptr()
            if self.swapped:
                scale_a, scale_b = scale_b, scale_a
            if self.scaled:
                self.scales.a.at, self.scales.b.at = scale_a.data_ptr(), scale_b.data_ptr()
            else:
                if scale_a is not None:
                    terms.scale_a = scale_a.data_ptr()
                if scale_b is not None:
                    terms.scale_b = scale_b.data_ptr()
            if group_ends is not None:
                self.sizes.group_ends = group_ends.data_ptr()
            self.launch(stream)
        if self.parts is not None:
            self.parts.add_up(written, out)


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (a ClusterConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=config.one_by_one(problem))


def launch(problem, config, gpu, a, b, out, *terms: Any) -> None:
    """Run `config` on what lies as `problem` says. terms: addend, bias, alpha, beta, both scales; ends of groups."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out, *terms)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    owner = f", each by a cluster of {config.peers}," if config.peers > 1 else ""
    lines = [
        f"{counted(config.tiles(config.as_launched(problem)), 'tile')} of {config.block_m * config.cluster_m}x"
        f"{config.block_n * config.cluster_n}{owner} on at most {counted(config.programs, 'program')}"
    ]
    if config.split_k > 1:
        lines.append(f"K in {config.split_k} parts, summed in their order by a second launch")
    if config.own_tiles:
        lines.append("two warpgroups have tiles of their own, in turn: one writes C while the other multiplies")
    if config.swapped:
        lines.append("C's transpose is computed: N takes the 64 rows of wgmma, and C is turned on its way out")
    if config.tiles_n:
        wide = config.wide_tiles(config.as_multiplied(problem).n)
        lines.append(
            f"{config.tiles_n} tiles along {'M' if config.swapped else 'N'}, so that they fill all SMs: {wide} of "
            f"{config.block_n}, {config.tiles_n - wide} of {config.block_n - NARROWER}"
        )
    if config.line:
        lines.append(
            f"rows of A that begin alike within {config.line} bytes share tiles, {config.classes(problem)} classes of "
            "them, and K begins before the first element, where their lines do"
        )
    for name, copied in (("A", config.copy_a), ("B", config.copy_b)):
        if copied:
            kind = piece_dtype(problem, config, name.lower())
            pieces = f"{config.pieces} pieces of {kind}, " if config.pieces > 1 else ""
            along = "K" if config.along_k(problem, name.lower()) else "M" if name == "A" else "N"
            lines.append(f"{name} is copied first: {pieces}contiguous along {along}, rows of whole 128-byte lines")
    if config.promote:
        lines.append(f"sums leave the tensor cores every {config.promote} slices and are added in FP32")
    if config.scaled:
        meanwhile = ", while the next is multiplied" if config.dual else ""
        scaled = ", are scaled" if problem.scales else ""
        lines.append(f"sums of a slice, a block of K, leave the tensor cores{scaled} and are added in FP32{meanwhile}")
    if not config.tma_store:
        lines.append("C is written with masked stores: TMA takes bases and pitches of 16 bytes")
    return lines
