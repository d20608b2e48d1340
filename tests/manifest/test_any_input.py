"""Manifests that nobody would think of: `check` answers, and never raises."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.manifest import wrong

from millrace.manifest import KINDS, check

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of everything in a manifest, except itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, item in items for place in places(item, (*path, key))]


BASE = wrong.good("everything")
PLACES = [(kind, place) for kind, manifest in BASE.items() for place in places(manifest)]


def altered(kind: str, place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """Return the good manifest with something else in one place."""
    manifest = copy.deepcopy(BASE[kind])
    node: Any = manifest
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    return manifest


@given(st.sampled_from(PLACES), JSON)
def test_whatever_stands_anywhere_is_taken_or_told(where, value):
    """With any value in any place there is a model or there are problems, each of which can be printed; never an exception."""
    kind, place = where
    model, problems = check(altered(kind, place, value), KINDS[kind])
    assert (model is None) == bool(problems)
    assert all(str(problem) for problem in problems)


@given(st.sampled_from(PLACES), JSON)
def test_what_is_taken_reads_back_as_the_same(where, value):
    """A manifest that is accepted is, written as JSON and read again, the same application."""
    kind, place = where
    model, _ = check(altered(kind, place, value), KINDS[kind])
    if model is None:
        return
    for without in ({"exclude_unset": True}, {"exclude_defaults": True}, {}):
        dump = model.model_dump(mode="json", by_alias=True, **without)
        again, problems = check({**dump, "kind": kind, "apiVersion": model.api_version}, KINDS[kind])
        assert problems == []
        assert again
        assert again.spec == model.spec
        assert json.loads(json.dumps(dump)) == dump
