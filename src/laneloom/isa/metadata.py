"""The metadata that LLVM writes into AMDGCN text: the YAML document between `.amdgpu_metadata` and its end.

Source: LLVM "User Guide for AMDGPU Backend", code object V5 metadata (`amdhsa.kernels`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError

_BLOCK = re.compile(r"^\s*\.amdgpu_metadata\s*$(.*?)^\s*\.end_amdgpu_metadata\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class ArgumentMetadata:
    """One kernel argument as it lies in the kernel argument segment; `name` is None where the text has
    none.
    """

    offset: int
    size: int
    kind: str  #: the metadata's value_kind: "global_buffer", "by_value", "hidden_block_count_x", ...
    name: str | None = None
    pointee_align: int = 16  #: of a pointer to LDS that the launch allocates


@dataclass(frozen=True)
class KernelMetadata:
    """One entry of `amdhsa.kernels`. Bytes and register counts are the compiler's."""

    name: str
    arguments: tuple[ArgumentMetadata, ...]
    kernarg_bytes: int
    lds_bytes: int  #: fixed LDS; Triton's kernels allocate theirs at launch and have 0 here
    scratch_bytes: int
    vgprs: int  #: on CDNA 2 and later the sum of architectural and accumulation registers
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    wave: int
    max_workgroup_size: int  #: threads
    workgroup_processor_mode: bool  #: RDNA: the waves of a workgroup share both CUs of a WGP
    workgroup_size: tuple[int, ...] | None = None  #: the only one that the kernel admits, where it says so
    cluster: tuple[int, ...] | None = None  #: workgroups of a cluster (CDNA 5), where the code is made for one size


def parse_metadata(asm: str) -> tuple[KernelMetadata, ...]:
    """Every kernel of the text's metadata block, in its order; empty where the text has no such block.

    Raises ArgumentError for a block that is not what LLVM's guide describes.
    """
    block = _BLOCK.search(asm)
    if block is None:
        return ()
    lines = [re.sub(r"(?:^|\s)#.*", "", line).rstrip() for line in block[1].splitlines()]
    lines = [line for line in lines if line.strip() and line.strip() not in ("---", "...")]
    try:
        document = _parse_block(lines, 0, 0)[0] if lines else {}
        kernels = document.get("amdhsa.kernels") or () if isinstance(document, dict) else ()
        return tuple(_kernel(entry) for entry in kernels)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = f": an entry has no {error}" if isinstance(error, KeyError) else ""
        raise ArgumentError(f"the metadata of the kernels (.amdgpu_metadata) is broken{why}") from error


def select_kernel(asm: str, kernel: str | None = None) -> KernelMetadata:
    """The metadata of `kernel`, or of the only kernel when none is named.

    Raises ArgumentError when the text has no metadata, no such kernel, or several and none is named.
    """
    kernels = list(parse_metadata(asm))
    names = ", ".join(k.name for k in kernels)
    if not kernels:
        raise ArgumentError(
            "the assembly has no .amdgpu_metadata block, so its kernels and arguments are unknown (laneloom run and "
            "laneloom isa do without)"
        )
    if kernel is None:
        if len(kernels) > 1:
            raise ArgumentError(f"the assembly holds {len(kernels)} kernels ({names}): name one with kernel (--kernel)")
        return kernels[0]
    for found in kernels:
        if found.name == kernel:
            return found
    raise ArgumentError(f"the assembly has no kernel {kernel!r}; it holds {names}")


