"""Leader election: of several operators, only the holder of a `coordination.k8s.io` Lease may write.

Others judge a holder by their own clocks: one that sees a Lease unchanged for its whole duration takes it. The holder counts
the same duration from before it *sent* its last renewal, and stops writing a margin earlier: so, however clocks are set, it has
stopped before another starts. `may_write_seconds` is that time; it is checked before every write and bounds the write's
timeout.

A holder that cannot reach the API server stops writing in time, and continues if the Lease is still its own when it reaches the
server again. One that sees that somebody else has the Lease has lost it for good.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from millrace_operator.cluster.kinds import LEASES, ResourceKind
from millrace_operator.cluster.requests import ApiError
from millrace_operator.model import Json, Object

log = logging.getLogger(__name__)

_MARGIN: Final = 1 / 3
"""The fraction of the duration that the holder does not use."""
_RENEW: Final = 1 / 5
"""The fraction of the duration between two renewals."""


class LeaseApi(Protocol):
    """The requests that a Lease needs; `cluster.requests.Requests` provides them."""

    def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Object:
        """Return the Lease."""

    def create(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        """Create it."""

    def update(self, kind: ResourceKind, namespace: str | None, name: str, body: Object) -> Object:
        """Replace the version that was read."""


class Leader:
    """A candidate for the Lease; `step` is its whole logic, `run` calls it until the Lease is lost.

    Args:
        api: How to reach the API server.
        namespace: The Lease's namespace.
        name: The Lease's name.
        identity: The unique name of this candidate.
        seconds: How long the Lease is held without being renewed.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        api: LeaseApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._namespace, self._name = namespace, name
        self._identity, self._seconds = identity, seconds
        self._clock = clock
        self._held_until = float("-inf")
        self._has_held = False
        self._seen: Object | None = None
        """The Lease as it was seen last."""
        self._seen_at = 0.0
        self.stepped_at = clock()
        """When the last attempt ended, successful or not."""
        self.pause_seconds = seconds * _RENEW
        """How long to wait between two steps."""

    def may_write_seconds(self) -> float:
        """Return how long this candidate may still write; 0 or less if it may not."""
        return self._held_until - self._clock()

    def step(self) -> bool | None:
        """Renew the Lease, or try to get it, and say whether this candidate holds it; None if there is no way to know."""
        begun = self._clock()
        try:
            held = self._try(begun)
        except ApiError as error:
            log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            return True if self.may_write_seconds() > 0 else None
        finally:
            self.stepped_at = self._clock()
        self._held_until = begun + self._seconds * (1 - _MARGIN) if held else float("-inf")
        self._has_held = self._has_held or held
        return held

    def release(self) -> None:
        """Release the Lease, so that another operator need not wait for it to expire."""
        if self.may_write_seconds() <= 0:
            return
        self._held_until = float("-inf")
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self._identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                self._api.update(LEASES, self._namespace, self._name, {**lease, "spec": spec})
        except ApiError as error:
            log.info("the lease could not be released and will expire: %s", error)

    def run(self, stop: threading.Event, on_held: Callable[[], None]) -> bool:
        """Try to get the Lease and renew it, and call `on_held` whenever writing is allowed from then on.

        Args:
            stop: Ends the run.
            on_held: Called when the Lease is acquired, and when it is still held after an API server outage; must return soon.

        Returns:
            False if the Lease was held and another candidate has it now, True if the run was stopped.
        """
        leads = writes = False
        while not stop.is_set():
            held = self.step()
            if leads and held is False:
                return False
            if held and not writes:
                leads = True
                log.info("%s holds the lease %s/%s", self._identity, self._namespace, self._name)
                on_held()
            writes = bool(held)
            stop.wait(self.pause_seconds)
        return True

    def _try(self, begun: float) -> bool:
        if self._held_until > begun and self._renew():
            return True
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
        except ApiError as error:
            if not error.not_found:
                raise
            return self._write(self._api.create, LEASES, self._namespace, self._lease({}))
        spec = lease.get("spec") or {}
        if self._seen is None or _version(lease) != _version(self._seen):
            self._seen, self._seen_at = lease, begun
        expired = begun - self._seen_at >= float(spec.get("leaseDurationSeconds") or 0)
        holder = spec.get("holderIdentity") or ""
        if holder != self._identity and (self._has_held or (holder and not expired)):
            return False  # nor is it taken again: what was learned under the first is outdated
        return self._write(self._api.update, LEASES, self._namespace, self._name, self._lease(lease))

    def _renew(self) -> bool:
        """Write the Lease without reading it: the holder has written it last.

        If that is not so (an answer was lost, or another has it), the write is refused, and the next read shows why.
        """
        return self._seen is not None and self._write(
            self._api.update, LEASES, self._namespace, self._name, self._lease(self._seen)
        )

    def _write(self, write: Callable[..., Object], *arguments: object) -> bool:
        """Write the Lease; it is not an error if another candidate was faster, or has deleted it."""
        try:
            self._seen = write(*arguments)
        except ApiError as error:
            if error.conflict or error.not_found:
                return False
            raise
        self._seen_at = self._clock()
        return True

    def _lease(self, known: Object) -> Json:
        spec = known.get("spec") or {}
        now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        renewed = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "renewTime": now,
        }
        if spec.get("holderIdentity") != self._identity:
            renewed |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + bool(known)}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {**(known.get("metadata") or {}), "name": self._name, "namespace": self._namespace},
            "spec": {**spec, **renewed},
        }


def _version(lease: Object) -> str:
    return str((lease.get("metadata") or {}).get("resourceVersion"))
