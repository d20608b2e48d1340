"""What a manifest means to the runtime: its fields as settings under Kafka's own names.

The local host and the operator both start replicas through this mapping, so that an application runs alike in both. It is a
pure function: secrets and addresses that only the host knows are handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace.manifest.fields import duration_ms
from millrace.manifest.streamsapp import StreamsApp

_SECURITY_PREFIXES = ("security.", "sasl.", "ssl.")


def replica_name(app: StreamsApp, replica: int) -> str:
    """Return the name of a replica, which is that of its pod: `<name>-<replica>`."""
    return f"{app.metadata.name}-{replica}"


def to_streams_config(
    app: StreamsApp,
    replica: int | None = None,
    *,
    state_dir: Path | None = None,
    bootstrap_servers: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the settings of one replica of an application, for `StreamsConfig.of`.

    Args:
        app: The manifest.
        replica: Which replica, from 0; it becomes a static member of the group. None gives what all replicas share.
        state_dir: Where the replica keeps its state.
        bootstrap_servers: Brokers to use in place of the manifest's, with its security settings left out.
    """
    spec = app.spec
    config = dict(spec.kafka.config)
    if bootstrap_servers is not None:
        config = {key: value for key, value in config.items() if not _is_security(key)}
    settings: dict[str, Any] = {
        **config,
        "application.id": spec.application_id,
        "bootstrap.servers": ",".join(spec.kafka.bootstrap_servers if bootstrap_servers is None else bootstrap_servers),
        "num.stream.threads": spec.threads,
        "processing.guarantee": spec.processing.guarantee.value,
    }
    if spec.processing.commit_interval is not None:
        settings["commit.interval.ms"] = duration_ms(spec.processing.commit_interval)
    if replica is not None:
        settings["client.id"] = settings["group.instance.id"] = replica_name(app, replica)
    if state_dir is not None:
        settings["state.dir"] = str(state_dir)
    return settings


def _is_security(key: str) -> bool:
    _, _, after = key.rpartition("consumer.")
    after = after.removeprefix("producer.").removeprefix("admin.")
    return after.startswith(_SECURITY_PREFIXES)
