"""Requests to the API server: each is counted and has a timeout, and no write gets past the gate.

The gate makes a second operator harmless: it says for how many seconds this one may still write. A write gets no more
time than that, so that none is in flight when another operator takes over.

The gate is checked again in the connection, right before the bytes of a request are sent. Between an earlier check and that
moment the process may stand still for any length of time: it is paused, its machine sleeps, other threads run. When it
continues, another operator may long have taken over.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

import urllib3
from kubernetes import client
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from millrace_operator.cluster.kinds import ResourceKind
from millrace_operator.model import Object

log = logging.getLogger(__name__)

FIELD_MANAGER: Final = "millrace-operator"
REQUEST_TIMEOUT_SECONDS: Final = 10.0
FORBIDDEN: Final = 403
_SHORTEST_WRITE_SECONDS: Final = 0.5

Gate = Callable[[], float]
"""Returns how many seconds writing is still allowed; 0 or less if it is not."""
Count = Callable[[str, str, str, float], None]
"""Takes the verb, resource, status code and duration in seconds of a request."""


class NotAllowedToWriteError(Exception):
    """This operator does not hold the lease, or not for long enough."""


class ApiError(Exception):
    """The API server refused a request or did not answer it."""

    def __init__(self, what: str, status: int, reason: str, message: str) -> None:
        """Describe the failure.

        Args:
            what: Verb and path.
            status: HTTP status; 0 if there was no answer.
            reason: Kubernetes' one-word reason.
            message: What the API server said, for people.
        """
        super().__init__(f"{what}: {message}" if message else f"{what}: {status} {reason}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        """Whether there is no such object."""
        return self.status == 404

    @property
    def exists(self) -> bool:
        """Whether an object with this name already exists."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Whether the object is not the one, or not the version, that the request assumed."""
        return self.status == 409


