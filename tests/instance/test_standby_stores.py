"""Standbys of every kind of store have the active task's content, and continue from it when they take over."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer
from tests.instance.support import read_all
from tests.instance.test_commits import at_rest
from tests.instance.test_standby import Instance, replicated
from tests.waiting import PATIENCE_S, wait_until

from millrace.dsl import (
    BufferConfig,
    Grouped,
    JoinWindows,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from millrace.records import TaskId
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.state.suppression_buffer import SuppressionBuffer
from millrace.state.versioned import VersionedKeyValueStore

pytestmark = pytest.mark.broker

TASK = TaskId(0, 0)
DEFAULTS = {"default_key_serde": "string", "default_value_serde": "string"}


def topology(source, right, table, sink):
    """Return windows, sessions, a stream-stream join, a suppressed and a versioned table, all in one sub-topology."""
    builder = StreamsBuilder()
    stream = builder.stream(source)
    grouped = stream.group_by_key(Grouped.with_(Serdes.string(), Serdes.string()))
    windows = grouped.windowed_by(TimeWindows.of_size_with_no_grace(1_000)).count(Materialized.as_("windows"))
    final = windows.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("final"))
    final.to_stream(lambda key, _: key.key).map_values(str).to(sink)
    grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(500)).count(Materialized.as_("sessions"))
    stream.left_join(
        builder.stream(right), lambda one, other: f"{one}{other}", JoinWindows.of_time_difference_with_no_grace(500)
    ).to(sink)
    versions = builder.table(table, Materialized.as_(Stores.persistent_versioned_key_value_store("versions", 10_000)))
    stream.join(versions, lambda one, other: f"{one}+{other}").to(sink)
    return builder.build()


def content(store):
    """Return what a store has, in a form that can be compared."""
    if isinstance(store, SuppressionBuffer):
        changes = {key: (time, store._changes[time, key].new) for key, time in store._times.items()}
        return changes, store.min_timestamp, store.buffer_size
    if isinstance(store, VersionedKeyValueStore):
        return [store.get(key, time) for key in "ab" for time in (1_050, 1_250, 9_000)]
    if hasattr(store, "find_sessions_ended"):
        return list(store.find_sessions_ended(0, 1 << 60))
    return list(store.all())


def caught_up(instance):
    """Return whether all stores of a standby have reached the ends of their changelogs."""
    lags = instance.streams.all_local_store_partition_lags().values()
    return all(lag.offset_lag == 0 for partitions in lags for lag in partitions.values())


def write(kafka, *records):
    """Write (topic, key, value, timestamp)."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for topic, key, value, timestamp in records:
        producer.produce(topic, value, key, 0, timestamp=timestamp)
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize(("guarantee", "kind"), [("at_least_once", "in_memory"), ("exactly_once_v2", "rocksDB")])
def test_standbys_of_all_stores(kafka, topic_factory, tmp_path, guarantee, kind):
    """Each store of the standby equals the active task's; after a take-over, nothing is restored or lost."""
    kept = {"retention.ms": "-1"}  # the records are old enough to be deleted
    source, right, table, sink = (topic_factory(name, config=kept) for name in ("in", "right", "table", "out"))
    app = f"app-{secrets.token_hex(4)}"
    built = topology(source, right, table, sink)

    def config(name):
        given = {"processing_guarantee": guarantee, "default_dsl_store": kind, **DEFAULTS}
        return replicated(kafka, app, tmp_path / name, **given) | {"topic.retention.ms": "-1"}

    with ExitStack() as stack:
        other = ExitStack()
        stack.callback(other.close)
        active = Instance(other, built, config("a")).running()
        standby = Instance(stack, built, config("b"))
        wait_until(lambda: active.tasks("active") and standby.tasks("standby"), "an active task and a standby")
        write(
            kafka,
            *((table, key, f"{key}{number}", 1_000 + number) for number in (0, 200) for key in "ab"),
            *((source, key, f"{number}", 1_000 + number) for number in range(0, 300, 100) for key in "ab"),
            (right, "a", "R", 1_200),
        )
        wait_until(lambda: active.streams.status().processing.records == 11, "processed")
        # Stores are read only once nothing changes them: a task's stores belong to one thread.
        wait_until(lambda: at_rest(active.streams), "committed")
        wait_until(lambda: caught_up(standby), "the standby has caught up")
        stores = active.manager.running[TASK].stores
        copies = standby.manager.standby[TASK].stores
        assert len(stores) >= 6

        def equal():
            return {name: content(store) for name, store in stores.items()} == {
                name: content(store) for name, store in copies.items()
            }

        wait_until(equal, lambda: f"{ {name: (content(stores[name]), content(copies[name])) for name in stores} }")
        assert content(copies["final-store"])[0].keys(), "the buffer has something to emit"
        assert all(content(copies[name]) for name in ("windows", "sessions"))
        before = len(read_all(kafka, sink))
        other.close()
        wait_until(lambda: standby.tasks("active"), "taken over")
        assert standby.restored.records.total() == 0
        assert standby.manager.running[TASK].stores is copies
        write(kafka, (source, "c", "later", 9_000), (table, "c", "c", 9_000), (right, "c", "R", 9_000))
        wait_until(
            lambda: {(key, value) for key, value, _ in read_all(kafka, sink)} >= {(b"a", b"3"), (b"b", b"3")},
            "the closed windows are emitted by the new owner",
        )
        assert len(read_all(kafka, sink)) > before
