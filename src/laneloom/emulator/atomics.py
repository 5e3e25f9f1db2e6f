"""Atomic read-modify-write on global memory, buffers and LDS.

Lanes take effect one after another in the order wave 0 lane 0, wave 0 lane 1, ...: one of the orders that the hardware
may choose. `returns` gives each lane the value that it found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from ..isa.parse import Instruction, Operand
from ..isa.registers import results
from .alu import Builder, Step, Target
from .buffer_access import Buffer
from .dots import bf16_to_f32, flush_bf16, to_bf16
from .flat_access import FlatAddress
from .floating import MAX_IEEE, MAX_NUM, MIN_IEEE, MIN_NUM
from .global_access import global_addresses
from .lds_access import addresses
from .mode import flush
from .private_access import check_private, gather_private, scatter_private
from .shadow import Found
from .state import U32, Waves

Combine = Callable[..., np.ndarray]  #: (memory, data) or, for compare-and-swap, (memory, data, compare)


def _replace(m, d):
    return d


def _wrap_inc(m, d):
    return np.where(m >= d, m.dtype.type(0), m + m.dtype.type(1))


def _wrap_dec(m, d):
    return np.where((m == 0) | (m > d), d, m - m.dtype.type(1))


def _sub_clamp(m, d):
    return np.where(m < d, m.dtype.type(0), m - d)


def _cond_sub(m, d):
    return np.where(m >= d, m - d, m)


def _packed_sum(m, d):
    return m + d


def _bf16_sum(m, d):
    return to_bf16(bf16_to_f32(m) + bf16_to_f32(d))


def _packed(kind: str, of_halves: Callable = lambda combine: combine) -> Combine:
    """Two sums in one register, each as `of_halves` makes it of a plain one."""
    combine, dtype = of_halves(_packed_sum if kind == "f16" else _bf16_sum), np.float16 if kind == "f16" else np.uint16
    return lambda m, d: combine(m.view(dtype), d.view(dtype)).view(m.dtype)


def _add_flushed(m, d):
    """The sum of float32 in memory before gfx12: denormal operands are zeros, whatever the mode says (ISA guides)."""
    return flush(m, "f32") + flush(d, "f32")


def _sums_are_plain(combine: Combine, *values: np.ndarray) -> bool:
    """Whether sums may be taken in one call: of what lies so far above the denormals that no sum of it is one."""
    return combine is np.add or (
        combine is _add_flushed and not any(((np.abs(x) < 2.0**-102) & (x != 0)).any() for x in values)
    )


def _in_mode(combine: Combine, kind: str, target: Target) -> Combine:
    """How floats are combined where MODE takes denormals for zeros (ISA guides; gfx12's minima by rocjitsu).

    Sums take them so as operands and as sums. The others compare so: minima and maxima before gfx12 leave the number
    that they choose as it is, and a compare-and-swap flushes what it leaves.
    """
    mode, sums = target.mode, combine in (np.add, _packed_sum, _bf16_sum)
    of_mode = "f16" if kind == "bf16" else kind
    inputs, results = mode.flushes_inputs(of_mode), sums and mode.flushes_results(of_mode)
    if not (inputs or results):
        return combine

    def flushed(x: np.ndarray) -> np.ndarray:
        return flush_bf16(x) if kind == "bf16" else flush(x, kind)

    def result(*operands):
        values = [flushed(x) if inputs else x for x in operands]
        total = np.asarray(combine(*values))
        if sums:
            return flushed(total) if results else total
        if target.gpu.major >= 12 or len(operands) == 3:
            return total
        bits = f"u{total.dtype.itemsize}"
        m, d = (np.asarray(x).view(bits) for x in values[:2])
        chosen = total.view(bits)
        return np.where(chosen == m, operands[0], np.where(chosen == d, operands[1], total))

    return result


def _mask_or(m: np.ndarray, d: np.ndarray, set_bits: np.ndarray) -> np.ndarray:
    return m & ~d | set_bits


def _compare_and_store(m: np.ndarray, d: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.where(m == expected, d, m)


#: what is undefined of the new word, from what is of the one in memory and from data that is defined
_UNDEFINED: dict[Combine, Combine] = {
    np.bitwise_and: np.bitwise_and, np.bitwise_or: lambda u, d: u & ~d, np.bitwise_xor: lambda u, d: u,
    _mask_or: lambda u, d, set_bits: u & ~d & ~set_bits,
}  # fmt: skip
# name -> (combination, dtype letter); the operand's width comes from the mnemonic
OPERATIONS: dict[str, tuple[Combine, str]] = {
    "swap": (_replace, "u"), "storexchg": (_replace, "u"),
    "add": (np.add, "u"), "sub": (np.subtract, "u"), "rsub": (lambda m, d: d - m, "u"),
    "csub": (_sub_clamp, "u"), "sub_clamp": (_sub_clamp, "u"), "cond_sub": (_cond_sub, "u"),
    "and": (np.bitwise_and, "u"), "or": (np.bitwise_or, "u"), "xor": (np.bitwise_xor, "u"),
    "inc": (_wrap_inc, "u"), "dec": (_wrap_dec, "u"),
    "min": (np.minimum, ""), "max": (np.maximum, ""),
    "min_num": (lambda m, d: MIN_NUM(d, m), ""), "max_num": (lambda m, d: MAX_NUM(d, m), ""),  # of two NaN the operand
    "mskor": (_mask_or, "u"),
    "wrap": (lambda m, d, back: np.where(m >= d, m - d, m + back), "u"),
    "cmpswap": (_compare_and_store, "u"), "cmpstore": (_compare_and_store, "u"),
}  # fmt: skip
_NAME = re.compile(
    r"(global|flat|buffer)_atomic_(\w+?)_([uibf])(32|64)$|(global|flat|buffer)_atomic_pk_add_(f16|bf16)$"
)
_LDS = re.compile(r"ds_(?!load|store_b|store_2)(\w+?)(_rtn)?_([uibf])(32|64)$|ds_pk_add(_rtn)?_(f16|bf16)$")


def operation_of(name: str, letter: str, bits: int) -> tuple[Combine, np.dtype] | None:
    """How an atomic combines memory and data, and their type."""
    if letter == "f" and name in ("min", "max"):  # a signalling NaN wins, whatever the mode says (ISA guides)
        return (MIN_IEEE if name == "min" else MAX_IEEE), np.dtype(f"f{bits // 8}")
    if letter == "f" and name in ("cmpswap", "cmpstore"):  # compared as floats: -0 equals +0, NaN nothing
        return OPERATIONS[name][0], np.dtype(f"f{bits // 8}")
    entry = OPERATIONS.get(name)
    if entry is None:
        return None
    combine, forced = entry
    kind = {"u": "u", "b": "u", "i": "i", "f": "f"}[letter]
    if forced and letter != "f":
        kind = forced
    return combine, np.dtype(f"{kind}{bits // 8}")


def apply(items: np.ndarray, index: np.ndarray, combine: Combine, data: tuple[np.ndarray, ...]) -> np.ndarray:
    """Combine `data` into items[index] one lane after another; the values found, in lane order.

    Lanes that share an address are taken in rounds: round r holds every address's r-th visitor, so each round is one
    vector operation.
    """
    found = np.empty(len(index), items.dtype)
    order = np.argsort(index, kind="stable")
    place = index[order]
    first = np.concatenate([[True], place[1:] != place[:-1]])
    starts = np.flatnonzero(first)
    rank = np.arange(len(place)) - np.repeat(starts, np.diff(np.append(starts, len(place))))
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(int(rank.max(initial=0)) + 2))
    for r in range(len(bounds) - 1):
        lanes = order[by_rank[bounds[r] : bounds[r + 1]]]
        at = index[lanes]
        old = items[at]
        found[lanes] = old
        items[at] = combine(old, *[d[lanes] for d in data])
    return found


def _data(g: Waves, n: int, dtype: np.dtype, active: np.ndarray) -> np.ndarray:
    value = g.u[n] if dtype.itemsize == 4 else g.pair(n)
    return np.ascontiguousarray(value[active]).view(dtype)


def _finish(g: Waves, destination: int, dtype: np.dtype, active: np.ndarray, found: np.ndarray) -> None:
    words = np.ascontiguousarray(found).view(U32).reshape(-1, dtype.itemsize // 4)
    for k in range(dtype.itemsize // 4):
        g.u[destination + k][active] = words[:, k]


def _step(where, operation, data: list[int], destination: int | None, memory: str) -> Step:
    """`where(g)` gives byte offsets into `memory` and the lanes that take part."""

    def step(g: Waves) -> None:
        at, active = where(g)
        _take_effect(g, at, active, operation, data, destination, memory)

    return step


def _take_effect(
    g: Waves, at: np.ndarray, active: np.ndarray, operation, data: list[int], destination: int | None, memory: str
) -> None:
    if not active.any():
        return
    combine, dtype = operation
    store = g.memory if memory == "global" else g.lds
    items = store.view(dtype.itemsize).view(dtype)
    index = at[active] // dtype.itemsize
    values = tuple(_data(g, n, dtype, active) for n in data)
    if memory == "lds" and g.undefined_lds is not None:
        if destination is not None and combine is _replace:
            g.undefined_lds.exchange(g, at, dtype.itemsize, active, destination)
        elif combine in _UNDEFINED:
            _spread(g, index, active, combine, values, destination)
        elif not _swaps_words(operation):
            g.undefined_lds.combine(g, at, dtype.itemsize, active)
    if destination is None and _sums_are_plain(combine, *values, items[index]):
        # On a copy: `add.at` would copy and write back the whole window, which holds everybody's memory.
        places, lane_of = np.unique(index, return_inverse=True)
        sums = items[places]
        np.add.at(sums, lane_of, values[0])
        items[places] = sums
        store.version += 1
        return
    before = items[index]
    found = apply(items, index, combine, values)
    if not np.array_equal(before, items[index]):
        store.version += 1
    if destination is not None:
        _finish(g, destination, dtype, active, found)


def _swaps_words(operation) -> bool:
    """Whether undefined_swap has said what this atomic does with undefined bits."""
    return operation[0] is _compare_and_store and operation[1] == U32


def _spread(
    g: Waves, index: np.ndarray, active: np.ndarray, combine: Combine, values: tuple[np.ndarray, ...],
    destination: int | None,
) -> None:  # fmt: skip
    """Undefined bits of LDS under a bitwise atomic: one of 8 or 16 bits is made of the word that they lie in."""
    if g.undefined_lds.clean:
        return
    dtype = values[0].dtype
    found = apply(g.undefined_lds.view(dtype.itemsize).view(dtype), index, _UNDEFINED[combine], values)
    if destination is not None:
        words = found.view(U32).reshape(-1, dtype.itemsize // 4)
        for k in range(dtype.itemsize // 4):
            g.shadow.V[destination + k][active] = words[:, k]
            g.shadow.note(destination + k)


def _undefined_in_scratch(g: Waves, at, active: np.ndarray, owners, operation, values) -> np.ndarray | None:
    """What nobody wrote of the words of scratch that an atomic finds; what it leaves there is noted."""
    if g.shadow is None or g.shadow.private is None:
        return None
    combine, dtype = operation
    if _swaps_words(operation):
        return None
    twin = g.twin(g.shadow.V)
    twin.private = g.shadow.private
    words = gather_private(twin, at, dtype.itemsize, owners)
    found = np.ascontiguousarray(words[active])
    if not found.any():
        return None
    if combine is not _replace and combine not in _UNDEFINED:
        wave, lane = (int(x[0]) for x in np.nonzero(words.any(axis=-1) & active))
        raise Found("undefined", "an atomic combines bits of scratch that nobody wrote", int(g.ids[wave]), lane)
    left = np.zeros_like(found)
    if combine is not _replace:
        left = np.ascontiguousarray(_UNDEFINED[combine](found.view(dtype)[:, 0], *values)).view(U32)
    words[active] = left.reshape(found.shape)
    scatter_private(twin, at, words, dtype.itemsize, active, owners)
    return found


def _flat_step(operation, data: list[int], destination: int | None, where: FlatAddress) -> Step:
    """A flat atomic: each lane works on the memory that its address lies in."""
    combine, dtype = operation
    nbytes = dtype.itemsize

    def in_scratch(g: Waves, at: np.ndarray, active: np.ndarray, owners: np.ndarray | None) -> None:
        old = np.ascontiguousarray(gather_private(g, at, nbytes, owners)[active]).view(dtype)[:, 0]
        values = [_data(g, n, dtype, active) for n in data]
        new = np.asarray(combine(old, *values), dtype)
        undefined = _undefined_in_scratch(g, at, active, owners, operation, values)
        words = np.zeros((g.count, g.lanes, nbytes // 4), U32)
        words[active] = np.ascontiguousarray(new).view(U32).reshape(-1, nbytes // 4)
        scatter_private(g, at, words, nbytes, active, owners)
        if destination is not None:
            _finish(g, destination, dtype, active, old)
            if undefined is not None:
                for k in range(nbytes // 4):
                    g.shadow.V[destination + k][active] = undefined[:, k]
                    g.shadow.note(destination + k)

    def step(g: Waves) -> None:
        address, spaces = where.split(g)
        for space, mask in spaces.items():
            active = g.active() if mask is None else mask
            if space == "global":
                at = g.memory.check_atomic(address, nbytes, mask)
                _take_effect(g, at, active, operation, data, destination, "global")
            elif space == "lds":
                at = g.lds.check_atomic(g.lds_base, address & 0xFFFFFFFF, nbytes, mask)
                _take_effect(g, at, active, operation, data, destination, "lds")
            else:
                at, owners = check_private(g, address & 0xFFFFFFFF, nbytes, mask), where.owners(g, address)
                each = [active] if owners is None else [active & (np.arange(g.lanes) == k) for k in range(g.lanes)]
                for part in each:  # lanes that mean the scratch of one lane take turns
                    in_scratch(g, at, part, owners)

    return step


def _in_memory(name: str, kind: str, combine: Combine, target: Target) -> Combine:
    """How memory before gfx12 takes denormals (ISA guides): sums of float32, and by MODE what RDNA 3 compares."""
    if name == "add":
        return _add_flushed if kind == "f32" else combine
    return _in_mode(combine, kind, target) if target.gpu.major == 11 else combine


def _build_memory(ins: Instruction, target: Target) -> Step:
    match = _NAME.match(ins.name)
    assert match
    prefix = match[1] or match[5]
    if match[6]:
        operation = (_packed(match[6]), np.dtype(np.uint32))
    else:
        found = operation_of(match[2], match[3], int(match[4]))
        assert found
        operation = found
        if match[3] == "f" and target.gpu.major < 12:
            operation = (_in_memory(match[2], f"f{match[4]}", found[0], target), found[1])
    dtype = operation[1]
    operands = list(ins.operands)
    if prefix == "buffer":
        data, vaddr, resource, soffset = operands
        returns = ins.flag("glc") or "RETURN" in ins.modifiers.get("th", "")
        destination = data.index if returns else None
        buffer = Buffer(ins, target, vaddr, resource, soffset, dtype.itemsize)

        def where(g: Waves):
            address, inside = buffer(g)
            return g.memory.check_atomic(address, dtype.itemsize, inside), inside
    else:
        destination = operands.pop(0).index if results(ins) else None
        vaddr, data = operands[0], operands[1]
        saddr = operands[2] if prefix == "global" else Operand("symbol", value="off")
        address_of = global_addresses(ins, vaddr, saddr, target, dtype.itemsize)

        def where(g: Waves):
            return g.memory.check_atomic(address_of(g), dtype.itemsize, g.exec), g.active()

    registers = [data.index]
    if match[2] in ("cmpswap",):  # the data range holds the new value, then the one to compare with
        registers.append(data.index + dtype.itemsize // 4)
    if prefix == "flat":
        return _flat_step(operation, registers, destination, FlatAddress(ins, vaddr, dtype.itemsize, target))
    return _step(where, operation, registers, destination, "global")


def _build_lds(ins: Instruction, target: Target) -> Step:
    match = _LDS.match(ins.name)
    assert match
    if match[6]:
        halves = partial(_in_mode, kind=match[6], target=target)
        operation, returns = (_packed(match[6], halves), np.dtype(np.uint32)), bool(match[5])
    else:
        found = operation_of(match[1], match[3], int(match[4]))
        assert found
        operation, returns = found, bool(match[2])
    # Sums of float64 keep denormals (ISA guides).
    if operation[1].kind == "f" and (match[1], match[4]) != ("add", "64"):
        operation = _in_mode(operation[0], f"f{match[4]}", target), operation[1]
    dtype, offset = operation[1], ins.number("offset")
    operands = list(ins.operands)
    destination = operands.pop(0).index if returns else None
    address, *data = (o.index for o in operands)

    def where(g: Waves):
        return g.lds.check_atomic(g.lds_base, addresses(g, address, offset), dtype.itemsize, g.exec), g.active()

    return _step(where, operation, list(data), destination, "lds")


def find(name: str) -> Builder | None:
    """The builder of an atomic instruction."""
    match = _NAME.match(name)
    if match:
        return _build_memory if match[6] or operation_of(match[2], match[3], int(match[4])) else None
    match = _LDS.match(name)
    if match:
        return _build_lds if match[6] or operation_of(match[1], match[3], int(match[4])) else None
    return None
