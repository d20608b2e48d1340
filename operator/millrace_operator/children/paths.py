"""Where a pod finds what the operator gives it."""

from typing import Final

APP: Final = "/etc/millrace/app"
MANIFEST: Final = f"{APP}/streamsapp.yaml"
SECRETS: Final = "/etc/millrace/secrets"
STATE: Final = "/var/lib/millrace"
