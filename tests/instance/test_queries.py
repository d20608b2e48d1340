"""Interactive queries of running instances on a real broker (KIP-67, KIP-562)."""

from __future__ import annotations

import secrets
import threading

import pytest
from tests.instance.support import (
    TEXT,
    CountWords,
    counting_with,
    counts_builder,
    produce,
    read_all,
    running,
    settings,
    word_count,
)
from tests.instance.test_global_stores import Fill, put
from tests.waiting import PATIENCE_S, wait_until

from millrace.errors import (
    InvalidStateStoreError,
    InvalidStateStorePartitionError,
    StateStoreMigratedError,
    StateStoreNotAvailableError,
    StreamsNotStartedError,
    StreamsStoppedError,
    TopologyError,
    UnknownStateStoreError,
)
from millrace.instance import KafkaStreams
from millrace.query import (
    FailureReason,
    IsolationLevel,
    KeyQuery,
    PositionBound,
    QueryableStoreTypes,
    RangeQuery,
    StateQueryRequest,
    StoreQueryParameters,
)
from millrace.serdes import LongSerde
from millrace.state import Stores
from millrace.topology import Topology

pytestmark = pytest.mark.broker
COUNTS = StoreQueryParameters.from_name_and_type("counts", QueryableStoreTypes.key_value_store())


def query_when_ready(streams, wanted, found):
    """Return the store as soon as it can be read and holds what is expected."""
    stores = []

    def ready():
        try:
            store = streams.store(wanted)
            if found(store):
                stores.append(store)
        except InvalidStateStoreError:
            return False
        return bool(stores)

    wait_until(ready, f"{wanted!r} is ready")
    return stores[0]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_all_partitions_are_read_as_one_store(kafka, topic_factory, tmp_path, guarantee):
    """Keys are found in any partition, ranges go through all of them, and one partition can be asked for."""
    source, sink = topic_factory("in", partitions=3), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path, processing_guarantee=guarantee)
    produce(kafka, source, ["a", "b", "c", "a"], partitions=3)  # a twice in 0, b in 1, c in 2
    with running(word_count(source, sink, caching=True), config) as streams:
        store = query_when_ready(streams, COUNTS, lambda store: store.approximate_num_entries() == 3)
        wait_until(lambda: store.get("a") == 2, "both counted")
        assert [store.get(key) for key in "abcd"] == [2, 1, 1, None]
        with store.all() as rows:
            assert [tuple(row) for row in rows] == [("a", 2), ("b", 1), ("c", 1)]
        with store.range("b") as rows:
            assert rows.peek() == ("b", 1)
            assert [tuple(row) for row in rows] == [("b", 1), ("c", 1)]
        second = streams.store(COUNTS.with_partition(1))
        assert [tuple(row) for row in second.reverse_all()] == [("b", 1)]
        with pytest.raises(InvalidStateStorePartitionError, match="Partition 7 of state store 'counts'"):
            streams.store(COUNTS.with_partition(7))
    with pytest.raises(StateStoreNotAvailableError, match="NOT_RUNNING"):
        store.get("a")


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_partitions_answer_a_query_with_their_positions(kafka, topic_factory, tmp_path, guarantee):
    """Each partition answers for itself; a bound, a partition and a client that are not there say so."""
    source, sink = topic_factory("in", partitions=3), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path, processing_guarantee=guarantee)
    produce(kafka, source, ["a", "b", "c", "a"], partitions=3)  # a twice in 0, b in 1, c in 2
    point = StateQueryRequest.in_store("counts").with_query(KeyQuery.with_key("a"))
    whole = StateQueryRequest.in_store("counts").with_query(RangeQuery.with_no_bounds())
    streams = KafkaStreams(word_count(source, sink, caching=True), config)
    with pytest.raises(StreamsNotStartedError):
        streams.query(point)
    with pytest.raises(UnknownStateStoreError, match="it has counts"):
        streams.query(StateQueryRequest.in_store("count").with_query(KeyQuery.with_key("a")))
    with streams:
        offsets = {(source, 0): 1, (source, 1): 0, (source, 2): 0}
        wait_until(lambda: streams.query(whole.require_active()).position == offsets, "all counted and flushed")
        assert streams.query(point).only_partition_result.result == 2
        assert {
            partition: [tuple(row) for row in each.result]
            for partition, each in streams.query(whole).partition_results.items()
        } == {0: [("a", 2)], 1: [("b", 1)], 2: [("c", 1)]}
        bound = PositionBound.at({(source, 0): 2})
        late = streams.query(point.with_position_bound(bound).with_partitions({0, 1, 7})).partition_results
        assert [late[partition].failure_reason for partition in (0, 1, 7)] == [
            FailureReason.NOT_UP_TO_BOUND,
            None,
            FailureReason.NOT_PRESENT,
        ]
        produce(kafka, source, ["a"])
        wait_until(lambda: streams.query(point.with_position_bound(bound)).only_partition_result is not None, "newer")
        assert streams.query(point.with_position_bound(bound)).only_partition_result.result == 3
    with pytest.raises(StreamsStoppedError, match="NOT_RUNNING"):
        streams.query(point)


