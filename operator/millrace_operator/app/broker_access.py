"""How the brokers of an application are reached: its manifest, and the credentials in its Secrets.

Secrets are read by name, never listed, and kept in memory for a while: rotated ones are read again when brokers refuse the old.

A namespace that is being deleted loses its Secrets in no particular order, while deleting its applications still needs them. So
what was read from them is kept in memory until the application is gone.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.errors import ConfigError
from millrace.manifest import StreamsApp, check
from millrace.manifest.secrets import NamedSecret, secrets_of_brokers
from millrace_operator.cluster.kinds import APPS, SECRETS
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.kafka.client_config import Credentials, needed_secrets
from millrace_operator.model import DesiredApp, KafkaState, ResourceRef

_SECRETS_KEPT_SECONDS: Final = 600.0
_RETRY_SECRETS_SECONDS: Final = 15.0
_DOUBTFUL: Final = frozenset(
    {"AuthenticationFailed", "NotAuthorized", "SecretMissing", "BadConfiguration", "TokenEndpointNotAllowed"}
)
"""Reasons for failures that a newer version of a Secret may fix."""

Data = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, repr=False)
class _Kept:
    credentials: Credentials
    secrets: tuple[NamedSecret, ...]
    """What the manifest named then, keys included."""
    read_at: float
    last_good: Credentials | None = None
    """The last complete credentials, for a deletion."""


class BrokerAccess:
    """Finds how brokers are reached, as `KafkaClusters` needs it; safe to use from several threads.

    Args:
        requests: How to reach the API server.
        clock: Seconds that only go forward.

    Example: `clusters.act(*access.of(desired), action)`
    """

    def __init__(self, requests: Requests, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[ResourceRef, _Kept] = {}
        self._doubtful: set[ResourceRef] = set()

    def of(self, desired: DesiredApp) -> tuple[StreamsApp, Credentials]:
        """Return an application and its credentials.

        Raises:
            ConfigError: Its manifest has problems.
            ApiError: The credentials could not be read.
        """
        metadata = {"name": desired.name, "namespace": desired.namespace, "uid": desired.uid}
        manifest = {"apiVersion": APPS.api_version, "kind": APPS.kind, "metadata": metadata, "spec": desired.manifest}
        app, _ = check(manifest, StreamsApp)
        if app is None:
            raise ConfigError("the manifest of the StreamsApp has problems")
        return app, self._credentials(desired.ref, app, deleting=desired.deleting)

    def answered(self, ref: ResourceRef, state: KafkaState) -> None:
        """Note what the brokers have answered: credentials that they refuse are read again soon."""
        with self._lock:
            (self._doubtful.add if state.reason in _DOUBTFUL else self._doubtful.discard)(ref)

    def forget(self, ref: ResourceRef) -> None:
        """Forget an application that is gone."""
        with self._lock:
            self._kept.pop(ref, None)
            self._doubtful.discard(ref)

    def _credentials(self, ref: ResourceRef, app: StreamsApp, *, deleting: bool) -> Credentials:
        secrets = tuple(secrets_of_brokers(app.spec.kafka))
        with self._lock:
            kept = self._kept.get(ref)
            age = _RETRY_SECRETS_SECONDS if ref in self._doubtful else _SECRETS_KEPT_SECONDS
        if kept is not None and kept.secrets != secrets:
            kept = None  # not even for a deletion: the brokers may be others, which must not see these credentials
        if kept is not None and (not secrets or self._clock() - kept.read_at < age):
            return kept.credentials
        try:
            found = {name: self._secret(ref.namespace, name) for name in needed_secrets(app.spec)}
            credentials = Credentials.of(app.spec, found)
        except ApiError:
            if not deleting or kept is None or kept.last_good is None:
                raise
            credentials = kept.last_good
        last_good = credentials if credentials.problem is None else None if kept is None else kept.last_good
        if deleting and last_good is not None:
            credentials = last_good
        with self._lock:
            self._kept[ref] = _Kept(credentials, secrets, self._clock(), last_good)
        return credentials

    def _secret(self, namespace: str, name: str) -> Data | None:
        try:
            secret = self._requests.get(SECRETS, namespace, name)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
