"""The DSL reference: up to date, and with an example for every operator."""

from __future__ import annotations

import pytest
from tests.docs import dsl as reference

import millrace.dsl

OPERATORS = [
    (kind, name, member)
    for _, kinds in reference.OPERATORS
    for kind in kinds
    for name, member in reference.members(kind)
    if not isinstance(member, property)
]


def test_page_is_up_to_date():
    """`docs/dsl.md` matches the docstrings; run `python -m tests.docs.dsl` after a change."""
    assert reference.PAGE.read_text() == reference.render()


@pytest.mark.parametrize(
    ("kind", "name", "member"), OPERATORS, ids=[f"{kind.__name__}.{name}" for kind, name, _ in OPERATORS]
)
def test_every_operator_has_an_example(kind, name, member):
    """Every operator's docstring has an example. Docstrings run as tests, so examples are right."""
    assert ">>> " in (reference.function_of(member).__doc__ or ""), f"{kind.__name__}.{name} has no example"


def test_everything_that_is_exported_is_on_the_page():
    """No public class of the DSL is missing."""
    shown = {kind.__name__ for _, kinds in (*reference.OPERATORS, *reference.OPTIONS) for kind in kinds}
    assert set(millrace.dsl.__all__) <= shown
