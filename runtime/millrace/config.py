"""`StreamsConfig`: every setting of a Streams application, under Kafka's own dotted names.

Fields are Kafka's keys with underscores instead of dots, and the dotted key is the alias: either may be given. Keys that Kafka
Streams does not know are client settings: they are kept in `client_settings` and passed to the clients, as in Java, where the
prefixes `consumer.`, `producer.` … restrict them to one client.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from millrace.checks import located, shown
from millrace.durations import to_millis
from millrace.errors import ConfigError, TopologyError

CLIENT_PREFIXES = ("main.consumer.", "restore.consumer.", "global.consumer.", "consumer.", "producer.", "admin.")
"""More specific prefixes first."""

INTERNAL_PREFIX = "__"
_CLIENTS_OWN = frozenset({"retry.backoff.max.ms"})
"""Settings of clients that look like misspelt ones of Kafka Streams."""

FINAL_RESULTS_INTERVAL = "__emit.interval.ms.kstreams.windowed.aggregation__"
"""Internal setting: how often (ms of wall clock) to check for windows whose final results are due; 1000 if absent."""
OUTER_JOIN_INTERVAL = "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__"
"""Internal setting: how often (ms of wall clock) to check for records of outer joins without a partner; 1000 if absent."""


class ProcessingGuarantee(StrEnum):
    """How often a record may take effect."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE_V2 = "exactly_once_v2"


class GroupProtocol(StrEnum):
    """Who assigns tasks: the members (`classic`) or the broker (`streams`, KIP-1071)."""

    CLASSIC = "classic"
    STREAMS = "streams"


def _listener(value: str) -> str:
    host, colon, port = value.rpartition(":")
    plain = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    if not colon or (":" in plain and plain == host) or not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ValueError(
            "write HOST:PORT, for example 127.0.0.1:8080 or [::1]:8080, or :8080 for all addresses; port 0 takes any free port"
        )
    return value


def _millis(value: object) -> object:
    """Return a timedelta, or a text such as `10s`, in milliseconds, and other values unchanged."""
    if isinstance(value, timedelta) or (isinstance(value, str) and value[-1:].isalpha()):
        try:
            return to_millis(value, "it")
        except TopologyError:
            raise ValueError('must be whole milliseconds, a timedelta, or a text such as "10s"') from None
    return value


_T = TypeVar("_T", int, float, str)

OPTIMIZATIONS: Final = frozenset({"merge.repartition.topics", "reuse.ktable.source.topics", "single.store.self.join"})
"""The rules of `topology.optimization`."""


def _optimization(value: str) -> str:
    names = {name.strip() for name in value.split(",") if name.strip()}
    if names - OPTIMIZATIONS and names not in ({"none"}, {"all"}):
        raise ValueError(f"must be none, all, or a list of {', '.join(sorted(OPTIMIZATIONS))}")
    return value


ClientConfig: TypeAlias = Mapping[str, Any]
"""Settings of Kafka clients as given, by their dotted names: text, numbers, booleans, functions, classes."""

CommaList = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda v: [part.strip() for part in v.split(",") if part.strip()] if isinstance(v, str) else v),
]
LOWER = BeforeValidator(lambda v: v.lower() if isinstance(v, str) else v)
UPPER = BeforeValidator(lambda v: v.upper() if isinstance(v, str) else v)
Bytes = Annotated[int, Field(ge=0)]
Millis = Annotated[int, BeforeValidator(_millis), Field(ge=0)]


