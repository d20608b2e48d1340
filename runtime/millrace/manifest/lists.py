"""The three ways in which a list may be merged by Kubernetes, as what makes a tuple of a field one of them.

Each is to be unpacked into `Annotated`. The API server wants to know of every list whether its order counts and what tells
its entries apart, for server-side apply to merge what several writers own of it.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from millrace.manifest.model import Rule


def in_order(most: int, *, least: int | None = None) -> tuple[Any, ...]:
    """Return what makes a list one whole, which only one writer can own."""
    return (
        Field(strict=False, min_length=least, max_length=most, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    )


def distinct(most: int) -> tuple[Any, ...]:
    """Return what makes a list a set of scalars."""
    return (
        Field(strict=False, max_length=most, json_schema_extra={"x-kubernetes-list-type": "set"}),
        Rule(lambda items: len(set(items)) == len(items), None, "must not have the same entry twice"),
    )


def by_key(most: int, key: str = "name") -> tuple[Any, ...]:
    """Return what makes a list a mapping by one of its entries' fields; `key` is its name in the manifest."""

    def holds(items: Any) -> bool:
        alias = {field.alias: name for item in items for name, field in type(item).model_fields.items()}
        values = [getattr(item, alias[key]) for item in items]
        return len(set(values)) == len(values)

    return (
        Field(
            strict=False,
            max_length=most,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]},
        ),
        Rule(holds, None, f"must not have two entries with the same {key}"),
    )
