"""Which field of a manifest a setting comes from, so that an error about the setting tells where to change it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from millrace.errors import StreamsError
from millrace.manifest.kafka import OWNED_SETTINGS

__all__ = ["naming_fields"]

_FIELDS: Final[Mapping[str, str]] = {
    **{key: field for key, field in OWNED_SETTINGS.items() if field.startswith("spec.")},
    "security.protocol": "spec.kafka.tls and spec.kafka.auth",
    "sasl.mechanism": "spec.kafka.auth.type",
    "sasl.username": "spec.kafka.auth.secretRef",
    "sasl.password": "spec.kafka.auth.secretRef",
    "ssl.ca.location": "spec.kafka.tls.caSecretRef",
    "ssl.certificate.location": "spec.kafka.tls.clientCertSecretRef",
    "ssl.key.location": "spec.kafka.tls.clientCertSecretRef",
}


@contextlib.contextmanager
def naming_fields(manifest: Path, own: Mapping[str, object], settings: Mapping[str, object]) -> Iterator[None]:
    """Add a note to an error that names a setting: the field of the manifest that it stands in.

    Args:
        manifest: Where the settings come from.
        own: Its `spec.kafka.config`.
        settings: All settings.
    """
    try:
        yield
    except StreamsError as error:
        if not getattr(error, "__notes__", ()):
            named = [(found.start(), key) for key in settings if (found := _find(key, str(error))) is not None]
            fields = [f"spec.kafka.config[{key}]" if key in own else _FIELDS.get(key) for _, key in sorted(named)]
            field = next(filter(None, fields), None)
            if field is not None:
                error.add_note(f"In {manifest} this is {field}.")
        raise


def _find(key: str, message: str) -> re.Match[str] | None:
    short = key
    for prefix in ("main.", "restore.", "global.", "consumer.", "producer.", "admin."):
        short = short.removeprefix(prefix)
    names = "|".join(map(re.escape, {key, short}))
    return re.search(rf"(?<![\w.])(?:{names})(?![\w.]*\w)", message)
