"""Calls from the kernel to the host: `printf` (tl.device_print), `fprintf(stderr)` and traps (tl.device_assert).

A wave takes a packet from a free stack, writes 64 bytes per lane, pushes it on the ready stack, rings a doorbell by
`s_sendmsg(MSG_INTERRUPT)` and waits until the packet's ready bit clears. Layout of the buffer and of printf's messages:
ROCm device libraries, `ockl/src/hostcall_impl.cl` and `ockl/src/services.cl`.

    buffer   0 headers  8 payloads  16 doorbell  24 free stack  32 ready stack  40 index mask
    header   0 next  8 lane mask  16 service  20 control (bit 0: ready)
    doorbell 8 value  16 mailbox  24 event id
"""

from __future__ import annotations

import re
import struct
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..errors import EmulationError, TrapError
from ..isa.flow import Flow
from ..isa.parse import Instruction
from .alu import special
from .memory import AccessFault, Region
from .state import Waves

PACKETS = 4096  # more than the waves that can be alive at once, as the protocol demands
_PRINTF = 2  # the service that printf and fprintf use
_HEADER, _PAYLOAD = 24, 4096
_BEGIN, _END = 1, 2  # flags of a message; bits 5 to 7 count its words, bits 8 and up are its number
_SPEC = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d+|\*)?(?P<point>\.(?:\d+|\*)?)?(?P<size>hh|h|ll|l|z|j|t)?(?P<kind>.)"
)
_WIDTHS = {"hh": 8, "h": 16, None: 32}


