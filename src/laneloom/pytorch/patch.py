"""`laneloom.patched`: torch's products and attention go to laneloom where it was measured to win.

A TorchFunctionMode: it nests, belongs to one thread, and torch.compile traces through it. While a graph is traced, each
call is decided once, at trace time, by the sizes at hand; the graph keeps that route for other sizes.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode
from torch.utils._contextlib import _wrap_generator
from triton.runtime import driver

from ..errors import ArgumentError, LaneloomError
from ..ops.operators import AUTOCAST_DEVICES, any_autocast, is_watched
from ..ops.warm import MOST_CALLS, keep, key_of
from .routes import ATTENTION, GRADIENTS, MULTI_HEAD_BODY, OTHERS, ROUTES, Decided, Kept, Met, Route
from .routing import (
    Decision,
    Request,
    allows_tf32,
    attention_request,
    decide,
    grouped_request,
    known,
    product_request,
    scaled_request,
)


@dataclass(frozen=True)
class Entry:
    """Calls of one function with one problem."""

    function: str
    problem: str
    routed: bool
    reason: str
    calls: int  #: how often; 0 for calls inside a compiled graph, which are decided once


class Report:
    """What a `patched` context did: `entries`, and a table as text."""

    def __init__(self, entries: Sequence[Entry]):
        self.entries = tuple(entries)

    @property
    def routed(self) -> int:
        """Eager calls that laneloom took."""
        return sum(entry.calls for entry in self.entries if entry.routed)

    @property
    def kept(self) -> int:
        """Eager calls that stayed torch's."""
        return sum(entry.calls for entry in self.entries if not entry.routed)

    def __str__(self) -> str:
        if not self.entries:
            return "patched: no product and no attention was called"
        ordered = sorted(self.entries, key=lambda e: (-e.calls, e.function, e.problem))
        rows = [("function", "problem", "calls", "runs on", "because")]
        rows += [
            (e.function, e.problem, str(e.calls or "compiled"), "laneloom" if e.routed else "torch", e.reason)
            for e in ordered
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]]) for row in rows]
        compiled = [e.routed for e in ordered if not e.calls]
        last = f"{self.routed} calls ran on laneloom, {self.kept} on torch"
        if compiled:
            last += f"; in compiled graphs {sum(compiled)} and {len(compiled) - sum(compiled)}"
        return "\n".join([*lines, last])


@dataclass(frozen=True)
class Stays:
    """A call that torch keeps."""

    decided: Decided
    weight: Callable[[], Any] | None  #: gives the parameter of which it is, while that lives; None where any is meant


@dataclass(frozen=True)
class _Memory:
    """Decisions that were made, while what they rest on stays what it is."""

    rests_on: tuple[Any, ...]
    decisions: dict[tuple[Any, ...], Decided] = field(default_factory=dict)
    #: of calls that nothing else looks at
    met: dict[tuple[Any, ...], Met] = field(default_factory=dict)
    #: of those that stay torch's, found by less: most calls of a model that its host limits
    kept: dict[tuple[Any, ...], Stays] = field(default_factory=dict)


_memories: dict[tuple[bool, bool], _Memory] = {}  #: by `always` and `captured`


def _same(x: tuple[Any, ...], y: tuple[Any, ...]) -> bool:
    return len(x) == len(y) and all(a is b for a, b in zip(x, y, strict=True))


class _Active(threading.local):
    def __init__(self) -> None:
        self.modes: list[Patched] = []


_active = _Active()


def innermost() -> Patched | None:
    """The context that decides in this thread; None where one was entered in code that is being traced."""
    return _active.modes[-1] if _active.modes else None


@contextmanager
def _first(mode: Patched) -> Iterator[None]:
    """In a thread of autograd's, which torch gave its modes, but not what is kept here: `mode` saw a call first."""
    _active.modes.append(mode)
    try:
        yield
    finally:
        _active.modes.pop()


