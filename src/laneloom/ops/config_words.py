"""A config as one word, "schedule:knob=1,...", and back: of dataclasses whose fields are a schedule and its knobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar

from ..errors import ArgumentError

Config = TypeVar("Config")


def read_when_traced(parse: Callable[[Any], Config]) -> Callable[[Any], Config]:
    """`parse`, whose config torch.compile takes for a constant of its graph, since it can trace no parser."""

    def parsed(text: Any) -> tuple[Config | None, str | None]:
        try:
            return parse(text), None
        except ArgumentError as error:  # of which torch would say that its compiler failed
            return None, str(error)

    # the mark of torch.compiler.assume_constant_result, without torch
    parsed._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]

    @wraps(parse)
    def read(text: Any) -> Config:
        config, error = parsed(text)
        if config is None:
            raise ArgumentError(error)
        return config

    return read


def config_text(config: Any) -> str:
    """The config as one word, which `config_of_words` reads back, of what stands behind the schedule."""
    knobs = ",".join(f"{f.name}={getattr(config, f.name)}" for f in fields(config) if f.name != "schedule")
    return f"{config.schedule}:{knobs}"


def config_of_words(kind: Any, words: Iterable[str]) -> Any:
    """The config of a class with the knobs given as "name=value"; those that are left out take their defaults.

    Raises ArgumentError for an unknown or missing knob, or a value of another type.
    """
    types = {f.name: str(f.type) for f in fields(kind) if f.name != "schedule"}
    knobs: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in types:
            raise ArgumentError(f"config: unknown knob {name!r}, the knobs are {', '.join(types)}")
        knobs[name] = _parse_value(name, types[name], value)
    absent = [f.name for f in fields(kind) if f.name not in knobs and f.init and f.default is MISSING]
    if absent:
        raise ArgumentError(f"config: {kind.schedule} needs {', '.join(absent)} as well, as {absent[0]}=...")
    return kind(**knobs)


def _parse_value(name: str, kind: str, value: str) -> Any:
    if kind == "int" and value.isdecimal():
        return int(value)
    if kind == "bool" and value in ("True", "False"):
        return value == "True"
    if kind == "str" and value:
        return value
    raise ArgumentError(f"config: knob {name} must be of type {kind}, got {value!r}")
