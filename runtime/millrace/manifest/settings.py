"""The Kafka Streams settings that a manifest stands for, under Kafka's own names.

The local host and the operator both use this mapping to start replicas, so that an application runs the same way in both.
Addresses that only the host knows are arguments. Secrets are not read but referred to, in the syntax of Kafka's
DirectoryConfigProvider, `${directory:<directory>:<file>}`. The disk is only checked for which files of optional secrets
exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from millrace.config import GroupProtocol
from millrace.durations import duration_ms
from millrace.errors import ConfigError
from millrace.kafka.security import CLOUD_IDENTITIES
from millrace.manifest.kafka import Kafka, is_security_setting
from millrace.manifest.secrets import (
    BINDING,
    OTLP,
    PEM,
    SCHEMA_REGISTRY,
    NamedSecret,
    secrets_of_brokers,
)
from millrace.manifest.service_binding import BindingError, settings_of_binding
from millrace.manifest.streamsapp import Racks, Standby, StreamsApp, StreamsAppSpec

_HEARTBEAT_WITH_STANDBYS_MS = 500
"""Members learn from the answer to a heartbeat that standbys should take over; Kafka's default is 3 s."""
_HEARTBEAT_INTERVAL = tuple(f"{client}heartbeat.interval.ms" for client in ("main.consumer.", "consumer.", ""))
"""The keys for it; the first that is set has precedence."""
_LONGEST_TAG = 30
"""The most characters that the value of a client tag may have."""
SECRETS_DIR = Path("/etc/millrace/secrets")
"""Where a pod finds its secrets: a directory for each Secret, with a file for each key."""


def replica_name(app: StreamsApp, replica: int) -> str:
    """Return the name of a replica, which is also its pod's name: `<name>-<replica>`."""
    return f"{app.metadata.name}-{replica}"


