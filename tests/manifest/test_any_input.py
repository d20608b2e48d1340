"""Arbitrary manifests: `check` always returns and never raises."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.manifest import wrong

from millrace.manifest import KINDS, check

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


PLACES = wrong.places()


@given(st.sampled_from(PLACES), JSON)
def test_any_value_anywhere_is_accepted_or_reported(where, value):
    """With any value in any place the result is a model or a list of printable problems; never an exception."""
    kind, place = where
    model, problems = check(wrong.altered(kind, place, value), KINDS[kind])
    assert (model is None) == bool(problems)
    assert all(str(problem) for problem in problems)


@given(st.sampled_from(PLACES), JSON)
def test_accepted_manifest_reads_back_unchanged(where, value):
    """An accepted manifest that is written as JSON and read again gives the same application."""
    kind, place = where
    model, _ = check(wrong.altered(kind, place, value), KINDS[kind])
    if model is None:
        return
    for without in ({"exclude_unset": True}, {"exclude_defaults": True}, {}):
        dump = model.model_dump(mode="json", by_alias=True, **without)
        again, problems = check({**dump, "kind": kind, "apiVersion": model.api_version}, KINDS[kind])
        assert problems == []
        assert again
        assert again.spec == model.spec
        assert json.loads(json.dumps(dump)) == dump
