"""Whether a cluster is ready, as seen by a client."""

from __future__ import annotations

import socket
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

_REQUEST_TIMEOUT_S = 5.0
_SPEC: Any = OffsetSpec  # its factories carry no types
_CLIENT_CONFIG: dict[str, str | int] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 60_000,
}


def quiet_admin(bootstrap_servers: str) -> AdminClient:
    """Return an admin client that reconnects quickly and does not log connection failures."""
    return AdminClient({**_CLIENT_CONFIG, "bootstrap.servers": bootstrap_servers})


def accepts_connections(host: str, port: int) -> bool:
    """Return whether a server listens on the port."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def serves(admin: AdminClient, cluster_id: str, brokers: int) -> bool:
    """Return whether this cluster, and no other, has this many live brokers and could create a topic with a replica on each.

    The controller checks the request against its unfenced brokers but creates nothing.
    """
    probe = NewTopic("millrace-probe", 1, brokers)
    try:
        metadata: Any = admin.list_topics(timeout=_REQUEST_TIMEOUT_S)
        if metadata.cluster_id != cluster_id or len(metadata.brokers) < brokers:
            return False
        for future in admin.create_topics([probe], validate_only=True, request_timeout=_REQUEST_TIMEOUT_S).values():
            future.result()
    except KafkaException:
        return False
    return True


def has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Return whether this many partitions of a topic have leaders that serve them.

    Metadata names a leader a moment before that broker knows it, so each leader is asked for its partition's end.
    """
    try:
        described = admin.list_topics(topic, timeout=_REQUEST_TIMEOUT_S).topics[topic].partitions
        if len(described) < partitions or any(partition.leader < 0 for partition in described.values()):
            return False
        ends = {TopicPartition(topic, number): _SPEC.latest() for number in described}
        for future in admin.list_offsets(ends, request_timeout=_REQUEST_TIMEOUT_S).values():
            if future.result().offset == OFFSET_INVALID:  # the request has timed out
                return False
    except KafkaException:
        return False
    return True
