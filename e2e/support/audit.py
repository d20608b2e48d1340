"""Who wrote what, according to the API server's audit log: among several operators, only the holder of the Lease writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from e2e.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Write:
    """A write that the API server has carried out.

    Args:
        pod: The pod that requested it.
        what: Verb and path.
        begun: The time of the request, in seconds since the epoch.
        ended: The time of the response.
        of_lease: Whether it wrote a Lease.
    """

    pod: str
    what: str
    begun: float
    ended: float
    of_lease: bool


def writes_of(cluster: Cluster, namespace: str, account: str) -> list[Write]:
    """Return the writes by the pods of a ServiceAccount, in the order of the requests."""
    user = f"system:serviceaccount:{namespace}:{account}"
    lines = cluster.audit_log.read_bytes().rpartition(b"\n")[0].decode().splitlines()
    events = (json.loads(line) for line in lines if user in line)
    found = [_write(event) for event in events if event["user"]["username"] == user and _was_done(event)]
    return sorted(found, key=lambda write: write.begun)


def strangers(writes: Sequence[Write]) -> list[Write]:
    """Return the writes by pods that did not hold the Lease at the request, or no longer at the response.

    >>> term = Write("one", "update lease", 0, 1, of_lease=True)
    >>> [write.pod for write in strangers([term, *(Write(pod, "patch", 2, 3, of_lease=False) for pod in ("one", "two"))])]
    ['two']
    """
    terms = [write for write in writes if write.of_lease]
    return [write for write in writes if not write.of_lease and not _covered(write, terms)]


def _covered(write: Write, terms: Sequence[Write]) -> bool:
    before = [term for term in terms if term.ended <= write.begun]
    during = [term for term in terms if term.begun <= write.ended and term.ended > write.begun]
    return bool(before) and before[-1].pod == write.pod and all(term.pod == write.pod for term in during)


def _was_done(event: dict[str, Any]) -> bool:
    return event["stage"] == "ResponseComplete" and 200 <= event["responseStatus"]["code"] < 300


def _write(event: dict[str, Any]) -> Write:
    return Write(
        pod=event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0],
        what=f"{event['verb']} {event['requestURI']}",
        begun=_seconds(event["requestReceivedTimestamp"]),
        ended=_seconds(event["stageTimestamp"]),
        of_lease=event["objectRef"]["resource"] == "leases",
    )


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