class StreamsConfig(BaseModel):
    """The settings of one application; immutable. Defaults are Kafka Streams 4.3's.

    >>> config = StreamsConfig.of({"application.id": "wc", "bootstrap.servers": "127.0.0.1:9092"})
    >>> config.commit_interval_ms, config.processing_guarantee.value
    (30000, 'at_least_once')
    """

    model_config = ConfigDict(
        alias_generator=lambda name: name.replace("_", "."),
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
    )

    application_id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._-]+$")]
    bootstrap_servers: CommaList = ()
    client_id: str = ""
    application_server: str = ""
    state_dir: Path = Path("/tmp/kafka-streams")  # noqa: S108 (Kafka Streams' own default)

    num_stream_threads: Annotated[int, Field(ge=1)] = 1
    num_standby_replicas: Annotated[int, Field(ge=0)] = 0
    max_warmup_replicas: Annotated[int, Field(ge=1)] = 2
    acceptable_recovery_lag: Annotated[int, Field(ge=0)] = 10_000
    probing_rebalance_interval_ms: Annotated[int, Field(ge=60_000)] = 600_000
    task_assignor_class: object = None
    group_protocol: Annotated[GroupProtocol, LOWER] = GroupProtocol.CLASSIC
    group_instance_id: str | None = None
    """A consumer setting in Java; static members are so common here that it has its own field."""
    session_timeout_ms: Annotated[int, Field(ge=1)] = 45_000
    heartbeat_interval_ms: Annotated[int, Field(ge=1)] = 3_000
    max_poll_interval_ms: Annotated[int, Field(ge=1)] = 300_000
    rack_aware_assignment_non_overlap_cost: int | None = Field(
        default=None, alias="rack.aware.assignment.non_overlap_cost"
    )
    rack_aware_assignment_strategy: str = Field(default="none", pattern="^(none|min_traffic|balance_subtopology)$")
    rack_aware_assignment_tags: CommaList = ()
    rack_aware_assignment_traffic_cost: int | None = Field(default=None, alias="rack.aware.assignment.traffic_cost")

    processing_guarantee: Annotated[ProcessingGuarantee, LOWER] = ProcessingGuarantee.AT_LEAST_ONCE
    commit_interval_ms: Millis = 30_000
    poll_ms: Millis = 100
    max_poll_records: Annotated[int, Field(ge=1)] = 1_000
    max_task_idle_ms: Annotated[int, Field(ge=-1)] = 0
    task_timeout_ms: Millis = 300_000
    buffered_records_per_partition: Annotated[int, Field(ge=1)] = 1_000
    repartition_purge_interval_ms: Millis = 30_000

    default_key_serde: object = None
    default_value_serde: object = None
    default_list_key_serde_inner: object = None
    default_list_key_serde_type: object = None
    default_list_value_serde_inner: object = None
    default_list_value_serde_type: object = None
    default_timestamp_extractor: object = None
    deserialization_exception_handler: object = None
    default_deserialization_exception_handler: object = None
    processing_exception_handler: object = None
    processing_exception_handler_global_enabled: bool = False
    production_exception_handler: object = None
    default_production_exception_handler: object = None
    errors_dead_letter_queue_topic_name: str | None = None
    processor_wrapper_class: object = None
    windowed_inner_class_serde: object = None
    window_size_ms: int | None = None

    statestore_cache_max_bytes: Bytes = 10_485_760
    cache_max_bytes_buffering: Bytes | None = None
    default_dsl_store: Annotated[str, Field(pattern="^(rocksDB|in_memory)$")] = "rocksDB"
    dsl_store_suppliers_class: object = None
    dsl_store_format: Annotated[str, LOWER, Field(pattern="^(default|headers)$")] = "default"
    rocksdb_config_setter: object = None
    rocksdb_memory_max_bytes: Annotated[int, Field(ge=1)] = 268_435_456
    """Millrace's own: block cache and write buffers of all RocksDB stores of a process together."""
    rocksdb_memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Millrace's own: the same as a fraction of the container's memory limit; a number of bytes takes precedence."""
    state_cleanup_delay_ms: Millis = 600_000
    state_cleanup_dir_max_age_ms: int = -1
    allow_os_group_write_access: bool = False
    uncommitted_max_bytes: Bytes = 67_108_864
    """Millrace's own: a task commits early when its uncommitted state writes reach this size."""

    topology_optimization: Annotated[str, AfterValidator(_optimization)] = "none"
    ensure_explicit_internal_resource_naming: bool = False
    replication_factor: int = -1
    windowstore_changelog_additional_retention_ms: Millis = 86_400_000
    upgrade_from: Annotated[str, Field(pattern=r"^(2\.[4-8]|3\.[0-9]|4\.[0-2])$")] | None = None

    security_protocol: Annotated[str, UPPER, Field(pattern="^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$")] = "PLAINTEXT"
    request_timeout_ms: Millis = 40_000
    retry_backoff_ms: Millis = 100
    reconnect_backoff_ms: Millis = 50
    reconnect_backoff_max_ms: Millis = 1_000
    connections_max_idle_ms: int = 540_000
    metadata_max_age_ms: Millis = 300_000
    metadata_recovery_rebootstrap_trigger_ms: Millis = 300_000
    metadata_recovery_strategy: Annotated[str, LOWER, Field(pattern="^(rebootstrap|none)$")] = "rebootstrap"
    receive_buffer_bytes: Annotated[int, Field(ge=-1)] = 32_768
    send_buffer_bytes: Annotated[int, Field(ge=-1)] = 131_072
    config_providers: CommaList = ()
    default_client_supplier: object = None

    metrics_recording_level: Annotated[str, UPPER, Field(pattern="^(INFO|DEBUG|TRACE)$")] = "INFO"
    metrics_num_samples: Annotated[int, Field(ge=1)] = 2
    metrics_sample_window_ms: Millis = 30_000
    metric_reporters: object = ()
    built_in_metrics_version: str = "latest"
    enable_metrics_push: bool = True
    log_summary_interval_ms: int = 120_000
    telemetry_otlp_headers_file: Path | None = None
    """Millrace's own: a file with headers for OTLP requests, like OTEL_EXPORTER_OTLP_HEADERS; read before every request."""
    health_listener: Annotated[str, AfterValidator(_listener)] | None = None
    """Millrace's own: host:port where probes and status are served, on all addresses without a host; off unless set."""
    health_metrics: bool = False
    """Millrace's own: whether that listener serves `/metrics` for Prometheus."""

    client_settings: ClientConfig = Field(default_factory=dict)
    """Settings of the Kafka clients, `topic.`, `client.tag.` and internal (`__…__`) keys, as given."""

    @model_validator(mode="before")
    @classmethod
    def _split_client_settings(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        known = set(cls.model_fields) | {str(info.alias) for info in cls.model_fields.values()}
        ours = {key: value for key, value in data.items() if key in known}
        theirs = {key: value for key, value in data.items() if key not in known}
        theirs.update(ours.pop("client_settings", None) or ours.pop("client.settings", None) or {})
        return {**ours, "client_settings": theirs}

    @model_validator(mode="after")
    def _defaults_that_depend(self) -> Self:
        if self.exactly_once and "commit_interval_ms" not in self.model_fields_set:
            object.__setattr__(self, "commit_interval_ms", 100)
        if self.cache_max_bytes_buffering is not None and "statestore_cache_max_bytes" not in self.model_fields_set:
            object.__setattr__(self, "statestore_cache_max_bytes", self.cache_max_bytes_buffering)
        return self

    @classmethod
    def of(cls, settings: Mapping[str, object] | StreamsConfig) -> StreamsConfig:
        """Validate settings, given by Kafka's dotted names or by field names.

        Raises:
            ConfigError: a setting is invalid (the message names the key, its value and the rule it breaks), or its key is
                misspelt.
        """
        if isinstance(settings, StreamsConfig):
            return settings
        if not isinstance(settings, Mapping):
            raise ConfigError(located(f"The configuration must be a mapping of settings, not {shown(settings)}"))
        try:
            config = cls.model_validate(dict(settings))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, item['loc'])) or 'configuration'}: {item['msg']}"
                + (f" (got {item['input']!r})" if item["type"] != "missing" else "")
                for item in error.errors()
            )
            raise ConfigError(located(f"Invalid configuration: {problems}")) from None
        unknown = config.unknown_keys()
        if unknown:
            problems = "; ".join(f"{key} is not a setting; did you mean {near}?" for key, near in unknown.items())
            raise ConfigError(located(f"Invalid configuration: {problems}"))
        return config

    @property
    def exactly_once(self) -> bool:
        """Whether records are processed in transactions (EOS-v2)."""
        return self.processing_guarantee is ProcessingGuarantee.EXACTLY_ONCE_V2

    def may_run_before(self, *version: int) -> bool:
        """Whether instances older than this version (major, minor) may be running, as `upgrade.from` says."""
        if self.upgrade_from is None:
            return False
        major, _, minor = self.upgrade_from.partition(".")
        return (int(major), int(minor)) < version

    def internal(self, name: str, default: _T) -> _T:
        """Return an internal setting (`__…__`), converted to the type of its default."""
        value = self.client_settings.get(name)
        return default if value is None else type(default)(value)

    def prefixed(self, prefix: str) -> dict[str, Any]:
        """Return the settings that start with a prefix (`topic.`, `client.tag.`), without it."""
        return {k[len(prefix) :]: v for k, v in self.client_settings.items() if k.startswith(prefix)}

    def common_client_settings(self) -> dict[str, object]:
        """Return the settings that every client gets: those without a prefix that are not Kafka Streams' own."""
        skip = (*CLIENT_PREFIXES, "topic.", "client.tag.", INTERNAL_PREFIX)
        return {k: v for k, v in self.client_settings.items() if not k.startswith(skip)}

    def unknown_keys(self) -> dict[str, str | None]:
        """Return the client settings that look like misspelt Kafka Streams keys, each with the nearest known key."""
        known = [str(info.alias) for info in type(self).model_fields.values()]
        ours = self.common_client_settings().keys() - _CLIENTS_OWN
        guesses = {key: difflib.get_close_matches(key.replace("_", "."), known, 1, 0.88) for key in sorted(ours)}
        return {key: near[0] for key, near in guesses.items() if near}