def to_streams_config(
    app: StreamsApp,
    replica: int | None = None,
    *,
    state_dir: Path | None = None,
    bootstrap_servers: Sequence[str] | None = None,
    secrets_dir: Path | None = None,
    node_labels: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return the settings of one replica of an application, for `StreamsConfig.of`.

    Args:
        app: The manifest.
        replica: Which replica, from 0; its member of the group is static if the manifest says so. None gives the
            settings that all replicas share.
        state_dir: Where the replica keeps its state.
        bootstrap_servers: Brokers to use instead of the manifest's. The manifest's settings for replication and security,
            secrets included, are then left out.
        secrets_dir: Where the manifest's secrets are, one directory for each; `SECRETS_DIR` if not given.
        node_labels: The labels of the replica's node that the manifest names.

    Raises:
        ConfigError: The secrets are there, and one lacks a key.
    """
    spec = app.spec
    config = dict(spec.kafka.config)
    if bootstrap_servers is not None:
        config = {key: value for key, value in config.items() if not is_security_setting(key)}
    standbys_take_over = spec.standby.replicas and spec.kafka.group_protocol is GroupProtocol.CLASSIC
    settings: dict[str, object] = {
        **({"heartbeat.interval.ms": _HEARTBEAT_WITH_STANDBYS_MS} if standbys_take_over else {}),
        **(rack_settings(spec.racks, node_labels or {}) if spec.racks is not None else {}),
        **config,
        "application.id": spec.application_id,
        "num.stream.threads": spec.threads,
        "processing.guarantee": spec.processing.guarantee.value,
        **dict(_non_default_settings(spec)),
    }
    servers = spec.kafka.bootstrap_servers if bootstrap_servers is None else bootstrap_servers
    if servers:
        settings["bootstrap.servers"] = ",".join(servers)
    secrets = secrets_dir or SECRETS_DIR
    if bootstrap_servers is None:
        topics, registry = spec.internal_topics, spec.kafka.schema_registry
        replication = {
            "replication.factor": topics.replication_factor,
            "topic.min.insync.replicas": topics.min_insync_replicas,
        }
        settings |= {key: value for key, value in replication.items() if value is not None}
        settings |= dict(mechanism(spec.kafka))
        for secret in secrets_of_brokers(spec.kafka):
            settings |= dict(_of_secret(secret, secrets))
        if registry is not None and registry.secret_ref is not None:
            login = (_reference(secrets / SCHEMA_REGISTRY, key) for key in ("username", "password"))
            settings |= {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": ":".join(login)}
    if spec.observability.otlp is not None and spec.observability.otlp.headers_secret_ref is not None:
        settings["telemetry.otlp.headers.file"] = str(secrets / OTLP / "headers")
    if replica is not None:
        settings["client.id"] = replica_name(app, replica)
        if spec.static_members:
            settings["group.instance.id"] = replica_name(app, replica)
    if state_dir is not None:
        settings["state.dir"] = str(state_dir)
    return settings


def to_group_settings(spec: StreamsAppSpec) -> dict[str, str | None]:
    """Return the group's settings in the brokers that a manifest stands for; None is the brokers' default.

    Empty with the classic group protocol, where each member has its own.
    """
    if spec.kafka.group_protocol is GroupProtocol.CLASSIC:
        return {}
    timeout, config = spec.membership.session_timeout, spec.kafka.config
    heartbeat = next((config[key] for key in _HEARTBEAT_INTERVAL if key in config), None)
    return {
        "streams.num.standby.replicas": str(spec.standby.replicas),
        "streams.session.timeout.ms": None if timeout is None else str(duration_ms(timeout)),
        "streams.heartbeat.interval.ms": None if heartbeat is None else str(heartbeat),
    }


def rack_settings(racks: Racks, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that say where a replica runs: its rack, its client tags, and which of them separate copies.

    A label that the node does not have is left out, and so is a tag whose value is longer than Kafka Streams allows.

    Args:
        racks: Which labels of nodes count.
        labels: The labels of the replica's node.
    """
    tags = {tag: labels[label] for tag, label in racks.labels_by_tag.items() if labels.get(label)}
    rack = tags.get("rack")
    tags = {tag: value for tag, value in tags.items() if len(value) <= _LONGEST_TAG}
    return {
        **({"client.rack": rack} if rack else {}),
        **{f"client.tag.{tag}": value for tag, value in tags.items()},
        **({"rack.aware.assignment.tags": ",".join(tags)} if tags else {}),
    }


def _non_default_settings(spec: StreamsAppSpec) -> Iterator[tuple[str, object]]:
    """Yield the settings that differ from Kafka Streams' defaults, so that a pod's settings show only these."""
    processing, standby, membership = spec.processing, spec.standby, spec.membership
    usual, policy, metrics = Standby(), processing.error_policy, spec.observability.metrics
    interval, timeout = processing.commit_interval, membership.session_timeout
    by_brokers = spec.kafka.group_protocol is GroupProtocol.STREAMS  # then `to_group_settings` has these settings
    registry = spec.kafka.schema_registry
    for key, value, default in (
        ("group.protocol", spec.kafka.group_protocol.value, Kafka.model_fields["group_protocol"].default.value),
        ("schema.registry.url", None if registry is None else registry.url, None),
        ("commit.interval.ms", None if interval is None else duration_ms(interval), None),
        ("errors.dead.letter.queue.topic.name", processing.dead_letter_topic, None),
        ("num.standby.replicas", usual.replicas if by_brokers else standby.replicas, usual.replicas),
        ("max.warmup.replicas", standby.max_warmups, usual.max_warmups),
        ("acceptable.recovery.lag", standby.acceptable_recovery_lag, usual.acceptable_recovery_lag),
        ("session.timeout.ms", None if timeout is None or by_brokers else duration_ms(timeout), None),
        ("rocksdb.memory.fraction", spec.storage.memory_fraction, None),
        ("metrics.recording.level", metrics.level, "INFO"),
        ("health.metrics", metrics.pod_monitor.enabled, False),
    ):
        if value != default:
            yield key, value
    for decision, key, continues in (
        (policy.deserialization, "deserialization.exception.handler", "LogAndContinueExceptionHandler"),
        (policy.processing, "processing.exception.handler", "LogAndContinueProcessingExceptionHandler"),
        (policy.production, "production.exception.handler", ""),  # there is none that continues
    ):
        if decision != "Fail":
            yield key, continues if decision == "Continue" else decision
    yield from ((f"topic.{key}", value) for key, value in spec.internal_topics.config.items())


def mechanism(kafka: Kafka) -> Iterator[tuple[str, str]]:
    """Yield the settings for security protocol and SASL mechanism, except settings that come from Secrets."""
    tls, auth = kafka.tls, kafka.auth
    sasl = auth is not None and auth.type != "mtls"
    if tls is not None or sasl:
        yield "security.protocol", f"{'SASL_' if sasl else ''}{'PLAINTEXT' if tls is None else 'SSL'}"
    if auth is None or not sasl:
        return
    if auth.type not in {"oauthbearer", *CLOUD_IDENTITIES}:
        yield "sasl.mechanism", auth.type.upper()
        return
    yield "sasl.mechanism", "OAUTHBEARER"
    yield "sasl.oauthbearer.method", "oidc" if auth.type == "oauthbearer" else auth.type
    if auth.scope is not None:
        yield "sasl.oauthbearer.scope", auth.scope
    if auth.extensions:
        yield "sasl.oauthbearer.extensions", ",".join(f"{key}={value}" for key, value in auth.extensions.items())
    if auth.region is not None:
        yield "sasl.oauthbearer.aws.region", auth.region


def _of_secret(secret: NamedSecret, secrets: Path) -> Iterator[tuple[str, str]]:
    directory = secrets / secret.folder
    files = None
    if secrets.is_dir():
        files = {path for path in directory.iterdir() if path.stat().st_size} if directory.is_dir() else set()
    if secret.folder == BINDING:
        if files is None:
            return
        try:
            settings, keys = settings_of_binding({path.name: path.read_text("utf-8").strip() for path in files})
        except BindingError as error:
            name = secret.reference.name
            raise ConfigError(f"Secret {name} of {secret.field} {error} (looked for in {directory})") from None
        yield from settings.items()
    else:
        there = None if files is None else {path.name for path in files}
        if there is not None and (problem := secret.problem(there)) is not None:
            raise ConfigError(f"{problem} (looked for in {directory})")
        used = secret.used(there)
        keys = {secret.settings[key]: key for key in used}
        user = None if there is None else secret.named_user(used)
        if user is not None:
            yield "sasl.username", user
    for setting, key in keys.items():
        if setting in PEM:
            yield f"{setting}.location", str(directory / key)
        else:
            yield setting, _reference(directory, key)


def _reference(directory: Path, key: str) -> str:
    return f"${{directory:{directory}:{key}}}"
