"""Compiles sink nodes: they serialise a record, choose its topic and partition, and hand it to the collector.

Each kind of sink has its own closure, so that the plain sink (fixed topic, default partitioner) pays for nothing else. A
windowed key goes to the partition of its inner key; a custom partitioner may return one partition, several (multicast), an empty
collection (the record is dropped), or None for the default (KIP-837).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from millrace.dropped_records import DropReason
from millrace.engine.node_runtime import CompileEnv
from millrace.engine.partitioner import partition_for_key
from millrace.engine.record_collector_protocol import RecordCollector
from millrace.errors import ConfigError, InvalidTimestampError, TopologyError
from millrace.loading import implements
from millrace.processor.node import ProcessFn
from millrace.records import Headers, Record
from millrace.serdes.base import Serde
from millrace.serdes.primitives import c_encoder
from millrace.topology.physical_topology import SinkNode

_T = TypeVar("_T")
SendFn = Callable[[str, object, object, bytes | None, bytes | None, int, Headers], None]
"""topic, key, value, key bytes, value bytes, timestamp ms, headers."""
BaseKeyFn = Callable[[str, Any, Headers], bytes]
"""topic, windowed key, headers; returns the bytes of the inner key, by which windowed keys are partitioned."""


class _WindowedSerde(Protocol):
    """A serde of windowed keys."""

    def serialize_base_key(self, topic: str, data: Any, headers: Headers) -> bytes: ...


class _FixedSuffix(Protocol):
    """A serde of windowed keys that ends with the window, in this number of bytes."""

    suffix_size: int


def required_serde(serde: Serde[_T] | None, default: Serde[_T] | None, node: str, which: str) -> Serde[_T]:
    """Return a node's serde or the default.

    Raises:
        ConfigError: neither is given.
    """
    found = default if serde is None else serde
    if found is None:
        raise ConfigError(f"Node {node} has no {which} serde: give it one, or set default.{which}.serde")
    return found


def compile_sink(node: SinkNode, env: CompileEnv) -> ProcessFn:
    """Return the closure of a sink node."""
    if env.collector is None:
        raise TopologyError(f"Sink {node.name} cannot be part of a global store's nodes: those have no producer")
    key_serde = required_serde(node.key_serde, env.default_key_serde, node.name, "key")
    value_serde = required_serde(node.value_serde, env.default_value_serde, node.name, "value")
    base_key: BaseKeyFn | None = key_serde.serialize_base_key if implements(key_serde, _WindowedSerde) else None
    fixed_suffix = key_serde.suffix_size if implements(key_serde, _FixedSuffix) else None
    suffix_size = 0 if base_key is None else fixed_suffix
    if node.topic is not None and node.partitioner is None and suffix_size is not None:
        return _plain_sink(node, node.topic, key_serde, value_serde, env, suffix_size)
    if node.partitioner is not None:
        send = _send_by_partitioner(node, env)
    elif base_key is not None:
        send = _send_by_inner_key(base_key, env.collector)
    else:
        send = _send_by_key(env.collector)
    return _general_sink(node, key_serde, value_serde, env, send)


def _plain_sink(
    node: SinkNode, topic: str, key_serde: Serde[object], value_serde: Serde[object], env: CompileEnv, suffix_size: int
) -> ProcessFn:
    """Return the closure for a fixed topic; windowed keys end with a window of `suffix_size` bytes, which is 0 for other keys."""
    assert env.collector is not None
    name, serialize_key, serialize_value = node.name, key_serde.serialize, value_serde.serialize
    send, serialization_failed = env.collector.send, env.failures.serialization_failed
    partition_count = env.collector.partition_count

    def sink(key: object, value: object, timestamp: int, headers: Headers) -> None:
        try:
            key_bytes = None if key is None else serialize_key(topic, key, headers)
            value_bytes = None if value is None else serialize_value(topic, value, headers)
        except Exception as error:
            record = Record(key, value, timestamp, headers)
            serialization_failed(name, topic, key_serde, value_serde, error, record)
            return
        if timestamp < 0:
            raise _negative_timestamp(name, topic, timestamp)
        if suffix_size and key_bytes is not None:
            partition = partition_for_key(key_bytes[:-suffix_size], partition_count(topic))
            send(topic, key_bytes, value_bytes, timestamp, headers, partition)
        else:
            send(topic, key_bytes, value_bytes, timestamp, headers, None)

    encode_key, encode_value = c_encoder(key_serde), c_encoder(value_serde)
    if encode_key is None or encode_value is None:
        return sink

    def quick_sink(key: object, value: object, timestamp: int, headers: Headers) -> None:
        try:
            key_bytes = None if key is None else encode_key(key)
            value_bytes = None if value is None else encode_value(value)
        except Exception:
            encoded = False
        else:
            encoded = timestamp >= 0
        if encoded:
            send(topic, key_bytes, value_bytes, timestamp, headers, None)
        else:
            sink(key, value, timestamp, headers)  # which says what is wrong

    return quick_sink


def _general_sink(
    node: SinkNode, key_serde: Serde[object], value_serde: Serde[object], env: CompileEnv, send: SendFn
) -> ProcessFn:
    name, fixed_topic, extractor = node.name, node.topic, node.topic_extractor
    serialize_key, serialize_value = key_serde.serialize, value_serde.serialize
    context, failures = env.record, env.failures

    def sink(key: object, value: object, timestamp: int, headers: Headers) -> None:
        if timestamp < 0:
            raise _negative_timestamp(name, fixed_topic, timestamp)
        try:
            if extractor is None:
                topic = fixed_topic
            else:
                context.timestamp = timestamp
                context.headers = headers
                topic = extractor(key, value, context)
            if not isinstance(topic, str):
                raise TypeError(f"the topic extractor returned {topic!r}, which is not a topic name")  # noqa: TRY301
        except Exception as error:
            failures.processing_failed(name, error, key, value, timestamp, headers)
            return
        try:
            key_bytes = None if key is None else serialize_key(topic, key, headers)
            value_bytes = None if value is None else serialize_value(topic, value, headers)
        except Exception as error:
            record = Record(key, value, timestamp, headers)
            failures.serialization_failed(name, topic, key_serde, value_serde, error, record)
            return
        send(topic, key, value, key_bytes, value_bytes, timestamp, headers)

    return sink


def _send_by_key(collector: RecordCollector) -> SendFn:
    send = collector.send

    def by_key(
        topic: str,
        _key: object,
        _value: object,
        key_bytes: bytes | None,
        value_bytes: bytes | None,
        ts: int,
        headers: Headers,
    ) -> None:
        send(topic, key_bytes, value_bytes, ts, headers, None)

    return by_key


def _send_by_inner_key(base_key: BaseKeyFn, collector: RecordCollector) -> SendFn:
    send, partition_count = collector.send, collector.partition_count

    def by_inner_key(
        topic: str,
        key: object,
        _value: object,
        key_bytes: bytes | None,
        value_bytes: bytes | None,
        ts: int,
        headers: Headers,
    ) -> None:
        partition = None if key is None else partition_for_key(base_key(topic, key, headers), partition_count(topic))
        send(topic, key_bytes, value_bytes, ts, headers, partition)

    return by_inner_key


def _send_by_partitioner(node: SinkNode, env: CompileEnv) -> SendFn:
    assert env.collector is not None
    assert node.partitioner is not None
    name, partitioner, failures, drop = node.name, node.partitioner, env.failures, env.drop_record
    send, partition_count = env.collector.send, env.collector.partition_count

    def by_partitioner(
        topic: str,
        key: object,
        value: object,
        key_bytes: bytes | None,
        value_bytes: bytes | None,
        ts: int,
        headers: Headers,
    ) -> None:
        count = partition_count(topic)
        try:
            chosen = partitioner(topic, key, value, count)
            targets = (chosen,) if chosen is None or isinstance(chosen, int) else tuple(sorted(set(chosen)))
            for target in targets:
                if target is not None and not 0 <= target < count:
                    raise ValueError(f"the partitioner chose partition {target} of {topic}, which has {count}")  # noqa: TRY301
        except Exception as error:
            failures.processing_failed(name, error, key, value, ts, headers)
            return
        if not targets:
            drop(name, DropReason.NO_PARTITION)
        for target in targets:
            send(topic, key_bytes, value_bytes, ts, headers, target)

    return by_partitioner


def _negative_timestamp(name: str, topic: str | None, timestamp: int) -> InvalidTimestampError:
    return InvalidTimestampError(
        f"Sink {name} was given a record for topic {topic} with the negative timestamp {timestamp}: "
        "forward records with a timestamp of at least 0"
    )
