"""The configuration of internal topics (formats §1). Precedence: per store, then the application's `topic.*`, then defaults."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.config import StreamsConfig
from millrace.state.api import StoreBuilder
from millrace.topology.physical_topology import RepartitionTopic

ONE_DAY_MS = 86_400_000
LONG_MAX = 2**63 - 1

_COMMON = {"message.timestamp.type": "CreateTime"}


def repartition_topic_config(topic: RepartitionTopic, config: StreamsConfig) -> dict[str, str]:
    """Return the configuration of a repartition topic; its records are purged, never deleted by age."""
    return {
        **_COMMON,
        "cleanup.policy": "delete",
        "segment.bytes": "52428800",
        "retention.ms": "-1",
        **_application_defaults(config),
        **topic.config,
    }


def changelog_topic_config(builder: StoreBuilder, config: StreamsConfig) -> dict[str, str]:
    """Return the configuration of a store's changelog topic.

    The retention of windowed stores is derived from the store; it takes precedence over `topic.retention.ms`, but not over the
    store's own log configuration. The same is true of the compaction lag of versioned stores.
    """
    own: Mapping[str, str] = builder.log_config
    expires = builder.kind in ("window", "session")
    policy = "compact,delete" if expires else "compact"
    result = {**_COMMON, "cleanup.policy": policy, **_application_defaults(config), **own}
    retention_ms = builder.retention_ms
    if retention_ms is not None and expires:
        if "retention.ms" not in own:
            extra = config.windowstore_changelog_additional_retention_ms
            result["retention.ms"] = str(min(retention_ms + extra, LONG_MAX))
    elif retention_ms is not None and builder.kind == "versioned" and "min.compaction.lag.ms" not in own:
        result["min.compaction.lag.ms"] = str(min(retention_ms + ONE_DAY_MS, LONG_MAX))
    return result


def _application_defaults(config: StreamsConfig) -> dict[str, str]:
    return {name: str(value) for name, value in config.prefixed("topic.").items()}
