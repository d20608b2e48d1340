"""How secrets reach a pod: as files of one projected volume, one folder per purpose, and in no other way.

Files, because they follow a Secret when it changes, which environment variables do not. Only the keys that have a meaning are
projected, under the names that the program looks for, whatever the Secret calls them. A Secret that is missing keeps the pod
from starting, with an Event that names it; an application without its credentials would only fail later and less clearly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from millrace.manifest.references import SecretReference
from millrace.manifest.settings import AUTH, OTLP, SCHEMA_REGISTRY, TLS_CA, TLS_CLIENT
from millrace_operator.children.app import AppRevision

FILE_MODE: Final = 0o440

_LOGIN: Final = ("username", "password")
_CLIENT_CREDENTIALS: Final = ("clientId", "clientSecret", "tokenEndpoint")


def secret_sources(app: AppRevision) -> list[dict[str, Any]]:
    """Return the sources of the projected volume of an application's secrets; empty if it has none."""
    return [
        {
            "secret": {
                "name": reference.name,
                "items": [{"key": reference.key(key), "path": f"{folder}/{key}"} for key in keys],
                "optional": False,
            }
        }
        for folder, reference, keys in _references(app)
    ]


def _references(app: AppRevision) -> Iterator[tuple[str, SecretReference, tuple[str, ...]]]:
    """Yield the folder of each Secret, its reference, and the files that are expected there."""
    kafka, otlp = app.spec.kafka, app.spec.observability.otlp
    if kafka.auth is not None and kafka.auth.secret_ref is not None:
        yield AUTH, kafka.auth.secret_ref, _CLIENT_CREDENTIALS if kafka.auth.type == "oauthbearer" else _LOGIN
    if kafka.tls is not None and kafka.tls.ca_secret_ref is not None:
        yield TLS_CA, kafka.tls.ca_secret_ref, ("ca.crt",)
    if kafka.tls is not None and kafka.tls.client_cert_secret_ref is not None:
        yield TLS_CLIENT, kafka.tls.client_cert_secret_ref, ("tls.crt", "tls.key")
    if kafka.schema_registry is not None and kafka.schema_registry.secret_ref is not None:
        yield SCHEMA_REGISTRY, kafka.schema_registry.secret_ref, _LOGIN
    if otlp is not None and otlp.headers_secret_ref is not None:
        yield OTLP, otlp.headers_secret_ref, ("headers",)