class Patched(TorchFunctionMode):
    """What `patched` returns: a context, a decorator, and the report of what it did."""

    looks_at_operators = False  #: of torch.ops.laneloom, which then go past torch's dispatcher

    def __init__(self, *, always: bool = False, captured: bool = False):
        super().__init__()
        for name, flag in (("always", always), ("captured", captured)):
            if not isinstance(flag, bool):
                raise ArgumentError(f"{name}: expected True or False, got {flag!r}")
        self.always, self.captured = always, captured
        self._counts: Counter[Decided] = Counter()
        self._stayed: list[Decided] = []  #: to be counted: to look at a table's keys in each call takes long
        self._traced: set[Decided] = set()
        self._memory: _Memory | None = None

    def __enter__(self) -> Patched:
        super().__enter__()
        _active.modes.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        modes = _active.modes
        del modes[max(i for i, mode in enumerate(modes) if mode is self)]  # the last: it may be in there twice
        super().__exit__(*error)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            name = getattr(function, "__name__", "it")
            raise ArgumentError(f"patched: {name} is a coroutine, others run in its thread meanwhile; enter it inside")
        if inspect.isgeneratorfunction(function):  # in force while it runs, not between
            return _wrap_generator(lambda: self, function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        route = ROUTES.get(func)
        if route is not None:
            return self._routed(func, route, args, kwargs or {})
        if is_compiling() or func in OTHERS:  # a compiler does not find in tables all that is in them
            return self._other(func, types, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)

    def _routed(self, func: Any, route: Route, args: Any, kwargs: Any) -> Any:
        if is_compiling() or route.kept is None:
            return route.run(self, func, args, kwargs)
        modes = _active.modes
        if not modes:
            with _first(self):
                return self._routed(func, route, args, kwargs)
        memory, brief = self._memory, None
        if memory is not None and modes[-1] is self and not any_autocast():
            brief = route.kept.brief(func, args, kwargs)
            stays = None if brief is None else memory.kept.get(brief)
            if stays is not None and (stays.weight is None or stays.weight() is args[1]):
                self._stayed.append(stays.decided)
                if len(self._stayed) > MOST_CALLS:
                    self._count_stayed()
                return func(*args, **kwargs)
        found = self._find(func, route.kept, args, kwargs)
        if found is None:
            return route.run(self, func, args, kwargs)
        (decided, run), arguments = found
        self._counts[decided] += 1
        if run is not None:
            return run(*arguments)
        if brief is not None and memory is not None and args[0].dtype is not torch.float32:  # TF32 has a say there
            weight = weakref.ref(args[1]) if type(args[1]) is torch.nn.Parameter else None
            keep(memory.kept, brief, Stays(decided, weight))
        return func(*args, **kwargs)

    def _count_stayed(self) -> None:
        self._counts.update(self._stayed)
        self._stayed.clear()

    def _other(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is F.multi_head_attention_forward:
            with self:  # its body is Python, whose products this has to see
                return MULTI_HEAD_BODY(*args, **kwargs)
        if func in GRADIENTS and all(t is torch.Tensor for t in types) and not is_compiling():
            with self:  # what checkpoints compute again has to go where it went before, or torch refuses it
                return GRADIENTS[func](*args, **kwargs)
        if func is torch.Tensor.unflatten and is_compiling():
            func = torch.unflatten  # under a mode, Dynamo does not trace the method of Tensor that wraps it
        return func(*args, **kwargs)

    def report(self) -> Report:
        """What ran where so far."""
        self._count_stayed()
        entries = [Entry(*key, calls) for key, calls in self._counts.items()]
        return Report([*entries, *(Entry(*key, 0) for key in self._traced)])

    def decide(self, function: str, x: Any, y: Any, z: Any, options: tuple[Any, ...]) -> bool:
        """Whether an eager call goes to laneloom."""
        if self is not innermost():  # an inner context has decided
            return False
        about = (_driver(), torch.is_grad_enabled(), _autocast(), forward_ad._current_level, _tf32(x))
        key = (function, options, about, _identity(x), _identity(y), _identity(z))
        decisions = (self._memory or self._remember()).decisions
        try:
            before = decisions.get(key)
        except TypeError:  # sizes that are symbols have no hash: make_fx traces
            return self.decide_traced(function, x, y, z, options)
        found = before or keep(decisions, key, self.decided(function, x, y, z, options))
        self._counts[found] += 1
        return found[2]

    def decide_traced(self, function: str, x: Any, y: Any, z: Any, options: tuple[Any, ...]) -> bool:
        """Whether a call that becomes part of a graph goes to laneloom, of tensors that have no data."""
        if self is not innermost():
            return False
        found = self.decided(function, x, y, z, options, traced=True)
        self.note_traced(found)
        return found[2]

    def note_traced(self, decided: Decided) -> None:
        """A graph holds a call that was decided so."""
        self._traced.add(decided)

    def decided(
        self, function: str, x: Any, y: Any, z: Any, options: tuple[Any, ...], *, traced: bool = False
    ) -> Decided:
        """Where a call goes, and why."""
        return decide_call(function, x, y, z, options, self.always, self.captured, traced=traced)

    def _find(self, func: Any, by: Kept, args: Any, kwargs: Any) -> tuple[Met, tuple[Any, ...]] | None:
        """What is kept of an eager call of these arguments, and those that run. None where something else looks, and of
        tensors without a key."""
        if _active.modes[-1] is not self or is_watched():
            return None
        arguments = by.arguments(args, kwargs)
        if arguments is None or not isinstance(arguments[0], torch.Tensor):
            return None
        key = key_of(arguments)
        if key is None:
            return None
        key = func, key, _tf32(arguments[0])
        kept = (self._memory or self._remember()).met
        met = kept.get(key)
        if met is None:
            met = by.meet(self, func, arguments)
            if met is None:
                return None
            keep(kept, key, met)
        return met, arguments

    def _remember(self) -> _Memory:
        """What contexts like this one have met before, as one is entered at each step of a training."""
        try:
            rests_on = known()
        except LaneloomError:
            rests_on = ()
        memory = _memories.get((self.always, self.captured))
        if memory is None or not _same(memory.rests_on, rests_on):
            memory = _memories[self.always, self.captured] = _Memory(rests_on)
        self._memory = memory
        return memory


def patched(*, always: bool = False, captured: bool = False) -> Patched:
    """Route torch's products and attention to laneloom where it wins on this GPU.

        with laneloom.patched() as p:
            loss = model(x).sum()
        print(p.report())

    Also a decorator, `@laneloom.patched()`, of functions and generators; and LANELOOM_PATCH=1 in the environment
    patches the thread that imports laneloom, and prints the report when the process ends. `python -m laneloom.pytorch
    SCRIPT` does that to any script.

    Routed: torch.matmul, torch.mm, torch.bmm, torch.addmm, their methods and the operator @, F.linear,
    F.scaled_dot_product_attention and those inside nn.MultiheadAttention; outside compiled graphs F.grouped_mm, and
    F.scaled_mm, torch._scaled_mm and F.scaled_grouped_mm with scales of tensors or rows. A call is routed if a
    schedule can do it and the measurements of this GPU say that laneloom is faster, gradients included where they are
    recorded, and the host's time to start a kernel where that is longer than the kernel. captured: the calls go into
    CUDA graphs, where the host does not count. always: route all that a schedule can do, measured or not.

    What laneloom cannot do (a mask tensor, dropout, out=, other dtypes, subclasses of tensors, forward-mode
    derivatives) goes to torch unchanged; the report says why.

    Results differ from torch's by rounding alone: both round the same FP32 sums once, added in another order. A second
    derivative of attention is computed by torch. Other threads are not patched; enter a context in each. Where the
    model has checkpoints (torch.utils.checkpoint), call backward inside the context too: they compute again then.
    """
    return Patched(always=always, captured=captured)


def patch_process() -> None:
    """Patch this thread until the process ends, and say then, on stderr, what was routed: LANELOOM_PATCH=1."""
    context = patched().__enter__()
    atexit.register(lambda: print(context.report(), file=sys.stderr))


def _driver() -> Any:
    """Triton's active driver, None where it finds none."""
    try:
        return driver.active
    except RuntimeError:
        return None


def _tf32(x: Any) -> bool:
    """Whether torch may multiply x in TF32: what else decides where FP32 goes."""
    return isinstance(x, torch.Tensor) and x.dtype is torch.float32 and allows_tf32()


def _autocast() -> Any:
    """The dtypes that autocast brings operands to, None where it is off."""
    if not any_autocast():
        return None
    return tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in AUTOCAST_DEVICES)


def _shape_text(x: torch.Tensor) -> str:
    if x.is_nested and type(x) is torch.Tensor:  # which has no shape
        return f"{x.size(0)} nested"
    return "x".join(map(str, x.shape)) or "scalar"


def _identity(x: Any) -> Any:
    """All of a tensor that a decision depends on, but for autocast."""
    if not isinstance(x, torch.Tensor):
        return x if x is None or isinstance(x, (bool, int, float, str)) else type(x)
    if x.layout != torch.strided or x.is_nested:
        return x.layout, x.is_nested
    return type(x), x.shape, x.stride(), x.device, x.dtype, x.requires_grad


def decide_call(
    function: str, x: Any, y: Any, z: Any, options: tuple[Any, ...], always: bool, captured: bool, *, traced: bool
) -> Decided:
    """Where a call goes, and why. traced: as a part of a graph."""
    request = _request(function, x, y, z, options)
    if isinstance(request, str):
        text = " ".join(_shape_text(t) for t in (x, y) if isinstance(t, torch.Tensor))
        decision = Decision(False, request)
    else:
        text = request.text
        decision = decide(request, x.device.type, always=always, captured=captured, traced=traced)
    return function, text, decision.routed, decision.reason


def _request(function: str, x: Any, y: Any, z: Any, options: tuple[Any, ...]) -> Request | str:
    refusal, causal, grouped = options
    if refusal is not None:
        return refusal
    if function in ("scaled_mm", "scaled_grouped_mm"):  # whose options are what has scales, and how it is summed
        return scaled_request(x, y, z, *options[1:], groups=function == "scaled_grouped_mm")
    if function == ATTENTION:
        return attention_request(x, y, z, causal, grouped)
    if function == "grouped_mm":
        return grouped_request(x, y, z)
    return product_request(function, x, y, z)