class CountAndWait(CountWords):
    """Counts, and stays in the record `wait`."""

    reached, released = threading.Event(), threading.Event()

    def process(self, record):
        """Count, and wait."""
        super().process(record)
        if record.value == "wait":
            self.reached.set()
            assert self.released.wait(PATIENCE_S)


def test_a_query_waits_for_no_record_and_sees_no_open_transaction(kafka, topic_factory, tmp_path):
    """While a record is being processed, committed rows are answered; rows of the transaction only if they are asked for."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path, processing_guarantee="exactly_once_v2")
    produce(kafka, source, ["a"])
    topology = counting_with(CountAndWait, source, sink, counts_builder(caching=True))
    with running(topology, config) as streams:
        store = query_when_ready(streams, COUNTS, lambda store: store.get("a") == 1)
        CountAndWait.reached.clear()
        CountAndWait.released.clear()
        produce(kafka, source, ["a", "wait"])
        assert CountAndWait.reached.wait(PATIENCE_S)
        try:
            everything = streams.store(COUNTS.with_isolation_level(IsolationLevel.READ_UNCOMMITTED))
            assert everything.get("wait") == 1
            assert {row.key for row in everything.all()} == {"a", "wait"}
            assert store.get("wait") is None
            assert {row.key for row in store.all()} == {"a"}
        finally:
            CountAndWait.released.set()
        wait_until(lambda: store.get("wait") == 1, "committed")


def test_a_store_that_has_moved_says_so_and_standbys_can_be_read(kafka, topic_factory, tmp_path):
    """The instance without the task refuses, or reads its standby if stale stores are enabled; then it takes over."""
    source, sink = topic_factory("in"), topic_factory("out")
    name = f"app-{secrets.token_hex(4)}"
    produce(kafka, source, ["a", "b"])
    one = settings(kafka, name, tmp_path / "1", num_standby_replicas=1)
    two = settings(kafka, name, tmp_path / "2", num_standby_replicas=1)
    with running(word_count(source, sink), two) as second:
        with running(word_count(source, sink), one) as first:
            with_standby = COUNTS.enable_stale_stores()
            for streams in (first, second):
                query_when_ready(streams, with_standby, lambda store: (store.get("a"), store.get("b")) == (1, 1))

            def refused():
                told = []
                for streams in (first, second):
                    try:
                        streams.store(COUNTS)
                    except StateStoreMigratedError:
                        told.append(streams)
                    except InvalidStateStoreError:
                        return False
                return len(told) == 1

            wait_until(refused, "one instance has the active task")
        assert query_when_ready(second, COUNTS, lambda store: store.get("a") == 1).get("b") == 1


def test_global_stores_are_read(kafka, topic_factory, tmp_path):
    """A global store is read whole, by any instance."""
    names, source = topic_factory("names", partitions=2), topic_factory("in")
    builder = Stores.key_value_store_builder(Stores.persistent_key_value_store("names"), TEXT, TEXT)
    topology = (
        Topology()
        .add_global_store(
            builder.with_logging_disabled(), "names-source", names, "fill", Fill, key_serde=TEXT, value_serde=TEXT
        )
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
    )
    put(kafka, names, {"a": "1", "b": "2"}, partitions=2)
    with running(topology, settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)) as streams:
        store = streams.store(StoreQueryParameters.from_name_and_type("names", QueryableStoreTypes.key_value_store()))
        assert store.get("b") == "2"
        assert sorted(tuple(row) for row in store.all()) == [("a", "1"), ("b", "2")]


def test_wrong_questions_are_told(kafka, topic_factory, tmp_path):
    """An unknown store, a wrong type, a client that is not started, and arguments of wrong types."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    topology = counting_with(
        CountWords, source, sink, Stores.key_value_store_builder(Stores.lru_map("counts", 5), TEXT, LongSerde())
    )
    with pytest.raises(StreamsNotStartedError, match="before KafkaStreams"):
        KafkaStreams(topology, config).store(COUNTS)
    with pytest.raises(TopologyError, match="QueryableStoreTypes"):
        StoreQueryParameters.from_name_and_type("counts", "key-value")
    produce(kafka, source, ["a"])
    with running(topology, config) as streams:
        wait_until(lambda: len(read_all(kafka, sink)) == 1, "counted")
        assert query_when_ready(streams, COUNTS, lambda store: store.get("a") == 1).get("b") is None
        with pytest.raises(UnknownStateStoreError, match="no state store 'count'; it has counts"):
            streams.store(StoreQueryParameters.from_name_and_type("count", QueryableStoreTypes.key_value_store()))
        with pytest.raises(
            InvalidStateStoreError, match="KeyValueStore, which cannot be read as window_store: ask for key_"
        ):
            streams.store(StoreQueryParameters.from_name_and_type("counts", QueryableStoreTypes.window_store()))
