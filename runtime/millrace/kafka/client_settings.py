"""The settings of all Kafka clients of an application, derived from its `StreamsConfig` as Kafka Streams derives them.

Precedence, lowest first: our defaults, settings without a prefix, `consumer.`/`producer.`/`admin.`, then `main.consumer.`,
`restore.consumer.` or `global.consumer.`, and finally what the processing guarantee enforces. The data clients never join a
group: they are given partitions with `assign`/`incremental_assign`; membership is `millrace.kafka.membership`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace.config import ClientConfig, StreamsConfig
from millrace.config_providers import files, is_reference, refers, resolve
from millrace.errors import ConfigError
from millrace.kafka.credential_watch import CredentialWatch, LiveClients
from millrace.kafka.security import ClientProperties, Security, parse_security
from millrace.kafka.translation import translate

if TYPE_CHECKING:
    from millrace.kafka.tokens import Token, Tokens

log = logging.getLogger("millrace.kafka.clients")

_CLIENT_FIELDS: Final = (
    *("request_timeout_ms", "retry_backoff_ms", "reconnect_backoff_ms", "reconnect_backoff_max_ms"),
    *("connections_max_idle_ms", "metadata_max_age_ms", "metadata_recovery_strategy", "receive_buffer_bytes"),
    *("metadata_recovery_rebootstrap_trigger_ms", "send_buffer_bytes", "enable_metrics_push", "max_poll_records"),
    *("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "group_instance_id", "security_protocol"),
)
"""Fields of StreamsConfig that are client settings, and passed to clients only if the user set them."""

_TRANSACTION_TIMEOUT_MS: Final = 10_000

_QUEUE: Final = {"queued.min.messages": 20_000, "queued.max.messages.kbytes": 16_384, "fetch.queue.backoff.ms": 5}
"""How much a consumer prefetches, in one queue for all its partitions, and how soon it notices that there is room again.

Every queued record costs librdkafka about half a kilobyte on top of its bytes, hence both limits. A response may exceed them:
`fetch.max.bytes` is by default the smaller of 50 MiB and `queued.max.messages.kbytes`.
"""
_FETCH_WAIT_MS: Final = 100
"""How long a broker waits for records to send. Each broker is sent one request at a time: while it waits for idle partitions,
nothing else is fetched from it. The queue holds more than a thread processes in that time."""
_RESTORE_FETCH_WAIT_MS: Final = 20
"""The same for changelogs. They are no longer read once their end is reached, so a short wait costs nothing when idle."""

_IN_FLIGHT: Final = 1
"""How many requests a producer sends to a broker without waiting for answers (Java: 5).

A broker that does not know a producer yet takes any batch from it. If it refuses the first one for the moment (it has just
become the leader, or too few replicas are in sync) and takes the second one, sent meanwhile, librdkafka concludes that the
first one was written too: its records are lost, without an error.
"""

_TRANSACTIONAL_IDLE_MS: Final = 30_000
"""How long a transactional producer keeps an idle connection.

librdkafka's cache of group coordinators may hold a broker that is no longer in the cluster's metadata. A request to it
waits, beyond its timeout, until any of the client's connections opens or closes; only then librdkafka asks who the
coordinator is. Closing idle connections lets the calls of abandoned producers return, and each producer's dozen threads end.
"""

_TRANSACTIONAL_LINGER_MS: Final = 10
"""How long a transactional producer waits for more records before it sends a batch.

