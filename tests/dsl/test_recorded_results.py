"""What Kafka Streams 4.3.1 returned for operators that the golden cases do not cover: results, times and topics."""

from __future__ import annotations

import pytest

from millrace import (
    EmitStrategy,
    Grouped,
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    TableJoined,
    TopologyTestDriver,
    UnlimitedWindows,
)

SETTINGS = {
    "application.id": "app",
    "default.key.serde": "string",
    "default.value.serde": "string",
    "statestore.cache.max.bytes": 0,
}


def source_table(b):
    """Read a topic as a table with a name."""
    return b.table("in", "tab").to_stream()


def filtered_table(b):
    """Keep short values in a store."""
    return b.table("in").filter(lambda _key, value: len(value) < 3, "short").to_stream()


def unlimited_windows(b):
    """Count in one unlimited window."""
    counts = b.stream("in").group_by_key().windowed_by(UnlimitedWindows.of().start_on(10)).count("c").to_stream()
    return counts.map(lambda windowed, count: (f"{windowed.key}@{windowed.window.start}", str(count)))


def _bounds(windowed, value):
    return f"{windowed.window.start}-{windowed.window.end}", value


def reduced_sessions(b):
    """Concatenate by sessions."""
    windows = SessionWindows.of_inactivity_gap_and_grace(10, 50)
    sessions = b.stream("in").group_by_key().windowed_by(windows)
    return sessions.reduce(lambda one, other: one + other).to_stream().map(_bounds)


def sessions_on_close(b):
    """Count by sessions, final results only."""
    windowed = b.stream("in").group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(1))
    counts = windowed.emit_strategy(EmitStrategy.on_window_close()).count().to_stream()
    return counts.map(lambda windowed, count: (windowed.key, str(count)))


def reduced_sliding_windows(b):
    """Concatenate by sliding windows."""
    windowed = b.stream("in").group_by_key().windowed_by(SlidingWindows.of_time_difference_with_no_grace(1))
    reduced = windowed.reduce(lambda one, other: one + other).to_stream()
    return reduced.select_key(lambda windowed, _value: f"{windowed.key}@{windowed.window.start}")


def _by_letter(b):
    return b.table("in").group_by(lambda _key, value: (value[:1], value), Grouped.as_("g"))


def grouped_aggregate(b):
    """Aggregate groups as entries are added and removed."""
    return (
        _by_letter(b)
        .aggregate(str, lambda _k, value, so_far: f"{so_far}+{value}", lambda _k, value, so_far: f"{so_far}-{value}")
        .to_stream()
    )


def grouped_count(b):
    """Count groups."""
    return _by_letter(b).count("c").to_stream().map_values(str)


def _joined(b, left, right):
    return b.table("one", left).join(b.table("two", right), lambda one, two: f"{one}/{two}").to_stream()


def joined_versioned_tables(b):
    """Join two versioned tables."""
    versioned = Stores.persistent_versioned_key_value_store
    return _joined(b, Materialized.as_(versioned("l", 1000)), Materialized.as_(versioned("r", 1000)))


def joined_tables(b):
    """Join two tables without versions."""
    return _joined(b, "l", "r")


def _customer(order):
    return order.partition(":")[0] or None


def foreign_key_left_join(b):
    """Join orders with customers, keeping every order."""
    orders, customers = b.table("orders"), b.table("customers")
    joined = orders.left_join(customers, lambda order, name: f"{order}={text(name)}", foreign_key=_customer)
    return joined.to_stream()


def foreign_key_join(b):
    """Join orders with customers."""
    orders, customers = b.table("orders"), b.table("customers")
    return orders.join(customers, lambda order, name: f"{order}={name}", foreign_key=_customer).to_stream()


def named_foreign_key_join(b):
    """The same with a name."""
    orders, customers = b.table("orders"), b.table("customers")
    named = TableJoined.as_("fk")
    joined = orders.join(customers, lambda order, name: f"{order}={name}", foreign_key=_customer, joined=named)
    return joined.to_stream()


def outer_join_of_streams(b):
    """Join small letters with capitals."""
    stream = b.stream("in")
    small, large = stream.filter(lambda _k, v: v == v.lower()), stream.filter(lambda _k, v: v == v.upper())
    windows = JoinWindows.of_time_difference_with_no_grace(1)
    return small.outer_join(large, lambda one, other: f"{text(one)} {text(other)}", windows)


def text(value):
    """Write None as Java does."""
    return "null" if value is None else value


REGISTRATION = "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic"
RESPONSE = "app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic"
SUBSCRIPTIONS = "app-KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000010-changelog"
BOTH_TABLES = ["app-customers-STATE-STORE-0000000003-changelog", "app-orders-STATE-STORE-0000000000-changelog"]

