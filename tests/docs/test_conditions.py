"""The operations guide and the operator know the same conditions, reasons and remedies."""

from __future__ import annotations

from typing import get_args

from tests.docs import conditions

from millrace.manifest.status import ConditionType
from millrace_operator.reconcile.reasons import REASONS, Reason


def test_page_is_current() -> None:
    """`docs/conditions.md` is what the operator's table gives; run `python -m tests.docs.conditions` after a change."""
    assert conditions.PAGE.read_text() == conditions.render()


def test_every_condition_is_there_with_its_reasons() -> None:
    """Every condition has a section and at least two reasons: one for when it holds and one for when it does not."""
    assert [*conditions.ABOUT] == list(get_args(ConditionType))
    for condition in get_args(ConditionType):
        assert sum(explanation.condition == condition for explanation in REASONS.values()) >= 2


def test_every_reason_is_explained() -> None:
    """A reason that the operator can give has a line, with a meaning; the remedy is a sentence, or empty for what is well."""
    assert {*REASONS} == {*Reason}
    page = conditions.PAGE.read_text()
    for reason, explanation in REASONS.items():
        assert f"| `{reason}` | {explanation.meaning} |" in page
        assert explanation.meaning.endswith(".")
        assert not explanation.remedy or explanation.remedy.endswith((".", "`"))
