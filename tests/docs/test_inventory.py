"""The inventory: up to date, complete, and proven by tests that exist."""

from __future__ import annotations

import pytest
from tests.docs import inventory


def test_page_is_up_to_date():
    """`docs/inventory.md` matches its data; run `python -m tests.docs.inventory` after a change."""
    assert inventory.PAGE.read_text() == inventory.render(inventory.load())


def test_every_proof_exists_and_every_row_has_one_or_a_reason():
    """A finished row names tests, recorded cases or descriptions that exist; any other row says why it is not done."""
    problems = list(inventory.problems(inventory.load()))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("section", inventory.COMPLETE_SECTIONS)
def test_every_section_is_there(section):
    """All sections of Kafka Streams' features are covered."""
    assert [found.rows for found in inventory.load() if found.section == section]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"mark": "done"}, "A1: is marked done, but nothing proves it"),
        ({"mark": "partly"}, "A1: is marked partly without a reason"),
        ({"mark": "done", "tests": ["tests/docs/test_inventory.py::test_gone"]}, "A1: there is no test"),
        ({"mark": "done", "tests": ["tests/gone.py::test_page_is_up_to_date"]}, "A1: there is no test"),
        ({"mark": "done", "cases": ["gone"]}, "A1: there is no case gone"),
        ({"mark": "done", "descriptions": ["gone"]}, "A1: there is no description gone"),
    ],
)
def test_missing_proofs_and_reasons_are_found(row, message):
    """The checks detect a row without proof or reason, and a proof that does not exist."""
    section = {"section": "A", "title": "t", "rows": [{"id": "A1", "area": "a", "feature": "f", "java": "j", **row}]}
    (problem,) = inventory.problems([inventory.Section.model_validate(section)])
    assert problem.startswith(message)
