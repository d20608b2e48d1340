"""How the operator hands Secrets to a pod: as files of one projected volume, one folder per purpose.

Files, because they follow a Secret when it changes, which environment variables do not. Only the keys that have a meaning are
projected, under the names that the program looks for, whatever the Secret calls them. A Secret without a key that must be there
keeps the pod from starting, with an Event that names it; an application without its credentials would only fail later and less
clearly. Where a Secret may have one key or another, the program says at its start what it misses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from millrace.manifest.secrets import NamedSecret, named_secrets
from millrace_operator.children.app import AppRevision

FILE_MODE: Final = 0o440


def secret_sources(app: AppRevision) -> list[dict[str, Any]]:
    """Return the sources of the projected volume of an application's secrets; empty if it has none."""
    return [source for secret in named_secrets(app.spec) for source in _sources(secret)]


def _sources(secret: NamedSecret) -> Iterator[dict[str, Any]]:
    required = secret.required
    rest = tuple(key for key in secret.keys if key not in required)
    for keys, optional in ((required, False), (rest, True)):
        if keys:
            items = [{"key": secret.reference.key(key), "path": f"{secret.folder}/{key}"} for key in keys]
            yield {"secret": {"name": secret.reference.name, "items": items, "optional": optional}}
