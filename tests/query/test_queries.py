"""Queries with positions (KIP-796): which store answers which query, with what, and how new the answer is."""

from __future__ import annotations

import threading

import pytest
from tests.query.test_store_types import DAY, HEADERS, NUMBER, SESSION, STORES, TEXT, filled
from tests.state.conftest import Task, switching_often  # noqa: F401 (a fixture)

from millrace.errors import SerializationError, TopologyError
from millrace.query import (
    FailureReason,
    KeyQuery,
    MultiVersionedKeyQuery,
    Position,
    PositionBound,
    QueryResult,
    RangeQuery,
    StateQueryRequest,
    StateQueryResult,
    StoreIterator,
    TimestampedKeyQuery,
    TimestampedKeyWithHeadersQuery,
    TimestampedRangeQuery,
    TimestampedRangeWithHeadersQuery,
    TimestampedWindowKeyWithHeadersQuery,
    TimestampedWindowRangeWithHeadersQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from millrace.query.answering import answer
from millrace.records import KeyValue, Record, ValueAndTimestamp, Window, Windowed
from millrace.state import Stores
from millrace.state.versioned import VersionedRecord

TIMED = ValueAndTimestamp(1, 7)
WINDOW = Windowed("a", Window(3, 13))
KEY_VALUE, WINDOWS = (
    ("key-value", "timestamped", "with headers"),
    ("window", "timestamped window", "window with headers"),
)
SESSIONS = ("session", "session with headers")
QUERIES = [
    (KeyQuery.with_key("a"), dict.fromkeys(KEY_VALUE, 1)),
    (TimestampedKeyQuery.with_key("a"), dict.fromkeys(KEY_VALUE[1:], TIMED)),
    (TimestampedKeyWithHeadersQuery.with_key("a"), {"with headers": Record("a", 1, 7, HEADERS)}),
    (RangeQuery.with_no_bounds(), {key: [KeyValue("a", 1)] for key in KEY_VALUE}),
    (TimestampedRangeQuery.with_range("a", "b"), {key: [KeyValue("a", TIMED)] for key in KEY_VALUE[1:]}),
    (TimestampedRangeWithHeadersQuery.with_lower_bound("a"), {"with headers": [Record("a", 1, 7, HEADERS)]}),
    (
        WindowKeyQuery.with_key_and_window_start_range("a", 0, 9),
        {"window": [KeyValue(3, 1)]} | {key: [KeyValue(3, TIMED)] for key in WINDOWS[1:]},
    ),
    (
        TimestampedWindowKeyWithHeadersQuery.with_key_and_window_start_range("a", 0, 9),
        {"window with headers": [Record(WINDOW, 1, 7, HEADERS)]},
    ),
    (
        WindowRangeQuery.with_window_start_range(0, 9),
        {"window": [KeyValue(WINDOW, 1)]} | {key: [KeyValue(WINDOW, TIMED)] for key in WINDOWS[1:]},
    ),
    (WindowRangeQuery.with_key("a"), {key: [KeyValue(SESSION, 1)] for key in SESSIONS}),
    (
        TimestampedWindowRangeWithHeadersQuery.with_window_start_range(0, 9),
        {"window with headers": [Record(WINDOW, 1, 7, HEADERS)]},
    ),
    (
        TimestampedWindowRangeWithHeadersQuery.with_key("a"),
        {"session with headers": [Record(SESSION, 1, 5, HEADERS)]},
    ),
    (VersionedKeyQuery.with_key("a").as_of(8), {"versioned": VersionedRecord(1, 7)}),
    (MultiVersionedKeyQuery.with_key("a"), {"versioned": [VersionedRecord(1, 7)]}),
]


@pytest.fixture
def task(tmp_path):
    """A stand-in for a task whose stores are not cached."""
    owner = Task(tmp_path / "0_0")
    yield owner
    owner.close()


@pytest.fixture
def caching_task(tmp_path):
    """A stand-in for a task with a record cache."""
    owner = Task(tmp_path / "0_0", cache_bytes=10**6)
    yield owner
    owner.close()


def ask(store, query, *, committed=False, bound=None, info=False):
    """Return what a store of partition 0 answers, rows as a list."""
    found = answer(
        store, query, partition=0, committed=committed, bound=bound or PositionBound.unbounded(), execution_info=info
    )
    if isinstance(found.value, StoreIterator):
        return QueryResult(list(found.value), position=found.position, execution_info=found.execution_info)
    return found


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(("query", "expected"), QUERIES, ids=lambda each: type(each).__name__)
def test_each_store_answers_its_queries(task, query, expected, kind, committed):
    """Every query on every store: the answer with its position, or that the store does not know the query."""
    store = filled(task, kind)
    task.commit(store)
    found = ask(store, query, committed=committed)
    if kind in expected:
        assert found.result == expected[kind]
        assert found.position == {("in", 0): 1}
    else:
        assert found.failure_reason is FailureReason.UNKNOWN_QUERY_TYPE
        assert "cannot answer" in found.failure_message


@pytest.mark.parametrize("query", [RangeQuery.with_no_bounds(), TimestampedRangeQuery.with_upper_bound("b")])
def test_order_of_ranges(task, query):
    """Rows are in the order of the serialised keys, and the other way round if asked for."""
    store = task.open(STORES["timestamped"])
    for number, key in enumerate("bac"):
        task.at(number)
        store.put(key, ValueAndTimestamp(number, number))
    keys = [row.key for row in ask(store, query.with_ascending_keys()).result]
    assert keys == sorted(keys) == sorted({"a", "b", "c"} & set(keys))
    assert [row.key for row in ask(store, query.with_descending_keys()).result] == keys[::-1]


def test_only_queries_for_a_key_read_the_cache(caching_task):
    """As in Java: a key's answer has what is not flushed yet, and its position; ranges have neither, nor has skip_cache."""
    STORES["timestamped"].with_caching_enabled()
    store = filled(caching_task, "timestamped")
    point, whole = TimestampedKeyQuery.with_key("a"), TimestampedRangeQuery.with_no_bounds()
    assert ask(store, point).result == TIMED
    assert ask(store, point).position == {("in", 0): 1}
    for query, nothing in ((point.skip_cache(), None), (whole, [])):
        assert ask(store, query).result == nothing
        assert ask(store, query).position == {}
        late = ask(store, query, bound=PositionBound.at({("in", 0): 1}))
        assert late.failure_reason is FailureReason.NOT_UP_TO_BOUND
        assert "in-0: 1" in late.failure_message
    store.flush()
    assert ask(store, whole, bound=PositionBound.at({("in", 0): 1})).result == [KeyValue("a", TIMED)]
    assert ask(store, point, committed=True).result is None
    caching_task.commit(store)
    assert ask(store, point, committed=True, bound=PositionBound.at({("in", 0): 1})).result == TIMED


def test_a_position_does_not_go_back_when_older_entries_are_written_later(tmp_path):
    """The least recently used entry is written first; if it is newer than the others, the position stays at its offset."""
    task = Task(tmp_path / "0_0", cache_bytes=10**6)
    STORES["timestamped"].with_caching_enabled()
    store = task.open(STORES["timestamped"])
    task.at(1, offset=5)
    store.put("old", ValueAndTimestamp(1, 1))
    task.at(2, offset=10)
    store.put("new", ValueAndTimestamp(2, 2))
    store.get("old")  # now "new" is the least recently used one
    assert store.position == {("in", 0): 10}
    task.cache.max_bytes = 1
    store.get("new")
    task.at(3, offset=11)
    store.put("x", ValueAndTimestamp(3, 3))
    assert ask(store, RangeQuery.with_no_bounds()).position == {("in", 0): 11}
    task.at(3, offset=7)  # in a flush upstream, which writes an older record's update
    store.put("x", ValueAndTimestamp(4, 4))
    assert store.position == {("in", 0): 11}
    task.close()


def test_bounds_of_other_partitions_do_not_count(task):
    """A store answers for its own partition: what is asked of others does not concern it."""
    store = filled(task, "key-value")
    query = KeyQuery.with_key("a")
    assert ask(store, query, bound=PositionBound.at({("in", 1): 99})).result == 1
    assert ask(store, query, bound=PositionBound.at({("other", 0): 0})).failure_reason is FailureReason.NOT_UP_TO_BOUND


def test_execution_info_is_given_if_it_is_asked_for(task):
    """It names the store and how long it took; without it there is none."""
    store = filled(task, "key-value")
    assert ask(store, KeyQuery.with_key("a")).execution_info == ()
    (line,) = ask(store, KeyQuery.with_key("a"), info=True).execution_info
    assert line.startswith("KeyValueStore 's' answered in ")


def test_a_key_of_the_wrong_type_is_an_error(task):
    """It cannot be serialised, so no partition could have it."""
    store = filled(task, "key-value")
    with pytest.raises(SerializationError):
        ask(store, KeyQuery.with_key(7))


def test_a_closed_store_is_not_present(task):
    """A store that is closed while it is asked has moved; its rows may be elsewhere."""
    store = filled(task, "key-value")
    store.close()
    assert ask(store, KeyQuery.with_key("a")).failure_reason is FailureReason.NOT_PRESENT


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.usefixtures("switching_often")
def test_versions_are_found_while_they_move(task, committed):
    """A version that a newer one or a commit moves to another row is found at every moment, once."""
    store = task.open(
        Stores.versioned_key_value_store_builder(Stores.persistent_versioned_key_value_store("s", DAY), TEXT, NUMBER)
    )
    task.at(0)
    store.put("a", 0, 0)
    task.commit(store)
    ended, wrong = threading.Event(), []

    def read():
        while not ended.is_set():
            first = ask(store, VersionedKeyQuery.with_key("a").as_of(0), committed=committed).result
            versions = ask(store, MultiVersionedKeyQuery.with_key("a").with_ascending_timestamps(), committed=committed)
            values = [version.value for version in versions.result]
            if first is None or first.value != 0 or values != list(range(len(values))) or not values:
                wrong.append((first, values))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 400):
        task.at(number)
        store.put("a", number, number * 1_000)
        if number % 7 == 0:
            task.commit(store)
    ended.set()
    reader.join()
    assert wrong == []