class Hostcall:
    """The buffer behind a kernel's `hidden_hostcall_buffer` argument, and the host's end of it."""

    def __init__(self) -> None:
        self._memory = np.zeros(64 + 64 + PACKETS * (_HEADER + _PAYLOAD), np.uint8)
        base = self.address = self._memory.ctypes.data
        self._headers = 128
        self._payloads = self._headers + PACKETS * _HEADER
        self._words = self._memory.view(np.uint64)
        # A packet's name is its index plus a count in the upper bits, which grows with each reuse; 0 ends a stack.
        self._words[:6] = (base + self._headers, base + self._payloads, base + 64, PACKETS - 1, 0, PACKETS - 1)
        self._words[8:12] = (0, 0, base + 64 + 32, 1)  # doorbell; its mailbox lies behind it
        headers = self._words[self._headers // 8 : self._payloads // 8].reshape(PACKETS, 3)
        headers[:, 0] = np.maximum(np.arange(PACKETS) - 1, 0)
        headers[0, 0] = 0
        headers[1, 0] = PACKETS  # another name of packet 0: its own would end the stack
        self._messages: dict[int, list[int]] = {}
        self._count = 0
        self._errors: Counter[str] = Counter()  #: what lanes sent to stderr, and how many of them did
        self.complaint = ""  #: the last line sent to stderr: what an assertion says before it traps

    @property
    def region(self) -> Region:
        """The memory that the kernel may touch."""
        return Region("hostcall buffer", self.address, self._memory.nbytes, self._memory, ours=True)

    def serve(self) -> None:
        """Handle every packet on the ready stack, oldest first."""
        words = self._words
        name, words[4] = int(words[4]), 0
        chain = []
        while name:
            header = self._headers // 8 + 3 * (name & (PACKETS - 1))
            chain.append((header, self._payloads // 8 + (name & (PACKETS - 1)) * (_PAYLOAD // 8)))
            name = int(words[header])
        for header, payload in reversed(chain):
            service = int(words[header + 2]) & 0xFFFFFFFF
            if service != _PRINTF:
                raise EmulationError(f"the kernel asks the host for service {service}; only printf (2) is served")
            lanes = int(words[header + 1])
            for lane in range(64):
                if lanes >> lane & 1:
                    at = payload + 8 * lane
                    self._append(words[at : at + 8])
            words[header + 2] = np.uint64(int(words[header + 2]) & ~(1 << 32))  # ready bit: the answer is there
        for text, count in self._errors.items():  # an assertion's, of every lane where it does not hold
            sys.stderr.write(text if count == 1 else f"{text.rstrip()} ({count} lanes)\n")
        self._errors.clear()

    def _append(self, slot: np.ndarray) -> None:
        """One lane's part of a message."""
        words = [int(w) for w in slot]
        descriptor = words[0]
        if descriptor & _BEGIN:
            self._count += 1
            number = self._count
            self._messages[number] = []
        else:
            number = descriptor >> 8
        message = self._messages[number]
        message += words[1 : 1 + (descriptor >> 5 & 7)]
        if descriptor & _END:
            del self._messages[number]
            text = format_printf(message[1:])
            if message[0] & 1:
                self._errors[text] += 1
                self.complaint = text.strip() or self.complaint
            else:
                sys.stdout.write(text)
            slot[0], slot[1] = len(text), 0
        else:
            slot[0] = (descriptor & 0xFF & ~_BEGIN) | number << 8


def format_printf(words: Sequence[int]) -> str:
    """C's printf on 64-bit words: the format's bytes (padded to a word), then its arguments, strings inline."""
    at = 0

    def string() -> str:
        nonlocal at
        raw = bytearray()
        while at < len(words) and 0 not in raw:
            raw += words[at].to_bytes(8, "little")
            at += 1
        return raw.partition(b"\0")[0].decode(errors="replace")

    def word() -> int:
        nonlocal at
        at += 1
        return words[at - 1] if at <= len(words) else 0

    def convert(match: re.Match) -> str:
        kind = match["kind"]
        if kind == "%":
            return "%"
        width = str(_signed(word(), 32)) if match["width"] == "*" else match["width"] or ""
        point = f".{_signed(word(), 32)}" if match["point"] == ".*" else match["point"] or ""
        layout = f"%{match['flags']}{width}{point}"
        if kind == "s":
            return (layout + "s") % string()
        if kind == "c":
            return (layout + "c") % (word() & 255)
        if kind == "p":
            return f"%{width}s" % hex(word())
        if kind in "di":
            return (layout + "d") % _signed(word(), _WIDTHS.get(match["size"], 64))
        if kind in "uoxX":
            value = word() & ((1 << _WIDTHS.get(match["size"], 64)) - 1)
            text = (layout + ("d" if kind == "u" else kind)) % value
            return text.replace("0o", "0") if kind == "o" else text  # Python marks octal in a way of its own
        if kind in "eEfFgG":
            return (layout + kind) % struct.unpack("<d", word().to_bytes(8, "little"))[0]
        return match[0]

    return _SPEC.sub(convert, string())


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Trap(AccessFault):
    """A wave stopped itself."""

    error = TrapError


def _send_message(ins: Instruction, target):
    """`s_sendmsg`: an interrupt rings the host's doorbell; the other messages change no result."""
    if "MSG_INTERRUPT" not in ins.text:
        return lambda g: None

    def interrupt(g: Waves) -> None:
        if g.memory.host is not None:
            g.memory.host.serve()
            g.memory.version += 1

    return interrupt


def _trap(ins: Instruction, target):
    if ins.flow is Flow.NEXT:  # llvm.debugtrap
        return lambda g: None

    def stop(g: Waves) -> None:
        host = g.memory.host
        raise Trap((host and host.complaint) or "the kernel trapped", 0, 0)

    return stop


def _halt(ins: Instruction, target):
    """A wave that stops for good: only a debugger would let it go on."""
    if ins.name != "s_sendmsghalt" and ins.operands[0].value == 0:
        return lambda g: None

    def stop(g: Waves) -> None:
        host = g.memory.host
        raise Trap((host and host.complaint) or f"{ins.name} stops the wave", 0, 0)

    return stop


special("s_sendmsg", _send_message)
special("s_sethalt s_setkill s_sendmsghalt", _halt)
special("s_trap", _trap)
