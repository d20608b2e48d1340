"""The explanation: every rule looks at the facts by itself, and what they find is put into the order of causes.

The order of the rules is the order of causes: what stands earlier explains what stands later (brokers that do not answer keep
pods from being ready), so within one severity the first finding is the one to mend first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from millrace_operator.explain.facts import Facts
from millrace_operator.explain.rules_for_apps import app_rules, later_app_rules
from millrace_operator.explain.rules_for_pods import pod_rules
from millrace_operator.explain.words import Finding, Severity

Rule = Callable[[Facts], Iterator[Finding]]
_ORDER: Final = {severity: number for number, severity in enumerate(Severity)}


class ProcessingState(StrEnum):
    """The answer in short."""

    PROCESSING = "processing"
    PROCESSING_WITH_PROBLEMS = "processing, with problems"
    WAITING = "not processing yet"
    STOPPED = "not processing, as the manifest says"
    NOT_PROCESSING = "not processing"


@dataclass(frozen=True, slots=True)
class Explanation:
    """An application's explanation."""

    namespace: str
    name: str
    verdict: ProcessingState
    findings: tuple[Finding, ...] = ()
    """The most likely cause first."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        findings = [{k: v for k, v in asdict(finding).items() if k != "points_elsewhere"} for finding in self.findings]
        return {"namespace": self.namespace, "name": self.name, "verdict": self.verdict, "findings": findings}


def explain(facts: Facts) -> Explanation:
    """Say why an application does not process, or that it does.

    Args:
        facts: What there is of it.
    """
    found = [finding for rule in (*app_rules(), *pod_rules(), *later_app_rules()) for finding in rule(facts)]
    # What only points elsewhere adds nothing when what it points at has its own finding.
    if any(not finding.points_elsewhere and finding.severity is not Severity.NOTE for finding in found):
        found = [finding for finding in found if not finding.points_elsewhere]
    found.sort(key=lambda finding: _ORDER[finding.severity])
    return Explanation(facts.namespace, facts.name, _verdict(facts, found), tuple(found))


def _verdict(facts: Facts, found: list[Finding]) -> ProcessingState:
    severities = {finding.severity for finding in found}
    if facts.processes:
        bad = severities & {Severity.BLOCKING, Severity.PROBLEM}
        return ProcessingState.PROCESSING_WITH_PROBLEMS if bad else ProcessingState.PROCESSING
    if Severity.WANTED in severities:
        return ProcessingState.STOPPED
    if severities & {Severity.BLOCKING}:
        return ProcessingState.NOT_PROCESSING
    return ProcessingState.WAITING