def test_a_query_says_what_is_wrong_with_it():
    """A missing key, a time of the wrong type, and something that is no query are refused where they are made."""
    with pytest.raises(TopologyError, match="KeyQuery needs a key"):
        KeyQuery.with_key(None)
    with pytest.raises(TopologyError, match="needs times as ints"):
        WindowRangeQuery.with_window_start_range("0", 9)
    with pytest.raises(TopologyError, match="with_query needs a query"):
        StateQueryRequest.in_store("s").with_query("a")


def test_results_of_several_partitions():
    """The only result is the one that has a row; positions are merged; a failure has no result."""
    missing = QueryResult(failure_reason=FailureReason.NOT_PRESENT, failure_message="gone")
    results = StateQueryResult(
        {
            0: QueryResult(None, position=Position({("in", 0): 4})),
            1: QueryResult(1, position=Position({("in", 1): 2})),
            2: missing,
        }
    )
    assert results.only_partition_result.result == 1
    assert results.position == {("in", 0): 4, ("in", 1): 2}
    assert missing.is_failure
    with pytest.raises(ValueError, match="not present: gone"):
        _ = missing.result
    with pytest.raises(ValueError, match="2 partitions"):
        _ = StateQueryResult({0: QueryResult(1), 1: QueryResult(2)}).only_partition_result
