"""The admin client of the simulated cluster, with the part of confluent-kafka's interface that Millrace uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import ConfigEntry, OffsetSpec  # type: ignore[attr-defined]

from millrace.kafka.admin_requests import REQUEST_TIMEOUT_S
from millrace.records import TopicPartition
from millrace.testing.simulation.broker import UNKNOWN_TOPIC, RefusedError
from millrace.testing.simulation.host import Host, lost

__all__ = ["SimulatedAdmin"]

_ABOUT_TOPICS: Final = frozenset({"create_topics", "describe_configs", "describe_topics"})

_SPEC: Any = OffsetSpec  # its factories carry no types
_EARLIEST, _LATEST = _SPEC.earliest()._value, _SPEC.latest()._value  # noqa: SLF001


class SimulatedAdmin:
    """An admin client; every request is answered at once, or times out."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.world

    def list_offsets(
        self, wanted: Mapping[ClientTopicPartition, Any], *, isolation_level: Any = None, request_timeout: float = 0.0
    ) -> dict[ClientTopicPartition, Future[SimpleNamespace]]:
        """Return first or last offsets."""
        del request_timeout
        committed_only = isolation_level is not None and isolation_level.value == 1
        return self._each("list_offsets", wanted, lambda item: self._offset(item, wanted[item], committed_only))

    def _offset(self, item: ClientTopicPartition, spec: Any, committed_only: bool) -> SimpleNamespace:  # noqa: FBT001
        partition = TopicPartition(item.topic, item.partition)
        log = self._world.broker.log(partition)
        kind = getattr(spec, "_value", None)
        if kind == _EARLIEST:
            return SimpleNamespace(offset=log.start)
        if kind == _LATEST:
            return SimpleNamespace(offset=log.stable_end if committed_only else log.end)
        return SimpleNamespace(offset=self._world.broker.offset_for_time(partition, spec.timestamp))

    def delete_records(
        self, wanted: Iterable[ClientTopicPartition], *, request_timeout: float = 0.0
    ) -> dict[ClientTopicPartition, Future[None]]:
        """Delete records up to offsets."""
        del request_timeout

        def delete(item: ClientTopicPartition) -> None:
            self._world.broker.delete_records(TopicPartition(item.topic, item.partition), item.offset)

        return self._each("delete_records", wanted, delete)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> SimpleNamespace:
        """Return the cluster's metadata."""
        del timeout
        self._host.require_alive()
        topics = self._world.broker.topics
        names = topics if topic is None else {topic} & topics.keys()
        return SimpleNamespace(
            topics={name: SimpleNamespace(error=None, partitions=dict.fromkeys(range(topics[name]))) for name in names}
        )

    def describe_topics(self, names: Any, **_settings: object) -> dict[str, Future[SimpleNamespace]]:
        """Return topics' ids and partitions."""
        node = SimpleNamespace(id=0, rack=None)

        def describe(name: str) -> SimpleNamespace:
            count = self._world.broker.topics.get(name)
            if count is None:
                raise RefusedError(UNKNOWN_TOPIC)
            partitions = [SimpleNamespace(id=number, leader=node, replicas=[node]) for number in range(count)]
            return SimpleNamespace(topic_id=name, partitions=partitions, authorized_operations=None)

        return self._each("describe_topics", names.topic_names, describe)

    def describe_configs(
        self, resources: Iterable[Any], **_settings: object
    ) -> dict[Any, Future[dict[str, ConfigEntry]]]:
        """Return topics' settings."""

        def describe(resource: Any) -> dict[str, ConfigEntry]:
            settings = self._world.broker.topic_configs.get(resource.name)
            if settings is None:
                raise RefusedError(UNKNOWN_TOPIC)
            return {key: ConfigEntry(key, value) for key, value in settings.items()}

        return self._each("describe_configs", resources, describe)

    def create_topics(self, topics: Iterable[Any], **_settings: object) -> dict[str, Future[None]]:
        """Create topics."""
        wanted = {topic.topic: topic for topic in topics}

        def create(name: str) -> None:
            self._world.broker.create_topic(name, wanted[name].num_partitions, wanted[name].config)

        return self._each("create_topics", wanted, create)

    def _each(self, name: str, items: Iterable[Any], answer: Callable[[Any], Any]) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {item: Future() for item in items}
        try:
            if name in _ABOUT_TOPICS and self._world.is_silent(self._host.number):
                self._host.take_time(REQUEST_TIMEOUT_S)
                raise lost(name)
            self._host.call(name, lambda: self._answer(futures, answer), lambda: lost(name))
        except KafkaException as error:
            for future in futures.values():
                if not future.done():
                    future.set_exception(error)
        return futures

    def _answer(self, futures: dict[Any, Future[Any]], answer: Callable[[Any], Any]) -> None:
        away = KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        for item, future in futures.items():
            if self._world.is_coordinator_down:
                future.set_exception(away)
                continue
            try:
                future.set_result(answer(item))
            except RefusedError as error:
                future.set_exception(KafkaException(KafkaError(error.code)))
