"""Kafka as the controllers use it: finds an application's plans and credentials, and asks or changes its brokers.

Secrets are read by name, never listed, and kept in memory for a while: rotated ones are read again when brokers refuse the old.

A namespace that is being deleted loses its Secrets and ConfigMaps in no particular order, while deleting its applications still
needs them. So what was read from them is kept in memory until the application is gone; topics are in its status, too.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.errors import ConfigError
from millrace.manifest import StreamsApp, check
from millrace.manifest.secrets import NamedSecret, secrets_of_brokers
from millrace.plan import reset
from millrace.plan.model import TopologyPlan
from millrace_operator.backfills.model import Published
from millrace_operator.children import naming
from millrace_operator.children.config_maps import PLAN_KEY
from millrace_operator.cluster.kinds import APPS, CONFIG_MAPS, SECRETS
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.kafka.client_config import Credentials, needed_secrets
from millrace_operator.kafka.clusters import KafkaClusters
from millrace_operator.model import DesiredApp, KafkaAction, KafkaState, Key, Object, ResourceRef
from millrace_operator.reconcile.children_view import read_plan
from millrace_operator.reconcile.revisions import revision_of
from millrace_operator.reconcile.topics import internal_topics
from millrace_operator.resets.reconciler import ResetQuestion

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


class KafkaService:
    """Asks and changes the brokers of all applications; safe to use from several threads.

    Args:
        requests: How to reach the API server.
        clusters: The brokers.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, requests: Requests, clusters: KafkaClusters, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests = requests
        self._clusters = clusters
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[ResourceRef, _Kept] = {}
        self._uids: dict[ResourceRef, str] = {}
        self._internal: dict[ResourceRef, frozenset[str]] = {}
        self._doubtful: set[ResourceRef] = set()

    def observe(self, desired: DesiredApp, objects: Mapping[Key, Object]) -> KafkaState:
        """Return what an application's brokers report; never raises."""
        app = manifest_of(desired)
        if app is None:
            return KafkaState(error="the manifest has problems", reason="Unknown")
        ref = desired.ref
        try:
            credentials = self._credentials(ref, app, deleting=desired.deleting)
        except ApiError as error:
            return KafkaState(error=f"The credentials could not be read: {error}", reason="SecretMissing")
        plans = plans_of(desired, objects)
        internal = self._internal_topics(ref, desired, plans)
        state = self._clusters.observe(app, credentials, *plans, internal_topics=internal)
        with self._lock:
            self._uids[ref] = desired.uid
            (self._doubtful.add if state.reason in _DOUBTFUL else self._doubtful.discard)(ref)
        return state

    def observe_for_reset(self, desired: DesiredApp, question: ResetQuestion) -> reset.ObservedApplication:
        """Return what a reset needs to know from the brokers.

        Raises:
            StreamsError: They do not answer.
            ApiError: The credentials could not be read.
        """
        app = _valid_manifest_of(desired)
        credentials = self._credentials(desired.ref, app)
        return self._clusters.observe_for_reset(app, credentials, question.plan, question.target, question.inputs)

    def published(self, desired: DesiredApp, backfill: str, plans: Sequence[TopologyPlan]) -> Published:
        """Return what the attempts of a backfill, which have ended, have published.

        Args:
            desired: The application.
            backfill: The uid of the backfill.
            plans: What the application's revisions need, as far as known.

        Raises:
            StreamsError: The brokers do not answer.
            ApiError: The credentials could not be read.
        """
        app = _valid_manifest_of(desired)
        credentials = self._credentials(desired.ref, app, deleting=desired.deleting)
        return self._clusters.published(app, credentials, backfill, plans)

    def act(self, desired: DesiredApp, action: KafkaAction) -> None:
        """Carry out an action on an application's topics or group.

        Raises:
            StreamsError: It could not be done.
            ApiError: The credentials could not be read.
        """
        app = manifest_of(desired)
        if app is not None:
            self._clusters.act(app, self._credentials(desired.ref, app, deleting=desired.deleting), action)

    def forget(self, ref: ResourceRef) -> None:
        """Close what was kept open for an application that is gone."""
        with self._lock:
            self._kept.pop(ref, None)
            self._doubtful.discard(ref)
            self._internal.pop(ref, None)
            uid = self._uids.pop(ref, None)
        if uid is not None:
            self._clusters.forget(uid)

    def close(self) -> None:
        """Close all connections."""
        self._clusters.close()

    def _internal_topics(self, ref: ResourceRef, desired: DesiredApp, plans: Sequence[TopologyPlan]) -> frozenset[str]:
        """Return what Purge has to delete: the internal topics of the status and of all plans, including those seen before."""
        listed = {} if desired.status is None else {item.name for item in desired.status.internal_topics}
        named = {name for plan in plans for name in internal_topics(plan)}
        with self._lock:
            before = self._internal.get(ref, frozenset()) if self._uids.get(ref) == desired.uid else frozenset()
            known = self._internal[ref] = before.union(listed, named)
        return known if desired.deleting else frozenset(listed)

    def _credentials(self, ref: ResourceRef, app: StreamsApp, *, deleting: bool = False) -> Credentials:
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


def manifest_of(desired: DesiredApp) -> StreamsApp | None:
    """Return the manifest of an application, or None if its spec is invalid."""
    metadata = {"name": desired.name, "namespace": desired.namespace, "uid": desired.uid}
    manifest = {"apiVersion": APPS.api_version, "kind": APPS.kind, "metadata": metadata, "spec": desired.manifest}
    return check(manifest, StreamsApp)[0]


def _valid_manifest_of(desired: DesiredApp) -> StreamsApp:
    app = manifest_of(desired)
    if app is None:
        raise ConfigError("the manifest of the StreamsApp has problems")
    return app


def plans_of(desired: DesiredApp, objects: Mapping[Key, Object]) -> list[TopologyPlan]:
    """Return the stored plans of all revisions, starting with the wanted one."""
    wanted = naming.plan_config_map(desired.name, "" if desired.spec is None else revision_of(desired.spec))
    kept = sorted((key.name != wanted, key.name) for key in objects if key.kind == CONFIG_MAPS.kind)
    texts = ((objects[Key(CONFIG_MAPS.kind, name)].get("data") or {}).get(PLAN_KEY) for _, name in kept)
    return [plan for text in texts if text is not None and (plan := read_plan(text)) is not None]
