"""Explains an application: each rule examines the facts independently, and the findings are sorted by cause.

The order of the rules is the order of causes: earlier findings explain later ones (brokers that do not answer keep
pods from being ready), so within one severity the first finding is the one to fix first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from millrace_operator.explain.app_rules import APP_RULES, LATER_APP_RULES
from millrace_operator.explain.facts import Facts
from millrace_operator.explain.findings import Finding, Severity
from millrace_operator.explain.pod_rules import POD_RULES

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

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-able data."""
        findings = [{k: v for k, v in asdict(finding).items() if k != "points_elsewhere"} for finding in self.findings]
        return {"namespace": self.namespace, "name": self.name, "verdict": self.verdict, "findings": findings}


def explain(facts: Facts) -> Explanation:
    """Say why an application is not processing, or that it is.

    Args:
        facts: What is known about it.
    """
    found = [finding for rule in (*APP_RULES, *POD_RULES, *LATER_APP_RULES) for finding in rule(facts)]
    # A finding that only points elsewhere adds nothing if its target has a finding of its own.
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


_COLOURS: Final = {
    Severity.BLOCKING: "bold red",
    Severity.WANTED: "bold cyan",
    Severity.PROBLEM: "bold yellow",
    Severity.WAITING: "bold blue",
    Severity.NOTE: "bold",
}
_VERDICTS: Final = {
    ProcessingState.PROCESSING: "bold green",
    ProcessingState.PROCESSING_WITH_PROBLEMS: "bold yellow",
    ProcessingState.WAITING: "bold blue",
    ProcessingState.STOPPED: "bold cyan",
    ProcessingState.NOT_PROCESSING: "bold red",
}


def rendered(explanation: Explanation) -> RenderableType:
    """Return what a terminal shows of an explanation."""
    title = Text.assemble(
        (f"{explanation.namespace}/{explanation.name}", "bold"),
        " is ",
        (str(explanation.verdict), _VERDICTS[explanation.verdict]),
    )
    lines: list[RenderableType] = [title]
    for number, finding in enumerate(explanation.findings, start=1):
        heading = (f"{finding.subject} ({finding.severity})", _COLOURS[finding.severity])
        lines.append(Padding(Text.assemble(f"{number}. ", heading), (1, 0, 0, 0)))
        lines.append(Padding(Text(finding.what), (0, 0, 0, 3)))
        if finding.remedy:
            lines.append(Padding(Text.assemble(("→ ", "bold"), finding.remedy), (0, 0, 0, 3)))
    return Group(*lines)
