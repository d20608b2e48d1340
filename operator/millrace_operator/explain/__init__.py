"""`millrace explain`: why is this application not processing, and what to do about it?

`loading` reads what there is of an application, with the user's own rights; the pure `explain` turns it into findings, the most
likely cause first; `command` shows them. It changes nothing, and asks neither the operator nor Kafka: so it also works when
these do not.
"""

from millrace_operator.explain.facts import Facts
from millrace_operator.explain.findings import Finding, Findings, Severity, explain

__all__ = ["Facts", "Finding", "Findings", "Severity", "explain"]
