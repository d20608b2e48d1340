"""YAML documents whose values know their line numbers, read by rules that suit Kubernetes manifests.

YAML 1.1 has traps that show up far from their cause: a key `on:` is a boolean, `2026-01-01` a date, a repeated key silently
wins, an alias may contain itself. Here a key must be a string, dates stay text (as they do in Kubernetes), and repetitions and
cycles are errors with a line number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

Path = tuple[str | int, ...]

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "map", "seq"))
_BOOLEANS_ELSEWHERE = frozenset("yYnN")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class DocumentError(Exception):
    """The text is not YAML, or uses YAML that is not allowed in a manifest; `line` is counted from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its value, in JSON's types, and its nodes for `line`."""

    value: Any
    node: yaml.Node

    def line(self, path: Path) -> int:
        """Return the line (from 1) of the value at a path, or of the nearest enclosing value that exists."""
        node, line = self.node, self.node.start_mark.line
        for step in path:
            if isinstance(node, yaml.MappingNode):
                pairs = [
                    (key, item) for key, item in node.value if isinstance(key, yaml.ScalarNode) and key.value == step
                ]
                if not pairs:
                    break
                line, node = pairs[-1][0].start_mark.line, pairs[-1][1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line
            else:
                break
        return int(line) + 1


def documents(text: str) -> Iterator[Document]:
    """Read the documents of a YAML text, skipping empty ones.

    Raises:
        DocumentError: The text is not YAML, or has a key that is not a string, a repeated key, or a custom tag.
    """
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            assert node
            value = _value(node, loader, ())
            if value is not None:
                yield Document(value, node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise DocumentError(f"not YAML: {reason}", mark.line + 1 if mark else 1) from None
    except yaml.reader.ReaderError as error:
        raise DocumentError(f"not YAML: {error.reason}", text.count("\n", 0, error.position) + 1) from None


def _value(node: yaml.Node, loader: _Loader, parents: tuple[int, ...]) -> object:
    line = node.start_mark.line + 1
    if id(node) in parents:
        raise DocumentError("an alias contains itself", line)
    if node.tag not in _PLAIN_TAGS:
        raise DocumentError(
            f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not allowed in a manifest", line
        )
    inner = (*parents, id(node))
    if len(inner) > 64:
        raise DocumentError("nested more than 64 levels deep", line)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, loader, inner) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
        loader.flatten_mapping(node)
        return {key.value: _value(item, loader, inner) for key, item in node.value}
    value = loader.construct_object(node)
    if isinstance(value, float) and not math.isfinite(value):
        raise DocumentError(
            f"{node.value} is not a number that Kubernetes can store: put it in quotes if it is text", line
        )
    return value


def _check_keys(node: yaml.MappingNode) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise DocumentError("a key must be a string, not a list or a mapping", line)
        if key.tag == _MERGE:
            continue
        if key.tag == "tag:yaml.org,2002:bool" or (key.style is None and key.value in _BOOLEANS_ELSEWHERE):
            raise DocumentError(
                f'YAML reads the key `{key.value}` as a boolean: put it in quotes, as "{key.value}"', line
            )
        if key.tag != "tag:yaml.org,2002:str":
            raise DocumentError(f'the key `{key.value}` is not a string: put it in quotes, as "{key.value}"', line)
        if key.value in seen:
            raise DocumentError(f"the key `{key.value}` is already given on line {seen[key.value]}", line)
        seen[key.value] = line
