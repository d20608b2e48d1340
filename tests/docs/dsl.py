"""Generates `docs/dsl.md`, the DSL reference, from docstrings: `python -m tests.docs.dsl`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final

from tests.docs.inventory import ROOT

from millrace import dsl
from millrace.dsl import cogrouped_stream, grouped_table, ktable, windowed_stream

PAGE = ROOT / "docs" / "dsl.md"

OPERATORS: Final[tuple[tuple[str, tuple[type[Any], ...]], ...]] = (
    ("Getting started", (dsl.StreamsBuilder,)),
    ("Streams", (dsl.KStream, dsl.BranchedKStream)),
    (
        "Grouped and windowed streams",
        (
            dsl.KGroupedStream,
            windowed_stream.TimeWindowedKStream,
            windowed_stream.SessionWindowedKStream,
            cogrouped_stream.CogroupedKStream,
            cogrouped_stream.TimeWindowedCogroupedKStream,
            cogrouped_stream.SessionWindowedCogroupedKStream,
        ),
    ),
    ("Tables", (dsl.KTable, grouped_table.KGroupedTable, dsl.GlobalKTable)),
)
"""Classes whose methods are operators: each method is shown in full, with an example."""

OPTIONS: Final[tuple[tuple[str, tuple[type[Any], ...]], ...]] = (
    (
        "Windows",
        (
            dsl.TimeWindows,
            dsl.SlidingWindows,
            dsl.SessionWindows,
            dsl.UnlimitedWindows,
            dsl.JoinWindows,
            dsl.EmitStrategy,
        ),
    ),
    (
        "Options",
        (
            dsl.Consumed,
            dsl.Produced,
            dsl.Repartitioned,
            dsl.Grouped,
            dsl.Materialized,
            dsl.StoreType,
            dsl.Joined,
            dsl.StreamJoined,
            dsl.TableJoined,
            dsl.ValueJoinerWithKey,
            dsl.ForeignKeyWithKey,
            dsl.Branched,
            dsl.Printed,
            dsl.Named,
            dsl.Suppressed,
            dsl.BufferConfig,
        ),
    ),
    (
        "Interfaces to implement",
        (
            ktable.ValueTransformer,
            dsl.DslStoreSuppliers,
            dsl.DslKeyValueParams,
            dsl.DslWindowParams,
            dsl.DslSessionParams,
            dsl.BuiltInDslStoreSuppliers,
        ),
    ),
)
"""Classes for options: one line per method."""

_HEAD = """# The DSL

Every operator with its arguments and an example. This page is generated from the docstrings by `python -m tests.docs.dsl`; a test
keeps it up to date, and the examples run as tests. The names are Kafka Streams' own in snake_case;
[differences.md](differences.md) lists the exceptions.

In the examples `run(build, …)` applies `build` to an input stream, sends it strings or (key, value) pairs one millisecond apart,
and returns the keys and values that come out.

**The order of arguments** is the same everywhere:

1. what is read or joined: topics, streams, tables;
2. functions and windows, in the order in which they are needed: `initializer`, `aggregator`, `merger`; `joiner`, `windows`;
3. the operator's option: `Consumed`, `Produced`, `Grouped`, `Joined`, …; where a table is made, a `Materialized` or just the
   store's name;
4. everything else by name: `named=`, `consumed=`, `joined=`, `foreign_key=`, `key_selector=`. Where `named` is the only option,
   it may also come last.

Java's order is accepted too where types tell the arguments apart: `table(topic, consumed, materialized)`, a foreign key or a
key selector before the joiner, a `Joined` after it, `Named` before the names of a processor's stores.

**Mistakes** are reported by the call that makes them: a `TopologyError` or `ConfigError` says what to write and ends with its
file and line. That covers options and serdes of the wrong kind, functions of other arguments, windows of another kind, operators
after `build()` and misspelt settings. A wrong name, such as Java's, is an `AttributeError` that names the right one.