Java waits 100 ms, the default interval of commits, but for 16 KiB at most. librdkafka's batches have a megabyte: with 100 ms
nearly all records would be sent by the commit, while the thread waits for it.
"""

_MAIN: Final = ("consumer.", "main.consumer.")
_RESTORE: Final = ("consumer.", "restore.consumer.")
_GLOBAL: Final = ("consumer.", "global.consumer.")
_PRODUCER: Final = ("producer.",)
_ADMIN: Final = ("admin.",)


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """Settings of the group membership client; all times in milliseconds."""

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

    def __init__(self, config: StreamsConfig, process_id: str, *, resolve_references: bool = True) -> None:
        """Derive settings; opens no client.

        Args:
            config: The application's settings.
            process_id: The process's UUID (formats §9), stable across restarts.
            resolve_references: False to read the settings where the files that they refer to do not exist.

        Raises:
            ConfigError: `bootstrap.servers` is missing.
        """
        if not config.bootstrap_servers:
            raise ConfigError("bootstrap.servers is missing: give the host:port of one or more brokers")
        self._config = config
        self._process_id = process_id
        self._resolve = resolve_references
        self._live = LiveClients()
        self._tokens: dict[tuple[tuple[str, str], ...], Tokens] = {}
        self._client_prefix = config.client_id or f"{config.application_id}-{process_id}"

    @property
    def config(self) -> StreamsConfig:
        """The application's settings."""
        return self._config

    # Names

    def thread_name(self, thread: int) -> str:
        """Return the name of a stream thread (counted from 1), the prefix of its clients' ids."""
        return f"{self._client_prefix}-StreamThread-{thread}"

    def transactional_id(self, thread: int) -> str:
        """Return the transactional id of a stream thread's producer (EOS-v2)."""
        return f"{self._config.application_id}-{self._process_id}-{thread}"

    @property
    def admin_client_id(self) -> str:
        """The client id of the admin client."""
        return f"{self._client_prefix}-admin"

    # Clients

    def main_consumer(self, thread: int) -> ClientProperties:
        """Return settings of the consumer that feeds a stream thread."""
        return self._consumer(_MAIN, "main consumer", f"{self.thread_name(thread)}-consumer")

    def restore_consumer(self, thread: int) -> ClientProperties:
        """Return settings of the consumer that restores a thread's state and updates its standbys.

        It reads committed records only, also under at-least-once: a backfill that failed leaves aborted ones in changelogs.
        """
        name = f"{self.thread_name(thread)}-restore-consumer"
        return self._consumer(
            _RESTORE, "restore consumer", name, isolation="read_committed", fetch_wait_ms=_RESTORE_FETCH_WAIT_MS
        )

    def global_consumer(self) -> ClientProperties:
        """Return settings of the consumer that fills global stores."""
        name = f"{self._client_prefix}-GlobalStreamThread-global-consumer"
        return self._consumer(_GLOBAL, "global consumer", name)

    def producer(self, thread: int) -> ClientProperties:
        """Return settings of a stream thread's producer: transactional under exactly-once, else plain.

        Raises:
            ConfigError: A setting contradicts exactly-once.
        """
        given = self._given(*_PRODUCER)
        defaults: dict[str, object] = {
            "linger.ms": 100,
            "max.in.flight.requests.per.connection": _IN_FLIGHT,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 131_072,
        }
        forced: dict[str, object] = {"client.id": f"{self.thread_name(thread)}-producer"}
        if self._config.exactly_once:
            self._check_exactly_once(given)
            timeout = self.transaction_timeout_ms()
            defaults |= {"transaction.timeout.ms": timeout, "connections.max.idle.ms": _TRANSACTIONAL_IDLE_MS}
            defaults["linger.ms"] = _TRANSACTIONAL_LINGER_MS
            # Java retries until the transaction times out; librdkafka needs that limit as a number.
            given["delivery.timeout.ms"] = min(int(given.get("delivery.timeout.ms", timeout)), timeout)
            forced |= {"enable.idempotence": True, "transactional.id": self.transactional_id(thread)}
        else:
            defaults["enable.idempotence"] = True
            if int(given.get("max.in.flight.requests.per.connection", 5)) > 5 or _turns_off_acks(given):
                defaults["enable.idempotence"] = False
        return self._assemble(given, "producer", defaults, forced, _PRODUCER)

    def transaction_timeout_ms(self) -> int:
        """Return how long a transaction may take (EOS-v2)."""
        return int(self._given(*_PRODUCER).get("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS))

    def admin(self) -> ClientProperties:
        """Return settings of the process's admin client."""
        return self._assemble(self._given(*_ADMIN), "admin", {}, {"client.id": self.admin_client_id}, _ADMIN)

    def membership(self, thread: int) -> MembershipSettings:
        """Return settings of a stream thread's group member.

        A static member's instance id is `group.instance.id`-<thread> because each thread is a separate member.
        """
        config, given = self._config, self._given(*_MAIN)

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
        """Return the maximum number of records that the main consumer returns at once (`max.poll.records`)."""
        given = self._given(*_MAIN)
        return int(given.get("max.poll.records", self._config.max_poll_records))

    def auto_offset_reset(self) -> str:
        """Return where to start without a committed offset: `earliest`, `latest`, `none` or `by_duration:<ISO 8601>`."""
        return str(self._given(*_MAIN).get("auto.offset.reset", "earliest")).lower()

    def security(self, *prefixes: str) -> Security:
        """Return the security settings of clients with these prefixes."""
        return parse_security(self._given(*prefixes), self._config.security_protocol)

    def tokens(self, *prefixes: str) -> Tokens | None:
        """Return the token provider of clients with these prefixes, or None if they use no tokens.

        Clients with the same settings share one; the files that the settings refer to are read again for every token.
        """
        oauth = self.security(*prefixes).oauth
        if oauth is None:
            return None
        from millrace.kafka.tokens import Tokens, fetch_token  # noqa: PLC0415 - kafka-python takes long, few use tokens

        given = self._given(*prefixes, resolved=False)
        same = tuple(sorted((key, str(value)) for key, value in given.items() if key.startswith(("sasl.", "https."))))

        def fetch() -> Token:
            found = self.security(*prefixes).oauth
            assert found is not None
            return fetch_token(found, self._config.bootstrap_servers[0])

        return self._tokens.setdefault(same, Tokens(fetch, oauth.extensions))

    def kafka_python(self, thread: int | None = None) -> ClientProperties:
        """Return the settings of kafka-python's networking for a thread's member or, without a thread, for administration."""
        kind = _ADMIN if thread is None else _MAIN
        given = self._given(*kind)
        security = parse_security(given, self._config.security_protocol)
        config = self._config
        settings = ClientProperties(
            {
                **security.for_kafka_python(),
                "bootstrap_servers": list(config.bootstrap_servers),
                "client_id": self.admin_client_id if thread is None else f"{self.thread_name(thread)}-consumer",
                "request_timeout_ms": int(given.get("request.timeout.ms", 30_000)),
                "reconnect_backoff_ms": int(given.get("reconnect.backoff.ms", config.reconnect_backoff_ms)),
                "reconnect_backoff_max_ms": int(given.get("reconnect.backoff.max.ms", config.reconnect_backoff_max_ms)),
                "connections_max_idle_ms": int(given.get("connections.max.idle.ms", config.connections_max_idle_ms)),
                "metadata_max_age_ms": int(given.get("metadata.max.age.ms", config.metadata_max_age_ms)),
                "receive_message_max_bytes": 100_000_000,  # the leader receives all members' subscriptions in one answer
            }
        )
        if security.oauth is not None:
            settings["sasl_oauth_token_provider"] = self.tokens(*kind)
        settings.on_open = lambda client: self._live.add(client, kind)
        return settings

    # Credential rotation

    def watch_credentials(self) -> CredentialWatch:
        """Return a watch, not yet started, that gives new credentials to the clients opened with these settings.

        Raises:
            ConfigError: A file that a setting refers to cannot be read.
        """
        return CredentialWatch(
            self._live,
            lambda kind: self.security(*kind),
            (_MAIN, _RESTORE, _GLOBAL, _PRODUCER, _ADMIN),
            [path for value in self._config.client_settings.values() for path in files(value)],
        )

    # Assembly

    def _given(self, *prefixes: str, resolved: bool = True) -> dict[str, Any]:
        """Return the user's settings for a client: the unprefixed ones, overridden by each prefix in order."""
        config = self._config
        given = {
            field.replace("_", "."): getattr(config, field)
            for field in _CLIENT_FIELDS
            if field in config.model_fields_set
        }
        given |= config.common_client_settings()
        for prefix in prefixes:
            given |= config.prefixed(prefix)
        if not resolved:
            return given
        if self._resolve:
            return {key: resolve(key, value) for key, value in given.items()}
        return _without_references(given)

    def _consumer(
        self,
        kind: tuple[str, ...],
        client: str,
        client_id: str,
        *,
        isolation: str = "read_uncommitted",
        fetch_wait_ms: int = _FETCH_WAIT_MS,
    ) -> ClientProperties:
        given = self._given(*kind)
        committed_only = self._config.exactly_once
        if committed_only and given.get("isolation.level", "read_committed") != "read_committed":
            log.warning(
                "isolation.level=%s is ignored: exactly_once_v2 reads committed records only", given["isolation.level"]
            )
        defaults = {"isolation.level": isolation, "fetch.wait.max.ms": fetch_wait_ms, **_QUEUE}
        forced: dict[str, object] = {
            "client.id": client_id,
            "group.id": self._config.application_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        if committed_only:
            forced["isolation.level"] = "read_committed"
        return self._assemble(given, client, defaults, forced, kind)

    def _assemble(
        self,
        given: Mapping[str, object],
        client: str,
        defaults: Mapping[str, object],
        forced: Mapping[str, object],
        kind: tuple[str, ...],
    ) -> ClientProperties:
        security = parse_security(given, self._config.security_protocol)
        settings = ClientProperties(
            {
                **defaults,
                **translate(given, client),
                **security.for_librdkafka(),
                **forced,
                "bootstrap.servers": ",".join(self._config.bootstrap_servers),
            }
        )
        if (tokens := self.tokens(*kind)) is not None:
            settings["oauth_cb"] = tokens.for_librdkafka
        settings.on_open = lambda client: self._live.add(client, kind)
        return settings

    def _check_exactly_once(self, given: ClientConfig) -> None:
        if str(given.get("enable.idempotence", True)).lower() == "false":
            raise ConfigError("enable.idempotence=false contradicts processing.guarantee=exactly_once_v2: remove it")
        if int(given.get("max.in.flight.requests.per.connection", 5)) > 5:
            raise ConfigError("max.in.flight.requests.per.connection must not be more than 5 with exactly_once_v2")
        if _turns_off_acks(given):
            raise ConfigError("acks must be all with processing.guarantee=exactly_once_v2")
        if "transactional.id" in given:
            log.warning("transactional.id is ignored: each stream thread's producer has its own")


def _turns_off_acks(given: Mapping[str, object]) -> bool:
    return str(given.get("acks", "all")) not in {"all", "-1"}


def _without_references(given: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that can be checked without the files: credentials count as given, other references as not set."""
    kept: dict[str, object] = {}
    for key, value in given.items():
        if key == "sasl.jaas.config" and is_reference(value):
            kept |= {"sasl.username": value, "sasl.password": value}
        elif key.startswith(("sasl.", "ssl.")) or not refers(value):
            kept[key] = value
    return kept
