"""What a manifest means to the runtime: its fields as settings under Kafka's own names.

The local host and the operator both start replicas through this mapping, so that an application runs alike in both. It is a
pure function: addresses that only the host knows are handed in, and secrets are not read but referred to, in the syntax of
Kafka's DirectoryConfigProvider: `${directory:<directory>:<file>}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from millrace.manifest.fields import duration_ms
from millrace.manifest.internal_topics import InternalTopics
from millrace.manifest.kafka import Auth, Kafka, Tls, is_security_setting
from millrace.manifest.processing import ErrorPolicy, Standby
from millrace.manifest.streamsapp import StreamsApp, StreamsAppSpec

SECRETS_DIR = Path("/etc/millrace/secrets")
"""Where a pod finds its secrets: a directory for each, with a file for each key."""
AUTH, TLS_CA, TLS_CLIENT, SCHEMA_REGISTRY, OTLP = "auth", "tls-ca", "tls-client", "schema-registry", "otlp"
"""The directories in it."""

_MECHANISMS = {
    "scram-sha-512": "SCRAM-SHA-512",
    "scram-sha-256": "SCRAM-SHA-256",
    "plain": "PLAIN",
    "oauthbearer": "OAUTHBEARER",
}
_HANDLERS = {
    "deserialization": ("deserialization.exception.handler", "LogAndContinueExceptionHandler"),
    "processing": ("processing.exception.handler", "LogAndContinueProcessingExceptionHandler"),
    "production": ("production.exception.handler", ""),
}


def replica_name(app: StreamsApp, replica: int) -> str:
    """Return the name of a replica, which is that of its pod: `<name>-<replica>`."""
    return f"{app.metadata.name}-{replica}"


def to_streams_config(
    app: StreamsApp,
    replica: int | None = None,
    *,
    state_dir: Path | None = None,
    bootstrap_servers: Sequence[str] | None = None,
    secrets_dir: Path | None = None,
) -> dict[str, Any]:
    """Return the settings of one replica of an application, for `StreamsConfig.of`.

    Args:
        app: The manifest.
        replica: Which replica, from 0; it becomes a member of the group, static unless the manifest says otherwise. None gives
            what all replicas share.
        state_dir: Where the replica keeps its state.
        bootstrap_servers: Brokers to use in place of the manifest's. What it says of its own cluster's replication and of
            security, secrets included, is left out then.
        secrets_dir: Where the secrets are that the manifest names, one directory for each; `SECRETS_DIR` if not given.
    """
    spec = app.spec
    config = dict(spec.kafka.config)
    if bootstrap_servers is not None:
        config = {key: value for key, value in config.items() if not is_security_setting(key)}
    settings: dict[str, Any] = {
        **config,
        "application.id": spec.application_id,
        "bootstrap.servers": ",".join(spec.kafka.bootstrap_servers if bootstrap_servers is None else bootstrap_servers),
        "num.stream.threads": spec.threads,
        "processing.guarantee": spec.processing.guarantee.value,
        **dict(_where_not_usual(spec)),
    }
    if bootstrap_servers is None:
        settings |= dict(_replication(spec.internal_topics))
        settings |= dict(_security(spec.kafka, secrets_dir or SECRETS_DIR))
        settings |= dict(_registry_login(spec.kafka, secrets_dir or SECRETS_DIR))
    if spec.observability.otlp is not None and spec.observability.otlp.headers_secret_ref is not None:
        settings["telemetry.otlp.headers.file"] = str((secrets_dir or SECRETS_DIR) / OTLP / "headers")
    if replica is not None:
        settings["client.id"] = replica_name(app, replica)
        if spec.membership.static:
            settings["group.instance.id"] = replica_name(app, replica)
    if state_dir is not None:
        settings["state.dir"] = str(state_dir)
    return settings


def _where_not_usual(spec: StreamsAppSpec) -> Iterator[tuple[str, Any]]:
    """Yield the settings that differ from Kafka Streams' defaults, so that what a pod is given says what is special about it."""
    processing = spec.processing
    if spec.kafka.group_protocol != Kafka.model_fields["group_protocol"].default:
        yield "group.protocol", spec.kafka.group_protocol.value
    if spec.kafka.schema_registry is not None:
        yield "schema.registry.url", spec.kafka.schema_registry.url
    if processing.commit_interval is not None:
        yield "commit.interval.ms", duration_ms(processing.commit_interval)
    if processing.dead_letter_topic is not None:
        yield "errors.dead.letter.queue.topic.name", processing.dead_letter_topic
    yield from _handlers(processing.error_policy)
    yield from _standby(spec.standby)
    if spec.membership.session_timeout is not None:
        yield "session.timeout.ms", duration_ms(spec.membership.session_timeout)
    yield from ((f"topic.{key}", value) for key, value in spec.internal_topics.config.items())
    if spec.storage.memory_fraction is not None:
        yield "rocksdb.memory.fraction", spec.storage.memory_fraction
    if spec.observability.metrics.level != "INFO":
        yield "metrics.recording.level", spec.observability.metrics.level
    if spec.observability.metrics.pod_monitor.enabled:
        yield "health.metrics", True


