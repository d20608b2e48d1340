"""Settings of every Kafka client an application uses, derived from its `StreamsConfig` as Kafka Streams derives them.

Precedence, lowest first: our defaults, settings without a prefix, `consumer.`/`producer.`/`admin.`, then `main.consumer.`,
`restore.consumer.` or `global.consumer.`, and over all what the processing guarantee forces. The data clients never join a group:
they are given partitions with `assign`/`incremental_assign`; membership is `millrace.kafka.membership`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.kafka.secrets import Settings
from millrace.kafka.security import Security, parse_security
from millrace.kafka.translation import translate

log = logging.getLogger("millrace.kafka.clients")
librdkafka_log = logging.getLogger("millrace.kafka.librdkafka")

_CLIENT_FIELDS: Final = (
    *("request_timeout_ms", "retry_backoff_ms", "reconnect_backoff_ms", "reconnect_backoff_max_ms"),
    *("connections_max_idle_ms", "metadata_max_age_ms", "metadata_recovery_strategy", "receive_buffer_bytes"),
    *("metadata_recovery_rebootstrap_trigger_ms", "send_buffer_bytes", "enable_metrics_push", "max_poll_records"),
    *("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "group_instance_id", "security_protocol"),
)
"""Fields of StreamsConfig that are client settings: given to the clients only where the user set them."""

_TRANSACTION_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """What the group membership client needs; milliseconds throughout."""

    group_id: str
    instance_id: str | None
    client_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    rack_id: str | None = None


class ClientSettings:
    """The settings of all clients of one process of an application.

    >>> config = StreamsConfig.of({"application.id": "wc", "bootstrap.servers": "127.0.0.1:9092"})
    >>> settings = ClientSettings(config, process_id="7f3c")
    >>> settings.producer(1)["client.id"], settings.producer(1)["linger.ms"]
    ('wc-7f3c-StreamThread-1-producer', 100)
    """

    def __init__(self, config: StreamsConfig, process_id: str) -> None:
        """Derive settings; nothing is opened.

        Args:
            config: The application's settings.
            process_id: The process's UUID (formats §9), stable over restarts.

        Raises:
            ConfigError: `bootstrap.servers` is missing.
        """
        if not config.bootstrap_servers:
            raise ConfigError("bootstrap.servers is missing: give the host:port of one or more brokers")
        self._config = config
        self._process_id = process_id
        self._client_prefix = config.client_id or f"{config.application_id}-{process_id}"

    @property
    def config(self) -> StreamsConfig:
        """The settings these are derived from."""
        return self._config

    # Names

    def thread_name(self, thread: int) -> str:
        """Return the name of a stream thread (counted from 1), which its clients' ids begin with."""
        return f"{self._client_prefix}-StreamThread-{thread}"

    def transactional_id(self, thread: int) -> str:
        """Return the transactional id of a stream thread's producer (EOS-v2)."""
        return f"{self._config.application_id}-{self._process_id}-{thread}"

    @property
    def admin_client_id(self) -> str:
        """The client id of the admin client."""
        return f"{self._client_prefix}-admin"

    # Clients

    def main_consumer(self, thread: int) -> Settings:
        """Return settings of the consumer that feeds a stream thread."""
        given = self._given("consumer.", "main.consumer.")
        return self._consumer(given, "main consumer", f"{self.thread_name(thread)}-consumer", eof=True)

    def restore_consumer(self, thread: int) -> Settings:
        """Return settings of the consumer that restores a thread's state and updates its standbys."""
        given = self._given("consumer.", "restore.consumer.")
        return self._consumer(given, "restore consumer", f"{self.thread_name(thread)}-restore-consumer", eof=True)

    def global_consumer(self) -> Settings:
        """Return settings of the consumer that fills global stores."""
        given = self._given("consumer.", "global.consumer.")
        name = f"{self._client_prefix}-GlobalStreamThread-global-consumer"
        return self._consumer(given, "global consumer", name, eof=True)

    def producer(self, thread: int) -> Settings:
        """Return settings of a stream thread's producer: transactional under exactly-once, else plain.

        Raises:
            ConfigError: A setting contradicts exactly-once.
        """
        given = self._given("producer.")
        defaults: dict[str, Any] = {
            "linger.ms": 100,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 131_072,
        }
        forced: dict[str, Any] = {"client.id": f"{self.thread_name(thread)}-producer"}
        if self._config.exactly_once:
            self._check_exactly_once(given)
            timeout = int(given.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS))
            defaults["transaction.timeout.ms"] = timeout
            # Java retries for ever within the transaction's time-out; librdkafka wants that said as a number.
            given["delivery.timeout.ms"] = min(int(given.get("delivery.timeout.ms", timeout)), timeout)
            forced |= {"enable.idempotence": True, "transactional.id": self.transactional_id(thread)}
        else:
            defaults["enable.idempotence"] = True
            if int(given.get("max.in.flight.requests.per.connection", 5)) > 5 or _turns_off_acks(given):
                defaults["enable.idempotence"] = False
        return self._assemble(given, "producer", defaults, forced)

    def admin(self) -> Settings:
        """Return settings of the process's admin client."""
        return self._assemble(self._given("admin."), "admin", {}, {"client.id": self.admin_client_id})

    def membership(self, thread: int) -> MembershipSettings:
        """Return settings of a stream thread's group member.

        A static member's instance id is `group.instance.id`-<thread>, as each thread is a member of its own.
        """
        config, given = self._config, self._given("consumer.", "main.consumer.")

        def number(key: str, default: int) -> int:
            return int(given.get(key, default))

        instance = given.get("group.instance.id")
        return MembershipSettings(
            group_id=config.application_id,
            instance_id=None if instance is None else f"{instance}-{thread}",
            client_id=f"{self.thread_name(thread)}-consumer",
            session_timeout_ms=number("session.timeout.ms", config.session_timeout_ms),
            heartbeat_interval_ms=number("heartbeat.interval.ms", config.heartbeat_interval_ms),
            max_poll_interval_ms=number("max.poll.interval.ms", config.max_poll_interval_ms),
            request_timeout_ms=number("request.timeout.ms", 30_000),
            retry_backoff_ms=number("retry.backoff.ms", config.retry_backoff_ms),
            retry_backoff_max_ms=number("retry.backoff.max.ms", 1_000),
            metadata_max_age_ms=number("metadata.max.age.ms", config.metadata_max_age_ms),
            rack_id=given.get("client.rack"),
        )

    def max_poll_records(self) -> int:
        """Return how many records the main consumer takes at once (`max.poll.records`)."""
        given = self._given("consumer.", "main.consumer.")
        return int(given.get("max.poll.records", self._config.max_poll_records))

    def auto_offset_reset(self) -> str:
        """Return where to begin without a committed offset: `earliest`, `latest`, `none` or `by_duration:<ISO 8601>`."""
        return str(self._given("consumer.", "main.consumer.").get("auto.offset.reset", "earliest")).lower()

    def security(self, *prefixes: str) -> Security:
        """Return the security settings that clients with these prefixes have."""
        return parse_security(self._given(*prefixes), self._config.security_protocol)

    def kafka_python(self, thread: int | None = None) -> Settings:
        """Return settings of kafka-python's networking for a thread's member, or for a process-wide check."""
        given = self._given("consumer.", "main.consumer.") if thread is not None else self._given("admin.")
        security = parse_security(given, self._config.security_protocol)
        config = self._config
        return Settings(
            {
                **security.for_kafka_python(),
                "bootstrap_servers": list(config.bootstrap_servers),
                "client_id": self.admin_client_id if thread is None else f"{self.thread_name(thread)}-consumer",
                "request_timeout_ms": int(given.get("request.timeout.ms", 30_000)),
                "reconnect_backoff_ms": int(given.get("reconnect.backoff.ms", config.reconnect_backoff_ms)),
                "reconnect_backoff_max_ms": int(given.get("reconnect.backoff.max.ms", config.reconnect_backoff_max_ms)),
                "connections_max_idle_ms": int(given.get("connections.max.idle.ms", config.connections_max_idle_ms)),
                "metadata_max_age_ms": int(given.get("metadata.max.age.ms", config.metadata_max_age_ms)),
                "receive_message_max_bytes": 100_000_000,  # a leader receives every member's subscription in one answer
            }
        )

    # Assembly

    def _given(self, *prefixes: str) -> dict[str, Any]:
        """Return what the user set for a client: settings without a prefix, then those of the prefixes in order."""
        config = self._config
        given = {
            field.replace("_", "."): getattr(config, field)
            for field in _CLIENT_FIELDS
            if field in config.model_fields_set
        }
        given |= config.common_client_settings()
        for prefix in prefixes:
            given |= config.prefixed(prefix)
        return given

    def _consumer(self, given: dict[str, Any], client: str, client_id: str, *, eof: bool) -> Settings:
        committed_only = self._config.exactly_once
        if committed_only and given.get("isolation.level", "read_committed") != "read_committed":
            log.warning(
                "isolation.level=%s is ignored: exactly_once_v2 reads committed records only", given["isolation.level"]
            )
        defaults = {"isolation.level": "read_uncommitted", "fetch.wait.max.ms": 500}
        forced: dict[str, Any] = {
            "client.id": client_id,
            "group.id": self._config.application_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": eof,
        }
        if committed_only:
            forced["isolation.level"] = "read_committed"
        return self._assemble(given, client, defaults, forced)

    def _assemble(
        self, given: Mapping[str, Any], client: str, defaults: Mapping[str, Any], forced: Mapping[str, Any]
    ) -> Settings:
        security = parse_security(given, self._config.security_protocol)
        return Settings(
            {
                **defaults,
                **translate(given, client),
                **security.for_librdkafka(),
                **forced,
                "bootstrap.servers": ",".join(self._config.bootstrap_servers),
            }
        )

    def _check_exactly_once(self, given: Mapping[str, Any]) -> None:
        if str(given.get("enable.idempotence", True)).lower() == "false":
            raise ConfigError("enable.idempotence=false contradicts processing.guarantee=exactly_once_v2: remove it")
        if int(given.get("max.in.flight.requests.per.connection", 5)) > 5:
            raise ConfigError("max.in.flight.requests.per.connection must not be more than 5 with exactly_once_v2")
        if _turns_off_acks(given):
            raise ConfigError("acks must be all with processing.guarantee=exactly_once_v2")
        if "transactional.id" in given:
            log.warning("transactional.id is ignored: each stream thread's producer has one of its own")


def _turns_off_acks(given: Mapping[str, Any]) -> bool:
    return str(given.get("acks", "all")) not in {"all", "-1"}


def open_consumer(settings: Mapping[str, Any]) -> Consumer:
    """Open a consumer, its log messages going to ours.

    Raises:
        ConfigError: librdkafka does not take the settings.
    """
    return _open(Consumer, settings)


def open_producer(settings: Mapping[str, Any]) -> Producer:
    """Open a producer, its log messages going to ours.

    Raises:
        ConfigError: librdkafka does not take the settings.
    """
    return _open(Producer, settings)


def open_admin(settings: Mapping[str, Any]) -> AdminClient:
    """Open an admin client, its log messages going to ours.

    Raises:
        ConfigError: librdkafka does not take the settings.
    """
    return _open(AdminClient, settings)


_Client = TypeVar("_Client", Consumer, Producer, AdminClient)


def _open(client: type[_Client], settings: Mapping[str, Any]) -> _Client:
    try:
        return client(dict(settings), logger=librdkafka_log)
    except KafkaException as error:
        raise ConfigError(
            f"The settings of the {client.__name__.lower()} are not valid: {error.args[0].str()}"
        ) from None
