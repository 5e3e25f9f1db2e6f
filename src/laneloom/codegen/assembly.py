"""Writes one RDNA kernel in assembly from Python: registers by name and bank, waits, pairs, loops, metadata.

The writer spells what differs between RDNA 3 and RDNA 4 (waits, barriers, carries, where a workgroup's number is), and
refuses what the hardware would: a pair that breaks a rule of dual issue, a register that is taken. It chooses nothing:
the text has the instructions in the order of the calls. `laneloom.codegen.assemble` makes a CodeObject of it.

Sources: AMD RDNA 3 and RDNA 4 ISA guides; LLVM, "User Guide for AMDGPU Backend" (descriptor, metadata, start state).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import ArgumentError
from ..gpu import Gpu
from ..isa.check_pairs import rules_of, why_illegal
from ..isa.parse import Instruction, parse_operand
from ..isa.registers import uses

VGPR_BANKS = 4

_MOST_THREADS = 1024
_USER_SGPRS = 2  #: the address of the kernel's arguments
_SCALARS = 100  #: that a kernel may name; VCC and the trap registers are beyond
_RDNA4_NAMES = {
    "s_add_u32": "s_add_co_u32", "s_addc_u32": "s_add_co_ci_u32", "s_add_i32": "s_add_co_i32",
    "s_sub_i32": "s_sub_co_i32",
}  # fmt: skip
_YAML_TRUTHS = ("y", "n", "yes", "no", "on", "off", "true", "false")
_KINDS = {"pointer": 8, "u32": 4}


@dataclass(frozen=True)
class Register:
    """One register, or several in a row; prints as the assembler reads it."""

    kind: str  #: "v" or "s"
    index: int
    count: int = 1

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.kind}{self.index}"
        return f"{self.kind}[{self.index}:{self.index + self.count - 1}]"

    def __getitem__(self, place: int) -> Register:
        """One register of several."""
        if not 0 <= place < self.count:
            raise IndexError(f"{self} has no register {place}")
        return Register(self.kind, self.index + place)

    def part(self, first: int, count: int) -> Register:
        """`count` registers in a row, from `first` on."""
        return Register(self.kind, self[first].index, count)


Operand = Register | int | float | str


def _half(words: Sequence[Operand]) -> Instruction:
    """One half of a pair, given as (mnemonic, result, sources...)."""
    mnemonic, operands = str(words[0]), [str(word) for word in words[1:]]
    name = mnemonic.replace("v_dual_", "v_", 1)
    text = f"{mnemonic} {', '.join(operands)}"
    return Instruction(name, "", tuple(parse_operand(word) for word in operands), {}, 0, text)


class Assembly:
    """The text of one kernel for wave32, while it is written."""

    def __init__(
        self,
        kernel: str,
        gpu: Gpu,
        arguments: Sequence[tuple[str, str]],
        *,
        threads: int,
        lds_bytes: int = 0,
        cu_mode: bool = False,
    ):
        """arguments: (name, "pointer" or "u32"). cu_mode: the workgroup stays on one compute unit of its WGP.

        v0 holds the thread's number, `kernarg` the arguments' address, `workgroup_x` and `workgroup_y` the workgroup.
        Raises ArgumentError for a GPU without wave32 VOPD, an unknown kind of argument or no such number of threads.
        """
        if gpu.major not in (11, 12) or gpu.vendor != "amd" or gpu.is_cdna5:
            raise ArgumentError(f"gpu: the assembly writer knows RDNA 3, 3.5 and 4, got {gpu.name} ({gpu.family})")
        if not 1 <= threads <= _MOST_THREADS:
            raise ArgumentError(f"threads: a workgroup has 1 to {_MOST_THREADS}, got {threads}")
        self.kernel, self.gpu, self.arguments = kernel, gpu, tuple(arguments)
        for name, kind in self.arguments:
            if kind not in _KINDS:
                raise ArgumentError(f"argument {name}: expected one of {', '.join(_KINDS)}, got {kind!r}")
            if name.lower() in _YAML_TRUTHS:
                raise ArgumentError(f"argument {name}: the metadata's readers take this name for a truth value")
        self.threads, self.lds_bytes, self.cu_mode = threads, lds_bytes, cu_mode
        self.lines: list[str] = []
        self._labels = 0
        self._taken: dict[str, dict[int, str]] = {"v": {}, "s": {}}
        self._most = {"v": 0, "s": 0}
        self.thread = self._take("v", 0, 1, "thread")
        self.kernarg = self._take("s", 0, 2, "kernarg")
        if gpu.major == 11:
            self.workgroup_x: Operand = self._take("s", _USER_SGPRS, 1, "workgroup_x")
            self.workgroup_y: Operand = self._take("s", _USER_SGPRS + 1, 1, "workgroup_y")
        else:
            self.workgroup_x, self.workgroup_y = "ttmp9", "ttmp7"

    # -- registers -----------------------------------------------------------------------------------------------------

    def vector(self, name: str, count: int = 1, *, bank: int | None = None) -> Register:
        """`count` free vector registers in a row, the first of them in `bank` (0 to 3) if that is given."""
        return self._find("v", name, count, self.gpu.vgprs_per_wave, 1 if bank is None else VGPR_BANKS, bank or 0)

    def scalar(self, name: str, count: int = 1) -> Register:
        """`count` free scalar registers in a row, aligned as loads and pairs need them."""
        return self._find("s", name, count, _SCALARS, min(1 << (count - 1).bit_length(), 4), 0)

    def free(self, *registers: Register) -> None:
        """Give registers back; the text may use them for something else from here on."""
        for register in registers:
            for index in range(register.index, register.index + register.count):
                del self._taken[register.kind][index]

    def _find(self, kind: str, name: str, count: int, limit: int, step: int, first: int) -> Register:
        taken = self._taken[kind]
        for index in range(first, limit - count + 1, step):
            if not any(place in taken for place in range(index, index + count)):
                return self._take(kind, index, count, name)
        what = "vector" if kind == "v" else "scalar"
        raise ArgumentError(f"{self.kernel} has no {count} free {what} registers in a row left for {name!r}")

    def _take(self, kind: str, index: int, count: int, name: str) -> Register:
        for place in range(index, index + count):
            self._taken[kind][place] = name
        self._most[kind] = max(self._most[kind], index + count)
        return Register(kind, index, count)

    # -- instructions --------------------------------------------------------------------------------------------------

    def emit(self, mnemonic: str, *operands: Operand, modifiers: str = "") -> None:
        """One instruction as it is."""
        words = ", ".join(str(operand) for operand in operands)
        self.lines.append(f"\t{mnemonic} {words} {modifiers}".rstrip())

    def spell(self, mnemonic: str) -> str:
        """RDNA 3's name of an instruction as this GPU's assembler knows it."""
        return _RDNA4_NAMES.get(mnemonic, mnemonic) if self.gpu.major == 12 else mnemonic

    def comment(self, text: str) -> None:
        """A line for the reader."""
        self.lines.append(f"\t; {text}")

    def dual(self, first: Sequence[Operand], second: Sequence[Operand]) -> None:
        """A pair, each half as (mnemonic, result, sources...). Raises ArgumentError where it breaks a rule."""
        x, y = _half(first), _half(second)
        broken = why_illegal(x, y, rules_of(self.gpu))
        if uses(x, 32).writes_v & uses(y, 32).reads_v:
            broken.append(f"the second half reads {first[1]}, which the first half writes")
        if broken:
            raise ArgumentError(f"'{x.text} :: {y.text}' cannot issue as one: {'; '.join(broken)}")
        self.lines.append(f"\t{x.text} :: {y.text}")

    def clear(self, registers: Sequence[Register]) -> None:
        """Zero single vector registers, two at a time where their numbers allow it."""
        even = [r for r in registers if r.index % 2 == 0]
        odd = [r for r in registers if r.index % 2]
        while even and odd:
            self.dual(("v_dual_mov_b32", even.pop(0), 0), ("v_dual_mov_b32", odd.pop(0), 0))
        for register in even + odd:
            self.emit("v_mov_b32", register, 0)

    def wait(self, *, loads: int | None = None, lds: int | None = None, scalar: bool = False) -> None:
        """Wait until at most so many global loads and LDS operations are open, and all scalar loads are done."""
        if self.gpu.major == 11:
            counters = [] if loads is None else [f"vmcnt({loads})"]
            if lds is not None or scalar:
                counters.append(f"lgkmcnt({0 if scalar else lds})")
            self.emit("s_waitcnt", " ".join(counters))
            return
        for name, count in (("loadcnt", loads), ("dscnt", lds), ("kmcnt", 0 if scalar else None)):
            if count is not None:
                self.emit(f"s_wait_{name}", f"0x{count:x}")

    def barrier(self) -> None:
        """Wait until every wave of the workgroup is here."""
        if self.gpu.major == 11:
            self.emit("s_barrier")
        else:
            self.emit("s_barrier_signal", -1)
            self.emit("s_barrier_wait", -1)

    def settle(self) -> None:
        """RDNA 4: a scalar register that vector instructions wrote or read is used by scalar ones from here on."""
        if self.gpu.major == 12:
            self.emit("s_wait_alu", "depctr_va_sdst(0) depctr_va_vcc(0) depctr_sa_sdst(0)")

    def add64(self, result: Register, x: Register, low: Operand, high: Operand = 0) -> None:
        """result = x + low + 2**32 high, scalar pairs; `low` counts without sign."""
        self.emit(self.spell("s_add_u32"), result[0], x[0], low)
        self.emit(self.spell("s_addc_u32"), result[1], x[1], high)

    def add64_vector(self, result: Register, x: Register, low: Operand) -> None:
        """result = x + low per lane, vector pairs; `low` counts without sign."""
        self.emit("v_add_co_u32", result[0], "vcc_lo", x[0], low)
        self.emit("v_add_co_ci_u32_e32", result[1], "vcc_lo", 0, x[1], "vcc_lo")

    # -- control flow --------------------------------------------------------------------------------------------------

    def new_label(self) -> str:
        """A name for a place that is still to come."""
        self._labels += 1
        return f".L{self.kernel}_{self._labels}"

    def place(self, label: str) -> None:
        """The next instruction is where `label` leads."""
        self.lines.append(f"{label}:")

    @contextmanager
    def loop(self, counter: Register) -> Iterator[None]:
        """What is written inside runs `counter` times, at least once; the counter ends at 0."""
        label = self.new_label()
        self.place(label)
        yield
        self.emit(self.spell("s_sub_i32"), counter, counter, 1)
        self.emit("s_cmp_lg_u32", counter, 0)
        self.emit("s_cbranch_scc1", label)

    def end(self) -> None:
        """The wave is done; its registers go back at once."""
        self.emit("s_nop", 0)
        self.emit("s_sendmsg", "sendmsg(MSG_DEALLOC_VGPRS)")
        self.emit("s_endpgm")

    # -- the text ------------------------------------------------------------------------------------------------------

    def offset_of(self, name: str) -> int:
        """Where an argument lies, in bytes from `kernarg`."""
        for argument, _, offset in self._places():
            if argument == name:
                return offset
        known = ", ".join(argument for argument, _ in self.arguments) or "none"
        raise ArgumentError(f"argument {name}: {self.kernel} has no such argument; it has {known}")

    def _places(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        for name, kind in self.arguments:
            size = _KINDS[kind]
            at = -(-at // size) * size
            yield name, kind, at
            at += size

    def text(self) -> str:
        """The whole file: code, kernel descriptor, metadata."""
        code = "\n".join(self.lines)
        end = f".L{self.kernel}_end"
        directives = "\n".join(f"\t\t.amdhsa_{name} {value}" for name, value in self._descriptor(end).items())
        # Instruction fetch runs ahead of the last instruction: LLVM pads the same way.
        padding = "\t.p2alignl 7, 0xbf9f0000\n\t.fill 48, 4, 0xbf9f0000"
        return (
            f'\t.amdgcn_target "amdgcn-amd-amdhsa--{self.gpu.name}"\n\t.amdhsa_code_object_version 5\n\t.text\n'
            f"\t.globl {self.kernel}\n\t.p2align 8\n\t.type {self.kernel},@function\n{self.kernel}:\n{code}\n{end}:\n"
            f"\t.size {self.kernel}, {end}-{self.kernel}\n{padding}\n"
            f'\t.section .rodata,"a",@progbits\n\t.p2align 6\n\t.amdhsa_kernel {self.kernel}\n{directives}\n'
            f"\t.end_amdhsa_kernel\n\t.text\n\t.amdgpu_metadata\n{self._metadata()}\n\t.end_amdgpu_metadata\n"
        )

    @property
    def kernarg_bytes(self) -> int:
        """Size of the argument block, a multiple of 8."""
        return -(-max((at + _KINDS[kind] for _, kind, at in self._places()), default=0) // 8) * 8

    def _descriptor(self, end: str) -> dict[str, int | str]:
        values: dict[str, int | str] = {
            "group_segment_fixed_size": self.lds_bytes,
            "private_segment_fixed_size": 0,
            "kernarg_size": self.kernarg_bytes,
            "user_sgpr_count": _USER_SGPRS,
            "user_sgpr_kernarg_segment_ptr": 1,
            "wavefront_size32": 1,
            "system_sgpr_workgroup_id_x": 1,
            "system_sgpr_workgroup_id_y": 1,
            "system_sgpr_workgroup_id_z": 0,
            "system_vgpr_workitem_id": 0,
            "next_free_vgpr": self._most["v"],
            "next_free_sgpr": self._most["s"],
            "reserve_vcc": 1,
            "float_denorm_mode_32": 3,
            "float_denorm_mode_16_64": 3,
            "workgroup_processor_mode": int(not self.cu_mode),
            "memory_ordered": 1,
            "forward_progress": 1,
            "inst_pref_size": self._prefetched_lines(),
        }
        if self.gpu.major == 11 and not self.gpu.is_rdna_4m:  # which lost both modes, as RDNA 4 did
            values |= {"dx10_clamp": 1, "ieee_mode": 1}
        return values

    def _prefetched_lines(self) -> int:
        """Cache lines of 128 bytes that are fetched before the first wave starts; no instruction is above 12 bytes."""
        lines = sum(line.startswith("\t") for line in self.lines) * 8 // 128
        return min(lines, 63 if self.gpu.major == 11 else 255)

    def _metadata(self) -> str:
        arguments = "".join(
            f"\n      - .name: {name}\n        .offset: {at}\n        .size: {_KINDS[kind]}\n        .value_kind: "
            + ("global_buffer\n        .address_space: global" if kind == "pointer" else "by_value")
            for name, kind, at in self._places()
        )
        arguments = arguments or " []"
        facts = {
            ".group_segment_fixed_size": self.lds_bytes,
            ".kernarg_segment_align": 8,
            ".kernarg_segment_size": self.kernarg_bytes,
            ".max_flat_workgroup_size": self.threads,
            ".name": self.kernel,
            ".private_segment_fixed_size": 0,
            ".sgpr_count": self._most["s"] + 2,
            ".sgpr_spill_count": 0,
            ".symbol": f"{self.kernel}.kd",
            ".vgpr_count": self._most["v"],
            ".vgpr_spill_count": 0,
            ".wavefront_size": 32,
            ".workgroup_processor_mode": int(not self.cu_mode),
        }
        entries = "\n".join(f"    {key}: {value}" for key, value in facts.items())
        return (
            f"---\namdhsa.kernels:\n  - .args:{arguments}\n{entries}\n"
            f"amdhsa.target: amdgcn-amd-amdhsa--{self.gpu.name}\namdhsa.version:\n  - 1\n  - 2\n..."
        )