def _handlers(policy: ErrorPolicy) -> Iterator[tuple[str, str]]:
    for name, (key, continues) in _HANDLERS.items():
        decision = getattr(policy, name)
        if decision != "Fail":
            yield key, continues if decision == "Continue" else decision


def _standby(standby: Standby) -> Iterator[tuple[str, int]]:
    usual = Standby()
    for key, wanted, default in (
        ("num.standby.replicas", standby.replicas, usual.replicas),
        ("max.warmup.replicas", standby.max_warmups, usual.max_warmups),
        ("acceptable.recovery.lag", standby.acceptable_recovery_lag, usual.acceptable_recovery_lag),
    ):
        if wanted != default:
            yield key, wanted


def _replication(topics: InternalTopics) -> Iterator[tuple[str, int]]:
    if topics.replication_factor is not None:
        yield "replication.factor", topics.replication_factor
    if topics.min_insync_replicas is not None:
        yield "topic.min.insync.replicas", topics.min_insync_replicas


def _security(kafka: Kafka, secrets: Path) -> Iterator[tuple[str, str]]:
    sasl = kafka.auth is not None and kafka.auth.type != "mtls"
    if kafka.tls is not None or sasl:
        yield "security.protocol", f"{'SASL_' if sasl else ''}{'PLAINTEXT' if kafka.tls is None else 'SSL'}"
    if kafka.tls is not None:
        yield from _tls(kafka.tls, secrets)
    if kafka.auth is not None and sasl:
        yield from _sasl(kafka.auth, secrets / AUTH)


def _tls(tls: Tls, secrets: Path) -> Iterator[tuple[str, str]]:
    if tls.ca_secret_ref is not None:
        yield "ssl.ca.location", str(secrets / TLS_CA / "ca.crt")
    if tls.client_cert_secret_ref is not None:
        yield "ssl.certificate.location", str(secrets / TLS_CLIENT / "tls.crt")
        yield "ssl.key.location", str(secrets / TLS_CLIENT / "tls.key")


def _sasl(auth: Auth, directory: Path) -> Iterator[tuple[str, str]]:
    yield "sasl.mechanism", _MECHANISMS[auth.type]
    if auth.type == "oauthbearer":
        yield "sasl.oauthbearer.method", "oidc"
        yield "sasl.oauthbearer.client.id", _reference(directory, "clientId")
        yield "sasl.oauthbearer.client.secret", _reference(directory, "clientSecret")
        yield "sasl.oauthbearer.token.endpoint.url", _reference(directory, "tokenEndpoint")
    else:
        yield "sasl.username", _reference(directory, "username")
        yield "sasl.password", _reference(directory, "password")


def _registry_login(kafka: Kafka, secrets: Path) -> Iterator[tuple[str, str]]:
    if kafka.schema_registry is not None and kafka.schema_registry.secret_ref is not None:
        login = (_reference(secrets / SCHEMA_REGISTRY, key) for key in ("username", "password"))
        yield "basic.auth.credentials.source", "USER_INFO"
        yield "basic.auth.user.info", ":".join(login)


def _reference(directory: Path, key: str) -> str:
    return f"${{directory:{directory}:{key}}}"