**Durations** are a `timedelta`, a text such as `"500ms"`, `"10s"` or `"1h30m"` (`ms`, `s`, `m`, `h`, `d`), or milliseconds.
A fraction of a millisecond is an error.
"""
_SECTION = re.compile(r"^(Args|Raises|Returns|Example):$", re.MULTILINE)


def members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class and its bases of the DSL, in the order of the source."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("millrace.dsl.")]
    for name, member in ((name, member) for base in bases for name, member in vars(base).items()):
        if name.startswith("_") or name in _INTERNAL:
            continue
        if isinstance(member, (classmethod, staticmethod, property, _FUNCTION)):
            yield name, member


_FUNCTION = type(lambda: None)
_INTERNAL: Final = frozenset({"beginning_with"})
"""Methods that only the DSL itself calls."""


def function_of(member: Any) -> Callable[..., Any]:
    """Return the function behind a method or property."""
    if isinstance(member, property):
        assert member.fget is not None
        return member.fget
    return typing.cast("Callable[..., Any]", getattr(member, "__func__", member))


def render() -> str:
    """Return the page."""
    parts = [_HEAD, _contents()]
    for title, kinds in OPERATORS:
        parts.append(f"## {title}\n")
        for kind in kinds:
            parts.append(f"### {kind.__name__}\n\n{_prose(kind)}\n")
            parts += [_operator(kind, name, member) for name, member in members(kind)]
    for title, kinds in OPTIONS:
        parts.append(f"## {title}\n")
        parts += [_option(kind) for kind in kinds]
    return "\n".join(parts).rstrip() + "\n"


def _contents() -> str:
    lines = []
    for title, kinds in (*OPERATORS, *OPTIONS):
        links = ", ".join(f"[{kind.__name__}](#{kind.__name__.lower()})" for kind in kinds)
        lines.append(f"* {title}: {links}")
    return "\n".join(lines) + "\n"


def _prose(documented: Any) -> str:
    """Return a docstring as Markdown, with its sections as lists and its example as code."""
    text = inspect.getdoc(documented) or ""
    pieces = _SECTION.split(text)
    parts = [_text(pieces[0])]
    for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
        body_text = textwrap.dedent(body.strip("\n")).rstrip()
        if name == "Example":
            parts.append(f"```python\n{body_text}\n```")
        elif name == "Returns":
            parts.append(f"Returns: {' '.join(body_text.split())}")
        else:
            parts.append(_definitions(name, body_text))
    return "\n\n".join(part for part in parts if part)


def _text(text: str) -> str:
    """Return prose, with an example outside a section as code."""
    prose, found, example = text.strip().partition(">>> ")
    if not found:
        return prose
    return f"{prose.strip()}\n\n```python\n>>> {example.strip()}\n```"


def _definitions(title: str, body: str) -> str:
    entries = [" ".join(entry.split()) for entry in re.split(r"\n(?=\S)", body)]
    lines = []
    for entry in entries:
        name, _, meaning = entry.partition(": ")
        lines.append(f"* `{name}`: {meaning}")
    heading = "Raises:\n\n" if title == "Raises" else ""
    return heading + "\n".join(lines)


def _operator(kind: type[Any], name: str, member: Any) -> str:
    function = function_of(member)
    prose = _prose(function)
    heading = f"#### {kind.__name__}.{name}\n"
    if isinstance(member, property):
        return f"{heading}\n{prose}\n"
    overloads = typing.get_overloads(function) or [function]
    signatures = "\n".join(_signature(name, overload) for overload in overloads)
    return f"{heading}\n```python\n{signatures}\n```\n\n{prose}\n"


def _signature(name: str, function: Callable[..., Any], *, width: int = 110) -> str:
    signature = inspect.signature(function)
    shown = [parameter for key, parameter in signature.parameters.items() if key not in {"self", "cls"}]
    arguments = []
    starred = False
    for parameter in shown:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            starred = True
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            arguments.append("*")
            starred = True
        stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
        text = f"{stars}{parameter.name}: {parameter.annotation}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {parameter.default!r}"
        arguments.append(text)
    result = signature.return_annotation
    line = f"{name}({', '.join(arguments)}) -> {result}"
    if len(line) <= width:
        return line
    inner = "".join(f"    {argument},\n" for argument in arguments)
    return f"{name}(\n{inner}) -> {result}"


def _option(kind: type[Any]) -> str:
    lines = []
    for name, member in members(kind):
        function = function_of(member)
        first = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        arguments = ", ".join(key for key in inspect.signature(function).parameters if key not in {"self", "cls"})
        call = name if isinstance(member, property) else f"{name}({arguments})"
        lines.append(f"| `{call}` | {first} |")
    table = "\n| | |\n|---|---|\n" + "\n".join(lines) + "\n" if lines else ""
    return f"### {kind.__name__}\n\n{_prose(kind)}\n{_parts_of(kind)}{table}"


def _parts_of(kind: type[Any]) -> str:
    """Return the values of an enumeration, or the fields of a class that has only fields."""
    if issubclass(kind, Enum):
        return "\nValues: " + ", ".join(f"`{value.name}`" for value in kind) + ".\n"
    if dataclasses.is_dataclass(kind) and not list(members(kind)):
        return "\nFields: " + ", ".join(f"`{part.name}`" for part in dataclasses.fields(kind)) + ".\n"
    return ""


def main() -> int:
    """Write the page."""
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
