"""An explanation as text for people: the verdict, then a numbered finding each with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from millrace_operator.explain.findings import Findings, Verdict
from millrace_operator.explain.words import Severity

_COLOURS: Final = {
    Severity.BLOCKING: "bold red",
    Severity.WANTED: "bold cyan",
    Severity.PROBLEM: "bold yellow",
    Severity.WAITING: "bold blue",
    Severity.NOTE: "bold",
}
_VERDICTS: Final = {
    Verdict.PROCESSING: "bold green",
    Verdict.PROCESSING_WITH_PROBLEMS: "bold yellow",
    Verdict.WAITING: "bold blue",
    Verdict.STOPPED: "bold cyan",
    Verdict.NOT_PROCESSING: "bold red",
}


def shown(explanation: Findings) -> RenderableType:
    """Return what a terminal shows of an explanation."""
    title = Text.assemble(
        (f"{explanation.namespace}/{explanation.name}", "bold"),
        " is ",
        (str(explanation.verdict), _VERDICTS[explanation.verdict]),
    )
    return Group(title, *_findings(explanation))


def _findings(explanation: Findings) -> Iterator[RenderableType]:
    for number, finding in enumerate(explanation.findings, start=1):
        heading = (f"{finding.subject} ({finding.severity})", _COLOURS[finding.severity])
        yield Padding(Text.assemble(f"{number}. ", heading), (1, 0, 0, 0))
        yield Padding(Text(finding.what), (0, 0, 0, 3))
        if finding.remedy:
            yield Padding(Text.assemble(("→ ", "bold"), finding.remedy), (0, 0, 0, 3))
