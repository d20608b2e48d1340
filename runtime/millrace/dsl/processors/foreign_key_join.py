"""The processors of a foreign-key join (KIP-213), in the order in which an update of the left table passes them.

1. `SubscriptionSend`, at the left entry's partition, subscribes the entry to its foreign key, and cancels its old subscription.
2. `SubscriptionReceive`, at the foreign key's partition, keeps the subscriptions in a store.
3. `SubscriptionJoin`, its child, answers with the current right value. An update of the right table is sent to all
   subscribers by `ForeignTableJoin`.
4. `ResponseJoin`, back at the left entry's partition, joins the answer with the entry, if the entry is still the one that
   subscribed: answers to its earlier values may arrive late, and from other partitions.

Sending the same subscription again is harmless, so a task that is restarted produces the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from millrace.config import StreamsConfig
from millrace.dropped_records import DropReason, DropRecord
from millrace.dsl.processors.tables import ChangeParts, Joiner, View
from millrace.errors import ConfigError
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import Headers
from millrace.serdes.base import AnySerde
from millrace.serdes.foreign_key import (
    DELETES,
    CombinedKey,
    CombinedKeySchema,
    Instruction,
    SubscriptionResponseWrapper,
    SubscriptionResponseWrapperSerde,
    SubscriptionWrapper,
    SubscriptionWrapperSerde,
    value_hash,
)
from millrace.serdes.resolve import default_key_serde, default_value_serde
from millrace.state.api import ValueTimestampHeaders

ForeignKeyExtractor = Callable[[Any, Any], object]
"""primary key and left value to foreign key, or None."""

_PARTITION_SINCE = (3, 4)
"""The first version of subscriptions that contains the partition."""


@dataclass(frozen=True, slots=True)
class ForeignKeySerdes:
    """The serdes of a foreign-key join, and the names they are given instead of topics; None means the default serde."""

    topic: str
    """The registration topic, without the application id."""
    primary_key: AnySerde | None
    left_value: AnySerde | None
    foreign_key: AnySerde | None
    right_value: AnySerde | None

    def pseudo_topic(self, config: StreamsConfig, what: str) -> str:
        """Return the name for foreign keys (`fk`), primary keys (`pk`) or hashed values (`vh`)."""
        return f"{config.application_id}-{self.topic}-{what}"

    def left_values(self, config: StreamsConfig) -> AnySerde:
        """Return the serde of the left table's values."""
        return self._found(self.left_value, config, "value")

    def foreign_keys(self, config: StreamsConfig) -> AnySerde:
        """Return the serde of the right table's keys."""
        return self._found(self.foreign_key, config, "key")

    def combined_keys(self, config: StreamsConfig) -> CombinedKeySchema[Any, Any]:
        """Return the layout of the subscription store's keys."""
        return CombinedKeySchema(
            self.foreign_keys(config), self.pseudo_topic(config, "fk"), self._primary_keys(config), self._pk(config)
        )

    def subscriptions(self, config: StreamsConfig) -> SubscriptionWrapperSerde[Any]:
        """Return the serde of subscriptions."""
        return SubscriptionWrapperSerde(
            self._primary_keys(config), self._pk(config), write_version_0=config.may_run_before(*_PARTITION_SINCE)
        )

    def responses(self, config: StreamsConfig) -> SubscriptionResponseWrapperSerde[Any]:
        """Return the serde of responses."""
        return SubscriptionResponseWrapperSerde(self._found(self.right_value, config, "value"))

    def _primary_keys(self, config: StreamsConfig) -> AnySerde:
        return self._found(self.primary_key, config, "key")

    def _pk(self, config: StreamsConfig) -> str:
        return self.pseudo_topic(config, "pk")

    def _found(self, serde: AnySerde | None, config: StreamsConfig, part: Literal["key", "value"]) -> AnySerde:
        found = serde or (default_key_serde(config) if part == "key" else default_value_serde(config))
        if found is None:
            raise ConfigError(
                f"The foreign-key join with topic {self.topic} has no {part} serde for one of its tables: give one to the "
                f"table with Consumed or Materialized, or set default.{part}.serde"
            )
        found.configure(config)
        return found


