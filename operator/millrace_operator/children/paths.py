"""Where a pod finds what the operator gives it; of secrets, the runtime's own mapping of the manifest knows where."""

from typing import Final

APP: Final = "/etc/millrace/app"
MANIFEST: Final = f"{APP}/streamsapp.yaml"
DRAIN: Final = "/etc/millrace/drain"
DRAIN_FILE: Final = f"{DRAIN}/since"
STATE: Final = "/var/lib/millrace"
TEMPORARY: Final = "/tmp"  # noqa: S108 (the pod's own)