def _kernel(entry: dict[str, Any]) -> KernelMetadata:
    arguments = tuple(
        ArgumentMetadata(
            int(a[".offset"]), int(a[".size"]), str(a[".value_kind"]), a.get(".name"), int(a.get(".pointee_align", 16))
        )
        for a in entry.get(".args") or ()
    )
    required = entry.get(".reqd_workgroup_size")
    if (wave := int(entry.get(".wavefront_size", 64))) not in (32, 64):
        raise ValueError(wave)
    return KernelMetadata(
        name=str(entry[".name"]),
        arguments=arguments,
        kernarg_bytes=int(entry.get(".kernarg_segment_size", 0)),
        lds_bytes=int(entry.get(".group_segment_fixed_size", 0)),
        scratch_bytes=int(entry.get(".private_segment_fixed_size", 0)),
        vgprs=int(entry.get(".vgpr_count", 0)),
        agprs=int(entry.get(".agpr_count", 0)),
        sgprs=int(entry.get(".sgpr_count", 0)),
        vgpr_spills=int(entry.get(".vgpr_spill_count", 0)),
        sgpr_spills=int(entry.get(".sgpr_spill_count", 0)),
        wave=wave,
        max_workgroup_size=int(entry.get(".max_flat_workgroup_size", 1024)),
        workgroup_processor_mode=bool(int(entry.get(".workgroup_processor_mode", 0))),
        workgroup_size=tuple(int(n) for n in required) if required else None,
        cluster=_cluster(entry.get(".cluster_dims")),
    )


def _cluster(dims: Sequence[int] | None) -> tuple[int, ...] | None:
    """LLVM writes 0, 0, 0 for none, and 1024, 1024, 1024 where the launch says how large."""
    size = tuple(int(n) for n in dims or ())
    return size if size and min(size) > 0 and max(size) < 1024 else None


def _parse_block(lines: Sequence[str], at: int, indent: int) -> tuple[Any, int]:
    """The map or list that starts at line `at` with `indent` columns, and the line after it.

    This is the part of YAML that LLVM prints and people write: block maps, block lists, flow lists and maps, plain and
    quoted scalars, comments.
    """
    if lines[at].lstrip().startswith("- "):
        return _parse_list(lines, at, indent)
    mapping: dict[str, Any] = {}
    while at < len(lines) and _indent(lines[at]) == indent and not lines[at].lstrip().startswith("- "):
        key, _, rest = lines[at].strip().partition(":")
        at += 1
        if rest.strip():
            mapping[key] = _scalar(rest.strip())
            continue
        # A list may stand at its key's own column; a map has to be indented further.
        deeper = at < len(lines) and (
            _indent(lines[at]) > indent or (_indent(lines[at]) == indent and lines[at].lstrip().startswith("- "))
        )
        if deeper:
            mapping[key], at = _parse_block(lines, at, _indent(lines[at]))
        else:
            mapping[key] = None
    return mapping, at


def _parse_list(lines: Sequence[str], at: int, indent: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    lines = list(lines)
    while at < len(lines) and _indent(lines[at]) == indent and lines[at].lstrip().startswith("- "):
        body = lines[at].lstrip()[2:]
        inner = indent + 2 + (len(body) - len(body.lstrip()))
        if re.match(r"[\w.]+:(\s|$)", body.lstrip()):
            lines[at] = " " * inner + body.lstrip()
            item, at = _parse_block(lines, at, inner)
        else:
            item, at = _scalar(body.strip()), at + 1
        items.append(item)
    return items, at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _parts(text: str) -> list[str]:
    """What stands between the commas of a flow list or map, those of what is inside it aside."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "[{") - (c in "]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def _scalar(text: str) -> Any:
    if text.startswith("!"):  # LLVM tags a name that it would read as a number itself: `!str inf`
        kind, _, text = text.partition(" ")
        found = _scalar(text.strip())
        return text.strip() if kind.endswith("str") and not isinstance(found, str) else found
    if text.startswith("[") and text.endswith("]"):
        return [_scalar(part) for part in _parts(text[1:-1])]
    if text.startswith("{") and text.endswith("}"):
        pairs = (part.partition(":") for part in _parts(text[1:-1]))
        return {str(_scalar(key.strip())): _scalar(value.strip()) for key, _, value in pairs}
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text, 0)
    except ValueError:
        return text
