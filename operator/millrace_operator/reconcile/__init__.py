"""What is to be done about a StreamsApp, as a pure function of what is wanted and what was seen.

`reconcile` is all there is to it; `REASONS` explains the conditions it settles, and `annotations` lists what it is told and
what it remembers outside of the status.
"""

from millrace_operator.reconcile.reasons import REASONS, Explanation, Reason
from millrace_operator.reconcile.reconciler import reconcile

__all__ = ["REASONS", "Explanation", "Reason", "reconcile"]