class SubscriptionSend:
    """Turns updates of the left table into subscriptions.

    An inner join asks for an answer only if it may change the result; a left join always does, since every entry has a result. A
    left entry without a foreign key is dropped by an inner join; a left join treats it like an entry without a match.

    As in Kafka Streams, an inner join can miss a deletion: if the right value is deleted while a subscription with the same
    foreign key is in flight, the answer to the deletion arrives late, and the new subscription is not answered.
    """

    def __init__(self, extractor: ForeignKeyExtractor, serdes: ForeignKeySerdes, *, left_join: bool) -> None:
        self._extractor = extractor
        self._serdes = serdes
        self._left_join = left_join
        self._versioned = False

    def use_versioned_semantics(self) -> None:
        """Drop out-of-order updates of the left table (KIP-914)."""
        self._versioned = True

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        extractor, serdes, versioned = self._extractor, self._serdes, self._versioned
        forward, drop, fail, partition = node.forward, node.drop_record, node.processing_failed, node.task_id.partition
        instruct = _left_instructions if self._left_join else _inner_instructions(drop)
        foreign_topic = serdes.pseudo_topic(node.config, "fk")
        value_topic = serdes.pseudo_topic(node.config, "vh")
        serialize_key = serdes.foreign_keys(node.config).serialize
        serialize_value = serdes.left_values(node.config).serialize

        def process(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
            new, old, is_latest = change
            if versioned and not is_latest:
                drop(DropReason.OUT_OF_ORDER)
                return
            try:
                old_key = None if old is None else extractor(key, old)
                new_key = None if new is None else extractor(key, new)
                moved = (old_key is None) is not (new_key is None) or (
                    old_key is not None
                    and serialize_key(foreign_topic, old_key) != serialize_key(foreign_topic, new_key)
                )
                digest = None if new is None else value_hash(serialize_value(value_topic, new))
            except Exception as error:
                fail(error, key, change, timestamp, headers)
                return
            for foreign_key, instruction in instruct(new, old, old_key, new_key, moved):
                subscription = SubscriptionWrapper(digest, instruction, key, partition)
                forward(foreign_key, subscription, timestamp, headers)

        return process


Instructions = tuple[tuple[object, Instruction], ...]
"""Foreign keys, each with an instruction for its owner."""
_Instruct = Callable[[Any, Any, Any, Any, bool], Instructions]
"""New and old left value, old and new foreign key, and whether these differ."""


def _left_instructions(new: object, old: object, old_key: object, new_key: object, moved: bool) -> Instructions:  # noqa: FBT001
    if new is None and old is None:
        return ()
    renewed = (new_key, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE)
    if old_key is not None and moved:
        return (old_key, Instruction.DELETE_KEY_NO_PROPAGATE), renewed
    return (renewed,)


def _inner_instructions(drop: DropRecord) -> _Instruct:
    def instruct(new: object, _old: object, old_key: object, new_key: object, moved: bool) -> Instructions:  # noqa: FBT001
        if new is not None and new_key is None:
            drop(DropReason.NULL_FOREIGN_KEY)
        if new_key is None:
            return () if old_key is None else ((old_key, Instruction.DELETE_KEY_AND_PROPAGATE),)
        if old_key is None or not moved:
            return ((new_key, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE),)
        return (
            (old_key, Instruction.DELETE_KEY_NO_PROPAGATE),
            (new_key, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE),
        )

    return instruct


class SubscriptionReceive:
    """Keeps subscriptions in their store, and forwards each with both keys."""

    def __init__(self, store_name: str, serdes: ForeignKeySerdes) -> None:
        self._store_name = store_name
        self._serdes = serdes

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        forward, drop, fail, record = node.forward, node.drop_record, node.processing_failed, node.record
        combined = self._serdes.combined_keys(node.config).serialize
        put = node.state_store(self._store_name).put
        always = Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE

        def process(key: Any, subscription: Any, timestamp: int, headers: Headers) -> None:
            instruction = subscription.instruction
            if key is not None:
                record.timestamp = timestamp
                record.headers = headers
                kept = None if instruction in DELETES else ValueTimestampHeaders(subscription, timestamp, headers)
                try:
                    put(combined(key, subscription.primary_key, headers), kept)
                except Exception as error:
                    fail(error, key, subscription, timestamp, headers)
                    return
            elif instruction is not always:
                drop(DropReason.NULL_FOREIGN_KEY)
                return
            forward(CombinedKey(key, subscription.primary_key), subscription, timestamp, headers)

        return process


class SubscriptionJoin:
    """Answers subscriptions with the current value of the right table."""

    def __init__(self, right: View) -> None:
        self._right = right

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        forward, fail, get = node.forward, node.processing_failed, self._right.open(node).get

        def process(key: Any, subscription: Any, timestamp: int, headers: Headers) -> None:
            digest, instruction, primary_key, partition, _version = subscription
            if instruction is Instruction.DELETE_KEY_NO_PROPAGATE:
                return
            try:
                found = None if key[0] is None else get(key[0])
            except Exception as error:
                fail(error, key, subscription, timestamp, headers)
                return
            value = None
            if found is not None:
                timestamp = max(timestamp, found[1])
                value = None if instruction is Instruction.DELETE_KEY_AND_PROPAGATE else found[0]
            elif instruction is Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE:
                return
            forward(primary_key, SubscriptionResponseWrapper(digest, value, partition), timestamp, headers)

        return process


class ForeignTableJoin:
    """Sends an update of the right table to all subscribers of its key."""

    def __init__(self, store_name: str, serdes: ForeignKeySerdes) -> None:
        self._store_name = store_name
        self._serdes = serdes
        self._versioned = False

    def use_versioned_semantics(self) -> None:
        """Drop out-of-order updates of the right table (KIP-914)."""
        self._versioned = True

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        forward, drop, fail, versioned = node.forward, node.drop_record, node.processing_failed, self._versioned
        schema = self._serdes.combined_keys(node.config)
        prefix_of, primary_key_of = schema.prefix, schema.primary_key
        scan = node.state_store(self._store_name).prefix_scan

        def process(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
            if key is None or (versioned and not change[2]):
                drop(DropReason.NULL_KEY if key is None else DropReason.OUT_OF_ORDER)
                return
            value = change[0]
            try:
                prefix = prefix_of(key, headers)
                size = len(prefix)
                for stored_key, (subscription, _timestamp, _headers) in scan(prefix):
                    response = SubscriptionResponseWrapper(subscription.hash, value, subscription.primary_partition)
                    forward(primary_key_of(stored_key, size, headers), response, timestamp, headers)
            except Exception as error:
                fail(error, key, change, timestamp, headers)

        return process


class ResponseJoin:
    """Joins answers with the left entries they were meant for, and drops answers to earlier values of an entry.

    The result is a plain record, whose value is None if there is no match.
    """

    def __init__(self, left: View, serdes: ForeignKeySerdes, joiner: Joiner, *, left_join: bool) -> None:
        self._left = left
        self._serdes = serdes
        self._joiner = joiner
        self._left_join = left_join

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        forward, drop, fail = node.forward, node.drop_record, node.processing_failed
        joiner, left_join = self._joiner, self._left_join
        get = self._left.open(node).get
        topic = self._serdes.pseudo_topic(node.config, "vh")
        serialize = self._serdes.left_values(node.config).serialize

        def process(key: Any, response: Any, timestamp: int, headers: Headers) -> None:
            try:
                found = get(key)
                left = None if found is None else found[0]
                digest = None if found is None else value_hash(serialize(topic, left))
                if response.hash != digest:
                    drop(DropReason.SUPERSEDED)
                    return
                right = response.foreign_value
                unmatched = right is None and (left is None or not left_join)
                result = None if unmatched else joiner(key, left, right)
            except Exception as error:
                fail(error, key, response, timestamp, headers)
                return
            forward(key, result, timestamp, headers)

        return process