class Requests:
    """Sends requests; safe to use from several threads.

    Args:
        api: The client with the cluster's address and credentials.
        gate: Asked before every write.
        count: Called for every request.
    """

    def __init__(self, api: client.ApiClient, gate: Gate, count: Count) -> None:
        self._api = api
        api.rest_client.pool_manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        self._gate = gate
        self._count = count

    @property
    def may_write(self) -> bool:
        """Whether this operator may change anything, including outside the API server."""
        return self._gate() >= _SHORTEST_WRITE_SECONDS

    def check_may_write(self) -> None:
        """Check that this operator may change anything, including outside the API server.

        Raises:
            NotAllowedToWriteError: It does not hold the lease.
        """
        if not self.may_write:
            raise NotAllowedToWriteError("this operator does not hold the lease")

    def get(
        self, kind: ResourceKind, namespace: str | None, name: str, subresource: str | None = None, **query: str
    ) -> Any:
        """Return an object, or the text of a log."""
        return self._send("get", "GET", kind, namespace, name, subresource, query)

    def serves(self, kind: ResourceKind) -> bool:
        """Return whether the API server knows a kind.

        Raises:
            ApiError: It does not say.
        """
        try:
            found = self._send("get", "GET", replace(kind, plural="", namespaced=False), None, None, None, {})
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return any(item.get("name") == kind.plural for item in found.get("resources") or ())

    def list(self, kind: ResourceKind, namespace: str | None, **query: str) -> Object:
        """Return a list as the API returns it, its items without `kind` and `apiVersion`."""
        found: Object = self._send("list", "GET", kind, namespace, None, None, query)
        return found

    def apply(self, kind: ResourceKind, obj: Object, uid: str) -> Object:
        """Bring the object with this uid to this state; fields that others own are taken over.

        Args:
            kind: Its kind.
            obj: What is wanted.
            uid: Of the object that was seen. The API server answers 409 if it is gone, 422 if another one is there.
        """
        obj = {**obj, "metadata": {**obj["metadata"], "uid": uid}}
        applied = self._apply(kind, obj)
        fields = applied["metadata"].get("managedFields") or ()
        own = [item for item in fields if item.get("manager") == FIELD_MANAGER and not item.get("subresource")]
        written = [item for item in own if item.get("operation") == "Update"]
        if not written:
            return applied
        # The server records fields that were created or patched under another operation than applied ones. Applying would
        # never remove such fields, so they are converted to applied ones, and the apply then removes what is no longer wanted.
        kept = [item for item in fields if item not in own]
        metadata = {
            "uid": uid,
            "resourceVersion": applied["metadata"]["resourceVersion"],
            "managedFields": [*kept, *({**item, "operation": "Apply"} for item in written)],
        }
        self.patch(kind, obj["metadata"].get("namespace"), obj["metadata"]["name"], {"metadata": metadata})
        return self._apply(kind, obj)

    def _apply(self, kind: ResourceKind, obj: Object) -> Object:
        metadata = obj["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        applied: Object = self._send(
            "apply",
            "PATCH",
            kind,
            metadata.get("namespace"),
            metadata["name"],
            None,
            query,
            obj,
            "application/apply-patch+yaml",
        )
        return applied

    def patch(
        self, kind: ResourceKind, namespace: str | None, name: str, body: Object, subresource: str | None = None
    ) -> Object:
        """Merge-patch an object or its subresource, and return the object."""
        query = {"fieldManager": FIELD_MANAGER}
        content_type = "application/merge-patch+json"
        patched: Object = self._send("patch", "PATCH", kind, namespace, name, subresource, query, body, content_type)
        return patched

    def create(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        """Create an object."""
        query = {"fieldManager": FIELD_MANAGER}
        created: Object = self._send("create", "POST", kind, namespace, None, None, query, body)
        return created

    def update(self, kind: ResourceKind, namespace: str | None, name: str, body: Object) -> Object:
        """Replace an object; if it has a resourceVersion, only that version."""
        query = {"fieldManager": FIELD_MANAGER}
        updated: Object = self._send("update", "PUT", kind, namespace, name, None, query, body)
        return updated

    def delete(self, kind: ResourceKind, namespace: str | None, name: str, *, uid: str, propagation: str) -> Object:
        """Delete the object with this uid."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": propagation}
        deleted: Object = self._send("delete", "DELETE", kind, namespace, name, None, {}, body)
        return deleted

    def _send(
        self,
        verb: str,
        method: str,
        kind: ResourceKind,
        namespace: str | None,
        name: str | None,
        subresource: str | None,
        query: Mapping[str, str],
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Any:
        path = kind.path(namespace, name, subresource)
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        gated = method != "GET" and kind.plural != "leases"
        seconds = min(REQUEST_TIMEOUT_SECONDS, self._gate()) if gated else REQUEST_TIMEOUT_SECONDS
        if gated:
            self.check_may_write()
        headers = {"Accept": "application/json", **({"Content-Type": content_type} if body is not None else {})}
        serialised = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        begun, status = time.monotonic(), 0
        log.debug("%s %s", verb, path)
        token = _check.set(self.check_may_write if gated else None)
        try:
            response = self._api.call_api(*serialised, _request_timeout=seconds)
            data: bytes = response.read() or b""
            status = response.status
        except (urllib3.exceptions.HTTPError, client.ApiException, OSError) as error:
            raise ApiError(f"{verb} {path}", 0, "NoAnswer", f"the API server does not answer: {error}") from error
        finally:
            _check.reset(token)
            self._count(verb, resource, str(status or "none"), time.monotonic() - begun)
            log.debug("answer to %s %s: %s", verb, path, status or "none")
        if subresource == "log" and status == 200:
            return data.decode(errors="replace")
        return _parsed(f"{verb} {path}", status, data)


def _parsed(what: str, status: int, data: bytes) -> Any:
    try:
        value = json.loads(data)
    except ValueError:
        value = {"message": data.decode(errors="replace")[:200]}
    if 200 <= status < 300:
        return value
    raise ApiError(what, status, str(value.get("reason", "")), str(value.get("message", "")))


_check: Final[ContextVar[Callable[[], None] | None]] = ContextVar("check", default=None)
"""What this thread calls before it sends anything; it raises if nothing may be sent."""


class _Connection(HTTPConnection):
    def send(self, data: Any) -> None:
        """Send if that is still allowed."""
        if (check := _check.get()) is not None:
            check()
        super().send(data)


class _SecureConnection(HTTPSConnection):
    def send(self, data: Any) -> None:
        """Send if that is still allowed."""
        if (check := _check.get()) is not None:
            check()
        super().send(data)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection
