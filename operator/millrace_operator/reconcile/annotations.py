"""The annotations by which the operator is told things and remembers them, with what each means.

What must outlive a pass stands in a child where it is about that child: a lost status then costs nothing.
"""

from __future__ import annotations

from typing import Final

from millrace.manifest.resource import GROUP

PAUSE: Final = f"{GROUP}/pause"
"""On a StreamsApp, "true": nothing but the status is written. Deleting the StreamsApp is still carried out."""

ACCEPT_LOSS: Final = f"{GROUP}/accept-loss"
"""On a StreamsApp: the ids of lost internal topics, separated by commas, that may be created anew with nothing in them.

It names ids, not topics, so that one that stays on the resource does not accept the next loss as well.
"""

APPLIED: Final = f"{GROUP}/applied"
"""On every child: a hash of what was applied last."""

FAILED: Final = f"{GROUP}/failed"
"""On a revision's ConfigMap: the reason and message for which the revision was rolled back. It is not tried again."""

STARTED: Final = f"{GROUP}/started"
"""On a plan's ConfigMap: since when pods of its revision may have written state (seconds since the epoch)."""