RECORDED = [
    (
        source_table,
        {},
        [("in", "k", "a", 5), ("in", "k", "a", 9), ("in", "k", "a", 2), ("in", "k", "b", 3)],
        [("k", "a", 5), ("k", "a", 9), ("k", "a", 2), ("k", "b", 3)],
        ["app-tab-changelog"],
    ),
    (
        filtered_table,
        {},
        [("in", "a", "ab", 0), ("in", "a", "abc", 1), ("in", "b", "abc", 2)],
        [("a", "ab", 0), ("a", None, 1), ("b", None, 2)],
        ["app-short-changelog"],
    ),
    (
        unlimited_windows,
        {},
        [("in", "k", "a", 5), ("in", "k", "b", 10), ("in", "k", "c", 10_000)],
        [("k@10", "1", 10), ("k@10", "2", 10_000)],
        ["app-c-changelog"],
    ),
    (
        reduced_sessions,
        {},
        [("in", "k", "a", 0), ("in", "k", "b", 20), ("in", "k", "c", 10)],
        [("0-0", "a", 0), ("20-20", "b", 20), ("0-0", None, 0), ("20-20", None, 20), ("0-20", "abc", 20)],
        ["app-KSTREAM-REDUCE-STATE-STORE-0000000001-changelog"],
    ),
    (
        sessions_on_close,
        {},
        [("in", "k", "a", 0), ("in", "k", "b", 1), ("in", "x", "c", 2), ("in", "x", "d", 3)],
        [("k", "2", 1)],
        ["app-KSTREAM-AGGREGATE-STATE-STORE-0000000001-changelog"],
    ),
    (
        reduced_sliding_windows,
        {},
        [("in", "k", "a", 0), ("in", "k", "b", 1)],
        [("k@0", "a", 0), ("k@0", "ab", 1), ("k@1", "b", 1)],
        ["app-KSTREAM-REDUCE-STATE-STORE-0000000001-changelog"],
    ),
    (
        grouped_aggregate,
        {},
        [("in", "1", "aa", 0), ("in", "2", "ab", 1), ("in", "1", "ba", 2), ("in", "2", "ac", 3), ("in", "1", None, 4)],
        [
            ("a", "+aa", 0),
            ("a", "+aa+ab", 1),
            ("a", "+aa+ab-aa", 2),
            ("b", "+ba", 2),
            ("a", "+aa+ab-aa-ab+ac", 3),
            ("b", "+ba-ba", 4),
        ],
        [
            "app-KTABLE-AGGREGATE-STATE-STORE-0000000004-changelog",
            "app-g-repartition",
            "app-in-STATE-STORE-0000000000-changelog",
        ],
    ),
    (
        grouped_count,
        {"upgrade.from": "3.4"},
        [("in", "1", "aa", 0), ("in", "1", "ab", 1)],
        [("a", "1", 0), ("a", "0", 1), ("a", "1", 1)],
        ["app-c-changelog", "app-g-repartition", "app-in-STATE-STORE-0000000000-changelog"],
    ),
    (
        joined_versioned_tables,
        {},
        [("two", "k", "x", 0), ("one", "k", "a", 10), ("one", "k", "b", 30), ("one", "k", "late", 20)],
        [("k", "a/x", 10), ("k", "b/x", 30)],
        ["app-l-changelog", "app-r-changelog"],
    ),
    (
        joined_tables,
        {},
        [("two", "k", "x", 0), ("one", "k", "a", 10), ("one", "k", "b", 30), ("one", "k", "late", 20)],
        [("k", "a/x", 10), ("k", "b/x", 30), ("k", "late/x", 20)],
        ["app-l-changelog", "app-r-changelog"],
    ),
    (
        foreign_key_left_join,
        {},
        [
            ("orders", "1", "a:tea", 0),
            ("customers", "a", "ann", 0),
            ("orders", "2", ":rum", 0),
            ("customers", "a", None, 0),
            ("orders", "1", None, 0),
        ],
        [
            ("1", "a:tea=null", 0),
            ("1", "a:tea=ann", 0),
            ("2", ":rum=null", 0),
            ("1", "a:tea=null", 0),
            ("1", None, 0),
        ],
        [REGISTRATION, RESPONSE, SUBSCRIPTIONS, *BOTH_TABLES],
    ),
    (
        foreign_key_join,
        {},
        [
            ("customers", "a", "ann", 0),
            ("customers", "b", "bob", 0),
            ("orders", "1", "a:tea", 0),
            ("orders", "1", "b:tea", 0),
            ("customers", "a", "anna", 0),
            ("customers", "b", "bobby", 0),
        ],
        [("1", "a:tea=ann", 0), ("1", "b:tea=bob", 0), ("1", "b:tea=bobby", 0)],
        [REGISTRATION, RESPONSE, SUBSCRIPTIONS, *BOTH_TABLES],
    ),
    (
        named_foreign_key_join,
        {},
        [("customers", "a", "ann", 0), ("orders", "1", "a:tea", 0)],
        [("1", "a:tea=ann", 0)],
        [
            "app-fk-subscription-registration-topic",
            "app-fk-subscription-response-topic",
            "app-fk-subscription-store-changelog",
            *BOTH_TABLES,
        ],
    ),
    (
        outer_join_of_streams,
        {},
        [("in", "k", "a", 0), ("in", "k", "A", 1), ("in", "x", "b", 2), ("in", "x", "c", 3), ("in", "x", "C", 4)],
        [("k", "a A", 1), ("x", "b null", 2), ("x", "c C", 4)],
        [
            "app-KSTREAM-OUTEROTHER-0000000006-store-changelog",
            "app-KSTREAM-OUTERSHARED-0000000005-store-changelog",
            "app-KSTREAM-OUTERTHIS-0000000005-store-changelog",
        ],
    ),
]


@pytest.mark.parametrize(
    ("define", "settings", "records", "results", "topics"), RECORDED, ids=[case[0].__name__ for case in RECORDED]
)
def test_results_equal_those_that_java_wrote(define, settings, records, results, topics):
    """Keys, values and timestamps in the same order, and the same internal topics written."""
    builder = StreamsBuilder()
    define(builder).to("out")
    with TopologyTestDriver(builder.build(), {**SETTINGS, **settings}) as driver:
        for topic, key, value, timestamp in records:
            driver.create_input_topic(topic).pipe_input(key, value, timestamp)
        sent = driver.create_output_topic("out").read_records_to_list()
        assert [(record.key, record.value, record.timestamp) for record in sent] == results
        assert driver.produced_topic_names() == {*topics, "out"}
