"""Mistakes in the calls of operators are reported where they are made, with what to write instead."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.dsl.mistakes import (
    LONG,
    STORE,
    TEXT,
    TUMBLING,
    WITHIN,
    FixedKey,
    Greeting,
    NoProcessor,
    Upper,
    check,
    coroutine,
    identity,
    join,
    store_of_texts,
)

from millrace import (
    AutoOffsetReset,
    Branched,
    BufferConfig,
    Consumed,
    EmitStrategy,
    ForeignKeyWithKey,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    Printed,
    Produced,
    Repartitioned,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TableJoined,
    TimeWindows,
    UnlimitedWindows,
    ValueJoinerWithKey,
)
from millrace.errors import TopologyError


def _branch_after_default(parts):
    split = parts.stream.split()
    split.default_branch()
    split.branch(lambda key, value: True)


OPTIONS = [
    # Options of the wrong kind, with what to write instead.
    ("count: materialized must be .*Named.*write named='n'", lambda p: p.grouped.count(Named.as_("n"))),
    ("KGroupedStream.count: materialized must be a Materialized", lambda p: p.grouped.count(Consumed.as_("n"))),
    ("KGroupedStream.count: materialized .*Materialized.with_", lambda p: p.grouped.count(LONG)),
    ("KGroupedStream.count: materialized must be", lambda p: p.grouped.count(5)),
    ("KGroupedStream.count: named must be a Named or a text, not 5", lambda p: p.grouped.count(named=5)),
    ("Name 'two words' is illegal", lambda p: p.grouped.count("two words")),
    ("must not be empty", lambda p: p.grouped.count("")),
    ("Name 'a b' is illegal", lambda p: Named.as_("a b")),
    ("the name must be a text, not 5", lambda p: Named.as_(5)),
    ("KStream.to: produced must be a Produced.*write Produced.with_", lambda p: p.stream.to("out", TEXT)),
    ("KStream.to: produced .*write Produced.as_\\('sink'\\)", lambda p: p.stream.to("out", "sink")),
    ("KStream.to: produced .*write Produced.with_", lambda p: p.stream.to("out", (TEXT, TEXT))),
    ("KStream.to: produced .*the class Produced", lambda p: p.stream.to("out", Produced)),
    ("KStream.to: produced must be a Produced, not Consumed", lambda p: p.stream.to("out", Consumed.with_(TEXT, TEXT))),
    (
        "Consumed.with_: key_serde must be a serde, not the class str; write Serdes.serde_from",
        lambda p: Consumed.with_(str, str),
    ),
    ("Consumed.with_: value_serde must be a serde", lambda p: Consumed.with_(TEXT, int)),
    ("Consumed.with_: key_serde .*Serdes.string", lambda p: Consumed.with_("string", "string")),
    ("Consumed.with_: key_serde .*StringSerde\\(\\)", lambda p: Consumed.with_(type(TEXT), TEXT)),
    ("Consumed.with_value_serde: value_serde", lambda p: Consumed.as_("n").with_value_serde("long")),
    ("Produced.with_: key_serde", lambda p: Produced.with_(str, TEXT)),
    ("Grouped.with_: value_serde", lambda p: Grouped.with_(TEXT, str)),
    ("Repartitioned.with_: key_serde", lambda p: Repartitioned.with_(str)),
    ("Materialized.with_: key_serde", lambda p: Materialized.with_(str, int)),
    ("Materialized.with_value_serde: value_serde", lambda p: Materialized.as_("s").with_value_serde(int)),
    ("Joined.with_: value_serde", lambda p: Joined.with_(TEXT, str)),
    ("StreamJoined.with_: other_value_serde", lambda p: StreamJoined.with_(TEXT, TEXT, str)),
    ("Materialized.as_: name_or_supplier must be", lambda p: Materialized.as_(5)),
    ("with_store_type: store_type must be a StoreType", lambda p: Materialized.as_("s").with_store_type("rocksDB")),
    ("Unknown offset reset policy 'first'", lambda p: Consumed(offset_reset="first")),
    ("offset_reset must be an AutoOffsetReset", lambda p: Consumed.as_("n").with_offset_reset_policy(5)),
    ("timestamp_extractor must be a function of record, partition_time", lambda p: Consumed(timestamp_extractor=len)),
    (
        "number_of_partitions must be an int of at least 1",
        lambda p: Repartitioned.as_("r").with_number_of_partitions("3"),
    ),
    ("partitioner must be a function of topic, key, value", lambda p: Produced.stream_partitioner(lambda key: 0)),
    ("mapper must be a function of key, value", lambda p: Printed.to_sys_out().with_key_value_mapper(identity)),
    ("path must be a path", lambda p: Printed.to_file(5)),
    ("KStream.print: printed must be a Printed", lambda p: p.stream.print("label")),
    ("StreamsBuilder.stream: consumed must be a Consumed", lambda p: p.builder.stream("x", TEXT)),
    ("StreamsBuilder.stream: consumed .*Consumed.as_\\('n'\\)", lambda p: p.builder.stream("x", "n")),
    ("KStream.group_by_key: grouped .*Grouped.as_\\('n'\\)", lambda p: p.stream.group_by_key("n")),
    ("KStream.group_by_key: grouped .*Grouped.as_\\('n'\\)", lambda p: p.stream.group_by_key(Named.as_("n"))),
    ("KStream.group_by: grouped must be", lambda p: p.stream.group_by(lambda key, value: value, Materialized.as_("s"))),
    ("KTable.group_by: grouped must be", lambda p: p.table.group_by(lambda key, value: (key, value), "n")),
    ("KStream.repartition: repartitioned must be", lambda p: p.stream.repartition(Grouped.as_("n"))),
    ("KTable.suppress: suppressed must be a Suppressed", lambda p: p.table.suppress(BufferConfig.unbounded())),
    ("buffer must be a BufferConfig", lambda p: Suppressed.until_window_closes("10s")),
    ("never emits early", lambda p: Suppressed.until_window_closes(BufferConfig.max_records(1))),
    ("limit must be an int", lambda p: BufferConfig.max_records("10")),
    ("must not be negative", lambda p: BufferConfig.max_bytes(-1)),
    (
        "BranchedKStream.branch: branched must be",
        lambda p: p.stream.split().branch(lambda key, value: True, Named.as_("n")),
    ),
    ("already has its default branch", _branch_after_default),
    ("KStream.split: named must be", lambda p: p.stream.split(Branched.as_("n"))),
    ("KStream.to_table: materialized must be", lambda p: p.stream.to_table(Named.as_("n"))),
    ("KTable.filter: materialized must be", lambda p: p.table.filter(lambda key, value: True, Named.as_("n"))),
]


FUNCTIONS = [
    # Functions of other arguments, and what is no function.
    (
        "KStream.filter: predicate must be a function of key, value, not the function <lambda>\\(value\\)",
        lambda p: p.stream.filter(lambda value: value),
    ),
    ("KStream.filter_not: predicate", lambda p: p.stream.filter_not(lambda: True)),
    ("KStream.filter: predicate must be a function of key, value, not 'x'", lambda p: p.stream.filter("x")),
    ("KStream.map: mapper", lambda p: p.stream.map(identity)),
    ("KStream.map_values: mapper .*use map_values_with_key", lambda p: p.stream.map_values(lambda key, value: value)),
    ("KStream.map_values: mapper must be a function of value, not None", lambda p: p.stream.map_values(None)),
    ("KStream.map_values: mapper .*coroutine.*async", lambda p: p.stream.map_values(coroutine)),
    ("KStream.map_values_with_key: mapper .*use map_values", lambda p: p.stream.map_values_with_key(identity)),
    ("KStream.flat_map: mapper", lambda p: p.stream.flat_map(identity)),
    (
        "KStream.flat_map_values: mapper .*use flat_map_values_with_key",
        lambda p: p.stream.flat_map_values(lambda key, value: []),
    ),
    (
        "KStream.flat_map_values_with_key: mapper .*use flat_map_values",
        lambda p: p.stream.flat_map_values_with_key(identity),
    ),
    ("KStream.select_key: selector", lambda p: p.stream.select_key(lambda value: value)),
    ("KStream.group_by: selector", lambda p: p.stream.group_by(identity)),
    ("KStream.group_by: selector .*not Grouped", lambda p: p.stream.group_by(Grouped.as_("n"))),
    ("KStream.peek: action", lambda p: p.stream.peek(identity)),
    ("KStream.foreach: action", lambda p: p.stream.foreach(identity)),
    ("KStream.to: topic must be a function of key, value, context", lambda p: p.stream.to(lambda key, value: "out")),
    ("BranchedKStream.branch: predicate", lambda p: p.stream.split().branch(identity)),
    ("Branched.with_function: function", lambda p: Branched.with_function(lambda key, value: None)),
    ("Branched.with_consumer: consumer", lambda p: Branched.with_consumer("name")),
    (
        "KGroupedStream.reduce: reducer must be a function of old, new",
        lambda p: p.grouped.reduce(lambda key, old, new: new),
    ),
    (
        "KGroupedStream.aggregate: initializer must be a function of no arguments, not 0",
        lambda p: p.grouped.aggregate(0, lambda key, value, total: 0),
    ),
    ("KGroupedStream.aggregate: aggregator", lambda p: p.grouped.aggregate(int, lambda value, total: 0)),
    ("KGroupedStream.cogroup: aggregator", lambda p: p.grouped.cogroup(identity)),
    (
        "CogroupedKStream.cogroup: grouped must be a KGroupedStream",
        lambda p: p.cogrouped.cogroup(p.other, lambda key, value, total: 0),
    ),
    ("CogroupedKStream.cogroup: aggregator", lambda p: p.cogrouped.cogroup(p.other.group_by_key(), identity)),
    ("CogroupedKStream.aggregate: initializer", lambda p: p.cogrouped.aggregate(0)),
    ("TimeWindowedKStream.reduce: reducer", lambda p: p.windowed.reduce(identity)),
    ("TimeWindowedKStream.aggregate: aggregator", lambda p: p.windowed.aggregate(int, identity)),
    ("SessionWindowedKStream.reduce: reducer", lambda p: p.sessions.reduce(identity)),
    (
        "SessionWindowedKStream.aggregate: merger",
        lambda p: p.sessions.aggregate(int, lambda key, value, total: 0, lambda one, other: 0),
    ),
    ("KGroupedTable.reduce: subtractor", lambda p: p.by_letter.reduce(join, identity)),
    ("KGroupedTable.aggregate: adder", lambda p: p.by_letter.aggregate(int, join, lambda key, value, total: 0)),
    ("KTable.filter: predicate", lambda p: p.table.filter(identity)),
    ("KTable.map_values: mapper .*use map_values_with_key", lambda p: p.table.map_values(join)),
    ("KTable.map_values_with_key: mapper", lambda p: p.table.map_values_with_key(identity)),
    ("KTable.to_stream: key_selector must be a function of key, value, not 'n'", lambda p: p.table.to_stream("n")),
    ("KTable.group_by: selector", lambda p: p.table.group_by(identity)),
    ("ValueJoinerWithKey: joiner must be a function of key, left, right", lambda p: ValueJoinerWithKey(join)),
    ("ForeignKeyWithKey: extractor", lambda p: ForeignKeyWithKey(identity)),
    (
        "KStream.process: supplier must be .*; give the class|KStream.process: supplier .*every task needs its own",
        lambda p: p.stream.process(Upper()),
    ),
    ("KStream.process: supplier .*takes no record", lambda p: p.stream.process(lambda record: None)),
    ("KStream.process: supplier .*no method process", lambda p: p.stream.process(NoProcessor)),
    ("KStream.process: supplier .*use process_values", lambda p: p.stream.process(FixedKey)),
    ("KStream.process: supplier .*needs arguments: write lambda: Greeting", lambda p: p.stream.process(Greeting)),
    ("KStream.process: supplier must be .*not 'Upper'", lambda p: p.stream.process("Upper")),
    ("KStream.process: store_names .*add the store to the builder", lambda p: p.stream.process(Upper, STORE)),
    ("KStream.process_values: supplier .*use process", lambda p: p.stream.process_values(Upper)),
    ("KTable.transform_values: supplier .*no method transform", lambda p: p.table.transform_values(Upper)),
    (
        "add_global_store: supplier",
        lambda p: p.builder.add_global_store(store_of_texts().with_logging_disabled(), "t", FixedKey),
    ),
]

JOINS = [
    (
        "KStream.join: joiner .*wrap it in ValueJoinerWithKey",
        lambda p: p.stream.join(p.other, lambda key, left, right: 0, WITHIN),
    ),
    ("KStream.join: joiner must be a function of left, right", lambda p: p.stream.join(p.table, identity)),
    ("needs JoinWindows as its third argument", lambda p: p.stream.join(p.other, join)),
    ("needs JoinWindows as its third argument", lambda p: p.stream.join(p.other, join, TUMBLING)),
    ("needs JoinWindows as its third argument", lambda p: p.stream.left_join(p.other, join, timedelta(seconds=1))),
    (
        "KStream.join: joined must be a StreamJoined, not Joined",
        lambda p: p.stream.join(p.other, join, WITHIN, Joined.as_("j")),
    ),
    (
        "KStream.join: joined must be a Joined, not StreamJoined",
        lambda p: p.stream.join(p.table, join, joined=StreamJoined.as_("j")),
    ),
    ("takes no windows", lambda p: p.stream.join(p.table, join, WITHIN)),
    ("takes no named.*joined=", lambda p: p.stream.join(p.table, join, named="j")),
    ("takes no key_selector", lambda p: p.stream.join(p.table, join, key_selector=join)),
    ("takes no named", lambda p: p.stream.join(p.other, join, WITHIN, named="j")),
    ("needs key_selector", lambda p: p.stream.join(p.everywhere, join)),
    (
        "KStream.join: key_selector must be a function of key, value",
        lambda p: p.stream.join(p.everywhere, join, key_selector=identity),
    ),
    (
        "A join with a global table takes no windows",
        lambda p: p.stream.join(p.everywhere, join, WITHIN, key_selector=join),
    ),
    ("can be joined with a KStream, KTable or GlobalKTable, not with 'other'", lambda p: p.stream.join("other", join)),
    ("not with KGroupedStream", lambda p: p.stream.join(p.grouped, join)),
    ("different StreamsBuilders", lambda p: p.stream.join(StreamsBuilder().table("x"), join)),
    ("different StreamsBuilders", lambda p: p.stream.merge(StreamsBuilder().stream("x"))),
    ("KStream.merge: other must be a KStream", lambda p: p.stream.merge(p.table)),
    ("KTable.join: other must be a KTable.*to_table", lambda p: p.table.join(p.stream, join)),
    ("KTable.join: joiner .*ValueJoinerWithKey", lambda p: p.table.join(p.right, lambda key, left, right: 0)),
    (
        "KTable.join: joined must be given with foreign_key only",
        lambda p: p.table.join(p.right, join, joined=TableJoined.as_("j")),
    ),
    (
        "KTable.join: joined must be a TableJoined, not Joined",
        lambda p: p.table.join(p.right, join, foreign_key=identity, joined=Joined.as_("j")),
    ),
    ("KTable.join: foreign_key .*ForeignKeyWithKey", lambda p: p.table.join(p.right, join, foreign_key=join)),
    ("KTable.join: foreign_key must be a function of value", lambda p: p.table.join(p.right, join, identity)),
    (
        "KTable.left_join: options must be one TableJoined and one Materialized",
        lambda p: p.table.left_join(p.right, identity, join, 5),
    ),
    ("KTable.join: materialized must be the last positional", lambda p: p.table.join(p.right, join, "store", "name")),
    ("KTable.outer_join: joiner", lambda p: p.table.outer_join(p.right, identity)),
    ("KTable.join: materialized .*write named='n'", lambda p: p.table.join(p.right, join, Named.as_("n"))),
]

WINDOWS = [
    ("KGroupedStream.windowed_by: windows .*JoinWindows are for joins", lambda p: p.grouped.windowed_by(WITHIN)),
    ("KGroupedStream.windowed_by: windows .*of_size_with_no_grace", lambda p: p.grouped.windowed_by("10s")),
    ("KGroupedStream.windowed_by: windows", lambda p: p.grouped.windowed_by(timedelta(seconds=1))),
    ("CogroupedKStream.windowed_by: windows .*JoinWindows", lambda p: p.cogrouped.windowed_by(WITHIN)),
    ("emit_strategy: strategy must be an EmitStrategy", lambda p: p.windowed.emit_strategy("on-window-close")),
    (
        "never close",
        lambda p: p.grouped.windowed_by(UnlimitedWindows.of()).emit_strategy(EmitStrategy.on_window_close()),
    ),
    (
        "size of a window must be whole milliseconds, not 0:00:00.000500",
        lambda p: TimeWindows.of_size_with_no_grace(timedelta(microseconds=500)),
    ),
    (
        'size of a window must be a timedelta, a text such as "10s".*not 1.5',
        lambda p: TimeWindows.of_size_with_no_grace(1.5),
    ),
    ("size of a window must be .*not 'soon'", lambda p: TimeWindows.of_size_with_no_grace("soon")),
    ("size of a window must be .*not True", lambda p: TimeWindows.of_size_with_no_grace(True)),
    ("size of a window must be at least 1 ms, not 0 ms", lambda p: TimeWindows.of_size_with_no_grace(0)),
    ("grace period of a window must be at least 0 ms", lambda p: TimeWindows.of_size_and_grace(1, -1)),
    ("cannot advance by 20 ms", lambda p: TimeWindows.of_size_with_no_grace(10).advance_by(20)),
    ("inactivity gap", lambda p: SessionWindows.of_inactivity_gap_with_no_grace(None)),
    ("time difference of a window", lambda p: SlidingWindows.of_time_difference_with_no_grace("10 seconds")),
    ("time difference of a join", lambda p: JoinWindows.of_time_difference_with_no_grace(2.0)),
    ("ends before it begins", lambda p: WITHIN.before(-6000)),
    ("bound of a join window", lambda p: WITHIN.after("5")),
    ("start of unlimited windows", lambda p: UnlimitedWindows.of().start_on(-1)),
    ("retention of a store", lambda p: Materialized.as_("s").with_retention("a day")),
    ("time to suppress", lambda p: Suppressed.until_time_limit(0.5, BufferConfig.unbounded())),
    ("grace period of a join", lambda p: Joined.as_("j").with_grace_period(timedelta(microseconds=1))),
    ("duration of an offset reset", lambda p: AutoOffsetReset.by_duration(1.5)),
    ("retention of store 'w'", lambda p: Stores.persistent_window_store("w", "1 day", 5)),
    ("window size of store 'w'", lambda p: Stores.in_memory_window_store("w", "1d", 1.5)),
    ("retention of store 's'", lambda p: Stores.in_memory_session_store("s", None)),
    ("history retention of store 'v'", lambda p: Stores.persistent_versioned_key_value_store("v", 1.5)),
]


CASES = [(TopologyError, *case) for case in (*OPTIONS, *FUNCTIONS, *JOINS, *WINDOWS)]


@pytest.mark.parametrize(("error", "message", "mistake"), CASES, ids=[message[:60] for _, message, _ in CASES])
def test_a_mistake_is_reported_where_it_is_made(error, message, mistake):
    """The error says what is wrong and what to write, and ends with file and line of the user's call."""
    check(error, message, mistake)
