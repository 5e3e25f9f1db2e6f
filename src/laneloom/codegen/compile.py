"""Triton and Gluon kernels to CodeObjects for any GPU of the table, on a machine with no GPU."""

from __future__ import annotations

import contextlib
import difflib
import errno
import inspect
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from ..errors import ArgumentError, CompileError
from ..gpu import Gpu, get_gpu
from . import cache, versions
from .code_object import CodeObject, from_amdgcn, from_cubin
from .diagnostics import COMPILER_LOCK, captured_stderr, captured_stdout, explain_triton_error, llvm_errors

#: of a cache in a folder that cannot be written
_NOT_WRITTEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR)
_DIVISIBLE_BY_16 = ["tt.divisibility", 16]
_SPANS_LESS_THAN_2_GIB = ["tt.pointer_range", 32]


def compile_kernel(
    kernel: Any,
    *,
    gpu: str | Gpu,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    num_warps: int = 4,
    attrs: Collection[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> CodeObject:
    """Compile a @triton.jit or @gluon.jit function to the machine code of `gpu`; cached on disk.

    signature: Triton's type of every argument that is passed at launch: "*fp16", "i32", "fp32", or for Gluon
    on
        NVIDIA a tensor descriptor such as "tensordesc<bf16[128, 64],NVMMASharedLayout(...)>".
    constants: the value of every other argument: ints, floats, strings, dtypes, layouts, jit functions,
    tuples, None.
        An argument in neither takes its default value.
    attrs: names of the arguments whose value is divisible by 16; None means every pointer and every 32- and
    64-bit
        integer, as for ordinary tensors with sizes that are multiples of 16.
    options: the backend's compile options (num_stages, waves_per_eu, maxnreg, ...), and
        buffer_ops: AMD, @triton.jit only. True (Triton's own default) promises that every pointer spans less
        than 2 GiB and lets Triton use buffer_load and buffer_store; False keeps to global_load and
        global_store.

    Raises ArgumentError for a wrong argument name or option, CompileError with the compiler's message
    otherwise. Multiplications and additions fuse to FMA unless options say otherwise or, of a kernel that is
    not laneloom's own, TRITON_DEFAULT_FP_FUSION.
    """
    versions.check_triton()
    gpu = get_gpu(gpu)
    versions.check_gpu(gpu)
    name = _check_kernel(kernel)
    settings = dict(options or {})
    buffer_ops = bool(settings.pop("buffer_ops", True))
    target = _target(gpu)
    _check_options(settings, target)
    types, values = _bind_arguments(kernel, name, signature, constants)
    for argument, value in values.items():
        versions.check_layout(argument, value, gpu)
    divisible = _divisible(types, attrs)
    described = _describe(values)
    key = None
    if described is not None:
        # Triton's key of a jit function covers the sources of everything that it calls.
        key = cache.make_key(
            "kernel", name, kernel.cache_key, kernel.is_gluon(), gpu.name, list(types.items()), described,
            sorted(divisible), num_warps, _describe(settings), buffer_ops,
        )  # fmt: skip
    return cache.fetch(
        key,
        lambda: _compile(
            kernel, name, gpu, target, types, values, divisible, num_warps, settings, buffer_ops
        ),
    )


def _compile(
    kernel: Any,
    name: str,
    gpu: Gpu,
    target: GPUTarget,
    types: dict[str, Any],
    values: dict[str, Any],
    divisible: set[str],
    num_warps: int,
    settings: dict[str, Any],
    buffer_ops: bool,
) -> CodeObject:
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for position, (argument, kind) in enumerate(types.items()):
        facts = [_DIVISIBLE_BY_16] if argument in divisible else []
        if gpu.vendor == "amd":
            known = isinstance(kind, str) and not kernel.params[position].do_not_specialize
            if buffer_ops and known and kind.startswith("*"):
                facts = [*facts, _SPANS_LESS_THAN_2_GIB]
            # Of none too the JIT writes that there are none: so it finds in Triton's cache what was compiled here.
            if kind == "constexpr" or (known and kind.startswith(("*", "i", "u"))):
                attributes[(position,)] = facts
        if facts:
            attributes[(position,)] = facts
    source_class = versions.GluonASTSource if kernel.is_gluon() else ASTSource
    backend_options = {
        "enable_fp_fusion": _is_own(kernel) or versions.default_fp_fusion(),
        **settings,
        "num_warps": num_warps,
        "arch": target.arch if gpu.vendor == "amd" else f"sm{target.arch}",
    }

    def run() -> Any:
        return triton.compile(
            source_class(kernel, types, values, attributes), target=target, options=backend_options
        )

    with COMPILER_LOCK, versions.knob_values(buffer_ops=buffer_ops):
        try:
            with captured_stdout() as printed, llvm_errors() as unnoticed:
                compiled = run()
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:  # Triton's cache
                raise
            diagnostics = _diagnose(run) if _speaks_on_stderr(error) else ""
            message = explain_triton_error(error, diagnostics)
            raise CompileError(f"{name} does not compile for {gpu.name}: {message}") from error
    if unnoticed:
        raise CompileError(
            f"{name} does not compile for {gpu.name}: LLVM left out what it could not generate, because it "
            f"{'; '.join(dict.fromkeys(unnoticed))}"
        )
    version = versions.triton_version()
    if gpu.vendor == "nvidia":
        return from_cubin(
            compiled.asm["ptx"],
            compiled.asm["cubin"],
            gpu,
            triton_version=version,
            num_warps=compiled.metadata.num_warps,
            lds_bytes=compiled.metadata.shared,
            ptxas_log="".join(printed),
        )
    return from_amdgcn(
        compiled.asm["amdgcn"],
        compiled.asm["hsaco"],
        gpu,
        kernel=compiled.metadata.name,
        num_warps=compiled.metadata.num_warps,
        lds_bytes=compiled.metadata.shared,
        triton_version=version,
        argument_names=_launched_names(types),
    )


def _check_kernel(kernel: Any) -> str:
    if not versions.is_jit_function(kernel):
        inner = getattr(kernel, "fn", None)
        if versions.is_jit_function(inner):
            raise ArgumentError(
                f"kernel is wrapped in {type(kernel).__name__}: pass the jit function below it (kernel.fn)"
            )
        raise ArgumentError(
            f"kernel must be a @triton.jit or @gluon.jit function, not {type(kernel).__name__} "
            "(with TRITON_INTERPRET=1 the decorator makes none)"
        )
    return kernel.__name__


def _is_own(kernel: Any) -> bool:
    """Whether `kernel` is this package's, all of whose launches pass enable_fp_fusion=True."""
    return str(kernel.fn.__module__).partition(".")[0] == __name__.partition(".")[0]


def _target(gpu: Gpu) -> GPUTarget:
    if gpu.vendor == "nvidia":
        return GPUTarget("cuda", int(re.sub(r"\D", "", gpu.name)), gpu.wave)
    return GPUTarget("hip", gpu.name, gpu.wave)


def _check_options(settings: Mapping[str, Any], target: GPUTarget) -> None:
    defaults: Any = make_backend(target).parse_options({"enable_fp_fusion": True})
    known = {field.name for field in fields(defaults)}
    known -= {"num_warps", "arch"}
    for option in settings:
        if option == "num_warps":
            raise ArgumentError("num_warps is an argument of its own, not one of options")
        if option not in known:
            near = difflib.get_close_matches(option, [*known, "buffer_ops"], n=3)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise ArgumentError(
                f"Triton {versions.triton_version()} has no option {option!r} for this GPU{hint}"
            )


def _bind_arguments(
    kernel: Any, name: str, signature: Mapping[str, Any], constants: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Types (constants have "constexpr") and values by name, both in the function's order."""
    parameters = kernel.signature.parameters
    for argument in (*signature, *constants):
        if argument not in parameters:
            raise ArgumentError(
                f"{name} has no argument {argument!r}; its arguments are {', '.join(parameters)}"
            )
    types: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for argument, parameter in parameters.items():
        kind = signature.get(argument, "constexpr")
        if kind != "constexpr":
            if argument in constants:
                raise ArgumentError(f"{argument} of {name} is in both signature and constants")
            _check_type(name, argument, kind)
            types[argument] = kind
            continue
        if argument in constants:
            value = constants[argument]
        elif parameter.default is not inspect.Parameter.empty:
            value = parameter.default
        else:
            raise ArgumentError(f"argument {argument!r} of {name} is in neither signature nor constants")
        types[argument], values[argument] = "constexpr", _unwrap(value)
    return types, values


def _check_type(name: str, argument: str, kind: Any) -> None:
    if not isinstance(kind, str) or kind.startswith("tensordesc"):
        return  # tuples and descriptors hold types inside; Triton's own parser judges them
    try:
        triton.language.str_to_ty(kind, None)
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"argument {argument!r} of {name} has the unknown type {kind!r}; "
            "types read like '*fp16', 'i32', 'fp32'"
        ) from error


def _unwrap(value: Any) -> Any:
    return value.value if isinstance(value, triton.language.constexpr) else value


def _divisible(types: Mapping[str, Any], attrs: Collection[str] | None) -> set[str]:
    if attrs is None:
        wide = ("i32", "i64", "u32", "u64")
        return {
            n for n, kind in types.items() if isinstance(kind, str) and (kind.startswith("*") or kind in wide)
        }
    for argument in attrs:
        if types.get(argument, "constexpr") == "constexpr":
            raise ArgumentError(f"attrs names {argument!r}, which is not an argument of the signature")
    return set(attrs)


def _launched_names(types: Mapping[str, Any]) -> list[str]:
    """Names of the arguments in the kernel argument segment, as far as each takes exactly one place there."""
    names: list[str] = []
    for argument, kind in types.items():
        if not isinstance(kind, str) or kind.startswith("tensordesc"):
            return names
        if kind != "constexpr":
            names.append(argument)
    return names


def _describe(value: Any) -> str | None:
    """A text that is the same for equal constants in every process; None where an object has no such text."""
    if versions.is_jit_function(value):
        return f"jit:{value.cache_key}"
    if isinstance(value, Mapping):
        parts = [_describe(item) for pair in sorted(value.items()) for item in pair]
    elif isinstance(value, list | tuple):
        parts = [_describe(item) for item in value]
    else:
        text = repr(value)
        # The default repr holds the object's address, which says nothing about its value.
        return None if re.search(r" at 0x[0-9a-f]+>", text) else f"{type(value).__name__}:{text}"
    if any(part is None for part in parts):
        return None
    return f"{type(value).__name__}({','.join(p for p in parts if p is not None)})"


def _speaks_on_stderr(error: BaseException) -> bool:
    """Whether MLIR's passes failed: they raise "PassManager::run failed" and print the reason to
    descriptor 2.
    """
    return isinstance(error, RuntimeError) and "run failed" in str(error)


def _diagnose(run: Any) -> str:
    """Run the failing compilation once more and return what it prints."""
    with captured_stderr() as printed, captured_stdout(), contextlib.suppress(RuntimeError):
        run()
    return printed[0]
