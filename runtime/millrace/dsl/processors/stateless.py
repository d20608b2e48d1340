"""Stateless operators on streams. Each function returns the factory of a node."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from millrace.processor.node import NodeContext, NodeFactory, ProcessFn
from millrace.records import Headers

KeyValueMapper = Callable[[Any, Any], object]
"""Gets key and value."""
Predicate = KeyValueMapper


def result_error(error: Exception, wanted: str) -> Exception:
    """Return what to report: that the result is of another kind, if the error is not one that the function raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    raised_here = bool(frames) and frames[-1][0].f_code.co_filename == frames[0][0].f_code.co_filename
    if raised_here and isinstance(error, TypeError | ValueError) and re.search("unpack|not iterable", str(error)):
        told = TypeError(f"the function must return {wanted} ({error})")
        told.__cause__ = error
        return told
    return error


def pass_through() -> NodeFactory:
    """Forward every record unchanged."""
    return lambda node: node.forward


def filtering(predicate: Predicate, *, negate: bool = False) -> NodeFactory:
    """Forward the records for which the predicate is true (or false)."""

    def factory(node: NodeContext) -> ProcessFn:
        forward, fail = node.forward, node.processing_failed

        def keep(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                wanted = predicate(key, value)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if wanted:
                forward(key, value, timestamp, headers)

        def drop(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                unwanted = predicate(key, value)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if not unwanted:
                forward(key, value, timestamp, headers)

        return drop if negate else keep

    return factory


def mapping(mapper: Callable[[Any, Any], tuple[object, object]]) -> NodeFactory:
    """Replace key and value."""

    def factory(node: NodeContext) -> ProcessFn:
        forward, fail = node.forward, node.processing_failed

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                new_key, new_value = mapper(key, value)
            except Exception as error:
                fail(result_error(error, "a pair of key and value"), key, value, timestamp, headers)
                return
            forward(new_key, new_value, timestamp, headers)

        return process

    return factory


def selecting_key(selector: KeyValueMapper) -> NodeFactory:
    """Replace the key."""

    def factory(node: NodeContext) -> ProcessFn:
        forward, fail = node.forward, node.processing_failed

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                new_key = selector(key, value)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            forward(new_key, value, timestamp, headers)

        return process

    return factory


def mapping_values(mapper: Callable[[Any], object]) -> NodeFactory:
    """Replace the value."""

    def factory(node: NodeContext) -> ProcessFn:
        forward, fail = node.forward, node.processing_failed

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                new_value = mapper(value)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            forward(key, new_value, timestamp, headers)

        return process

    return factory


def mapping_values_with_key(mapper: KeyValueMapper) -> NodeFactory:
    """Replace the value, given the key too."""

    def factory(node: NodeContext) -> ProcessFn:
        forward, fail = node.forward, node.processing_failed

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                new_value = mapper(key, value)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            forward(key, new_value, timestamp, headers)

        return process

    return factory


def flat_mapping(mapper: Callable[[Any, Any], Iterable[tuple[object, object]]]) -> NodeFactory:
    """Replace each record with any number of records; all are created before the first is forwarded."""

    def factory(node: NodeContext) -> ProcessFn:
        forward, fail = node.forward, node.processing_failed

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                pairs = [(new_key, new_value) for new_key, new_value in mapper(key, value)]
            except Exception as error:
                fail(
                    result_error(error, "pairs of key and value, such as a list of them"),
                    key,
                    value,
                    timestamp,
                    headers,
                )
                return
            for new_key, new_value in pairs:
                forward(new_key, new_value, timestamp, headers)

        return process

    return factory


def flat_mapping_values(mapper: Callable[[Any], Iterable[object]]) -> NodeFactory:
    """Replace each value with any number of values."""

    def factory(node: NodeContext) -> ProcessFn:
        forward, fail = node.forward, node.processing_failed

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                values = list(mapper(value))
            except Exception as error:
                fail(result_error(error, "several values, such as a list; [] for none"), key, value, timestamp, headers)
                return
            for new_value in values:
                forward(key, new_value, timestamp, headers)

        return process

    return factory


def flat_mapping_values_with_key(mapper: Callable[[Any, Any], Iterable[object]]) -> NodeFactory:
    """Replace each value with any number of values, given the key too."""

    def factory(node: NodeContext) -> ProcessFn:
        forward, fail = node.forward, node.processing_failed

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                values = list(mapper(key, value))
            except Exception as error:
                fail(result_error(error, "several values, such as a list; [] for none"), key, value, timestamp, headers)
                return
            for new_value in values:
                forward(key, new_value, timestamp, headers)

        return process

    return factory


class SideEffect:
    """The factory of a node that runs code for what it does elsewhere, not for what it returns: `peek`, `foreach`, `print`.

    It is a class so that a host can recognise such nodes.
    """

    def __init__(self, factory: NodeFactory) -> None:
        self._factory = factory

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        return self._factory(node)


def peeking(action: KeyValueMapper) -> NodeFactory:
    """Call a function, and forward the record; without children this is `foreach`."""

    def factory(node: NodeContext) -> ProcessFn:
        forward, fail = node.forward, node.processing_failed

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                action(key, value)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            forward(key, value, timestamp, headers)

        return process

    return SideEffect(factory)


def branching(predicates: Sequence[Predicate], children: Sequence[str]) -> NodeFactory:
    """Forward each record to the child of the first predicate that is true.

    Args:
        predicates: in the order in which they are tried.
        children: their nodes; filled while branches are added. If there is one more than predicates, the last is the default
            branch.
    """

    def factory(node: NodeContext) -> ProcessFn:
        fail = node.processing_failed
        branches = [(predicate, node.children[name]) for predicate, name in zip(predicates, children, strict=False)]
        default = node.children[children[-1]] if len(children) > len(predicates) else None

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            for predicate, forward in branches:
                try:
                    matches = predicate(key, value)
                except Exception as error:
                    fail(error, key, value, timestamp, headers)
                    return
                if matches:
                    forward(key, value, timestamp, headers)
                    return
            if default is not None:
                default(key, value, timestamp, headers)

        return process

    return factory


def printing(label: str, mapper: Callable[[Any, Any], str] | None, path: Path | None) -> NodeFactory:
    """Print one line per record, to standard output or appended to a file."""

    def line(key: object, value: object) -> str:
        return f"[{label}]: {mapper(key, value) if mapper is not None else f'{key}, {value}'}"

    def factory(node: NodeContext) -> ProcessFn:
        if path is None:
            return peeking(lambda key, value: print(line(key, value), flush=True))(node)  # noqa: T201 (its purpose)
        file = path.open("a", encoding="utf-8")
        node.on_close(file.close)
        return peeking(lambda key, value: file.write(line(key, value) + "\n"))(node)

    return SideEffect(factory)
