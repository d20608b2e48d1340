"""The operations guide and the operator agree on conditions, reasons and remedies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import get_args

from tests.docs import conditions
from tests.docs.inventory import ROOT

from millrace.manifest.streamsapp_status import ConditionType
from millrace_operator.reconcile.condition_reason import ConditionReason


def test_page_is_up_to_date() -> None:
    """`docs/conditions.md` matches the operator's table; run `python -m tests.docs.conditions` after a change."""
    assert conditions.PAGE.read_text() == conditions.render()


def test_every_condition_is_there_with_its_reasons() -> None:
    """Every condition has a section and at least two reasons: one for when it is true and one for when it is false."""
    assert [*conditions.ABOUT] == list(get_args(ConditionType))
    for condition in get_args(ConditionType):
        assert sum(reason.condition == condition for reason in ConditionReason) >= 2


def test_every_reason_is_explained() -> None:
    """Every reason the operator can give has a line with a meaning; the remedy is a sentence, or empty if all is well."""
    page = conditions.PAGE.read_text()
    for reason in ConditionReason:
        assert f"| `{reason}` | {reason.meaning} |" in page
        assert reason.meaning.endswith(".")
        assert not reason.remedy or reason.remedy.endswith((".", "`"))


def _reasons_of_failures() -> Iterator[str]:
    """Yield each reason that the operator's code gives when a pass, or one of its actions, fails."""
    for path in sorted((ROOT / "operator").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in {"FailedError", "RefusedError", "Refusal"}:
                yield from (item.value for item in node.args if isinstance(item, ast.Constant) and _is_word(item.value))


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()


def test_reasons_of_failures_are_explained() -> None:
    """The reasons that a failed pass gives in `Stalled` are in the table too, under that condition."""
    found = {*_reasons_of_failures()}
    assert found >= {"OperatorError", "RefusedByApiServer", "RefusedByKafka", "ActionFailed"}
    assert {reason: ConditionReason(reason).condition for reason in found} == dict.fromkeys(found, "Stalled")
