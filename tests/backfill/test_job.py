"""What a backfill computes of an application, hands over and refuses."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from tests.backfill.support import (
    SETTINGS,
    Engine,
    Partitions,
    differences,
    packed_rows,
    result_of,
    run_without_spark,
)
from tests.state.conftest import Task
from tests.topologies.processors import KvCounter
from tests.topologies.support import kv, longs, pair

from millrace.backfill import job
from millrace.backfill.collector import Outputs
from millrace.backfill.history import Backfill
from millrace.backfill.job import compute
from millrace.backfill.packing import unpacked
from millrace.backfill.refusals import notes
from millrace.backfill.rows import REPORT, ROWS_DDL
from millrace.config import StreamsConfig
from millrace.dsl import Materialized, Produced, Repartitioned, StreamsBuilder
from millrace.engine.offset_metadata import decode_metadata
from millrace.engine.partitioner import partition_for_key
from millrace.errors import MissingSourceTopicError, StreamsError, TopologyError, UnsupportedFeatureError
from millrace.processor import Processor
from millrace.records import Record
from millrace.serdes import Serdes
from millrace.state import ChangelogRecord, Stores
from millrace.topology import Topology


def dsl(define: Any, config: Any = None) -> Any:
    """Build a topology; executors call it too."""
    builder = StreamsBuilder()
    define(builder)
    return builder.build(StreamsConfig.of({**SETTINGS, **(config or {})}))


def records(topic: str, *pairs: tuple[str | None, str | None]) -> list[Any]:
    """Return records, one per second."""
    return [
        (topic, key and key.encode(), value and value.encode(), 1_000 * index, ())
        for index, (key, value) in enumerate(pairs)
    ]


def backfill_of(define: Any, inputs: list[Any], counts: dict[str, int], **options: Any) -> Backfill:
    """Return a backfill that keeps all outputs."""
    config = {**SETTINGS, **options.pop("config", {})}
    options.setdefault("outputs", Outputs.ALL)
    return Backfill(partial(dsl, define, config), config, Partitions.of(inputs, counts), **options)


def outputs_of(result: Any, topic: str) -> list[Any]:
    """Return (key, value) of a topic's records by partition."""
    return [row[:2] for (name, *_), rows in sorted(result.outputs.items()) if name == topic for row in rows]


def words(b: StreamsBuilder) -> None:
    """Count words, through a repartition topic with five partitions."""
    split = b.stream("in").flat_map_values(str.split).select_key(lambda _key, word: word)
    split.repartition(Repartitioned.as_("words").with_number_of_partitions(5)).group_by_key().count(
        kv("counts")
    ).to_stream().to("out", longs())


LINES = records("in", *((f"k{index % 7}", f"a b{index % 5} c{index % 3}") for index in range(60)))


def test_named_repartition_topics_have_their_own_partitions():
    """The number of tasks after a repartition is what the program says, whatever the input has."""
    result = run_without_spark(backfill_of(words, LINES, {"in": 2, "out": 1}))
    assert sorted(result.tasks) == ["0_0", "0_1", "1_0", "1_1", "1_2", "1_3", "1_4"]
    assert sum(processed for processed, _ in result.tasks.values()) == 60 + 180


def test_state_larger_than_its_memory_goes_to_disk(tmp_path, monkeypatch):
    """With almost no memory allowed, the last changes are kept on disk, and nothing is left there afterwards."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    small = {"uncommitted.max.bytes": "1000"}
    expected = run_without_spark(backfill_of(words, LINES, {"in": 2, "out": 1}))
    spilled = run_without_spark(backfill_of(words, LINES, {"in": 2, "out": 1}, limit_bytes=300, config=small))
    assert differences(expected, spilled) == []
    assert list(tmp_path.iterdir()) == []


class KeepDuplicates(Processor):
    """Keeps every value of a key, all at the same time."""

    def process(self, record):
        """Put it, a null too."""
        self.context.get_state_store("kept").put(record.key, record.value, 0)


def kept() -> Any:
    """Build the store of `KeepDuplicates`."""
    supplier = Stores.persistent_window_store("kept", 60_000, 1_000, retain_duplicates=True)
    return Stores.window_store_builder(supplier, Serdes.string(), Serdes.string())


def keeps_duplicates() -> Any:
    """Build its topology."""
    topology = Topology().add_source("source", "in").add_processor("keep", KeepDuplicates, "source")
    return topology.add_state_store(kept(), "keep")


def test_an_application_replaces_no_duplicates_of_its_history(tmp_path):
    """Their numbers go on from the changelog's offset, so that it has a record for each number, even of a null."""
    inputs = records("in", ("k", None), ("k", None), ("k", None), ("k", "history"))
    result = run_without_spark(Backfill(keeps_duplicates, SETTINGS, Partitions.of(inputs, {"in": 1})))
    (changes,) = result.changelogs.values()
    task = Task(tmp_path)
    log = task.log("kept")
    log += [
        ChangelogRecord(key, value, at, offset, headers)
        for offset, (key, (value, at, headers)) in enumerate(changes.items())
    ]
    store = task.open(kept())
    store.restore(log)
    for number in range(3):
        store.put("k", f"live {number}", 0)
    task.commit(store)
    store.close()
    store = task.open(kept())
    store.put("k", "after a restart", 0)
    values = [value for _, value in store.fetch("k", 0, 0)]
    task.close()
    assert values == ["history", "live 0", "live 1", "live 2", "after a restart"]


def test_only_the_last_record_of_each_key_is_kept_on_request():
    """With `last`, an output topic has one record per key; those without a key are all kept."""

    def copy(b: StreamsBuilder) -> None:
        b.stream("in").to("out")

    inputs = records("in", ("a", "1"), ("b", "1"), ("a", "2"), (None, "x"), (None, "y"), ("b", None))
    result = run_without_spark(backfill_of(copy, inputs, {"in": 1, "out": 1}, outputs=Outputs.LAST))
    assert sorted(outputs_of(result, "out"), key=str) == [(None, b"x"), (None, b"y"), (b"a", b"2"), (b"b", None)]


def test_the_last_record_of_a_key_that_several_tasks_send(spark, monkeypatch):
    """It is the latest one; of those with the same timestamp, that of the last task, which is 0_10 and not 0_9."""

    def renamed(b: StreamsBuilder) -> None:
        b.stream("in").select_key(lambda _key, value: value.split()[0] if " " in value else None).to("out")

    keys = {partition_for_key(b"%d" % number, 11): b"%d" % number for number in range(200)}
    inputs = [
        ("in", keys[0], b"a 0", 5_000, ()),
        ("in", keys[9], b"a 9", 1_000, ()),
        ("in", keys[9], b"b 9", 1_000, ()),
        ("in", keys[10], b"b 10", 1_000, ()),
        ("in", keys[0], b"c 0", 6_000, (("näher", b"xyz"), ("none", None))),
        ("in", keys[0], b"keyless0", 7_000, ()),
        ("in", keys[9], b"keyless9", 7_000, ()),
    ]
    calls = spark.sparkContext.accumulator(0)

    def counted(batches):
        calls.add(1)
        yield from unpacked(batches)

    monkeypatch.setattr(job, "unpacked", counted)
    found = compute(spark, backfill_of(renamed, inputs, {"in": 11, "out": 1}, outputs=Outputs.LAST))
    assert found.sizes()["out"].records == 5
    once = calls.value
    found.rows.where("topic = 'out'").collect()
    found.rows.where("topic <> 'out'").count()
    assert calls.value == once > 0  # what several tasks have sent is unpacked, and computed, once
    rows = [(row.key and bytes(row.key), bytes(row.value)) for row in found.records("out").collect()]
    kept = [(None, b"keyless0"), (None, b"keyless9"), (b"a", b"a 0"), (b"b", b"b 10"), (b"c", b"c 0")]
    assert sorted(rows, key=str) == sorted(kept, key=str)
    headers = len("näher".encode()) + len(b"xyz") + len("none")
    assert found.sizes()["out"] == (5, sum(len(key or b"") + len(value) for key, value in kept) + headers)


def test_last_records_of_keys_that_one_task_sends_are_not_shuffled(spark):
    """Each task has the last record of each of its keys, and no other has the key."""

    def copy(b: StreamsBuilder) -> None:
        b.stream("in").to("out")

    inputs = records("in", *((f"k{number % 5}", str(number)) for number in range(20)))
    found = compute(spark, backfill_of(copy, inputs, {"in": 2, "out": 2}, outputs=Outputs.LAST))
    assert found.shared == frozenset()
    assert found.sizes()["out"].records == 5


def test_what_is_computed_again_has_to_be_the_same(spark, tmp_path):
    """Spark computes again what an executor had that is gone; meanwhile the history may have lost records."""
    given = tmp_path / "given"

    def read(b: StreamsBuilder) -> None:
        b.stream("in").filter(lambda _key, value: value >= given.read_text()).to("out")

    given.write_text("k0")
    found = compute(spark, backfill_of(read, records("in", ("k0", "k0"), ("k1", "k1")), {"in": 2, "out": 1}))
    assert found.sizes()["out"].records == 2
    spark.catalog.clearCache()
    found.check_unchanged()
    given.write_text("k1")
    spark.catalog.clearCache()
    with pytest.raises(StreamsError, match=r"has computed something else .* Start the backfill again"):
        found.check_unchanged()


def test_outputs_can_be_left_out():
    """With `none`, changelogs are computed and output topics need not exist."""
    result = run_without_spark(backfill_of(words, LINES, {"in": 1}, outputs=Outputs.NONE))
    assert result.outputs == {}
    assert result.changelogs


def test_an_output_topic_must_exist():
    """A topic whose partitions are not known is named, with what to do."""
    with pytest.raises(StreamsError, match=r"topic out, which does not exist: create it"):
        run_without_spark(backfill_of(words, LINES, {"in": 1}))


def test_without_outputs_partitioners_are_called_all_the_same():
    """What they choose for a topic that does not exist cannot be wrong."""

    def chosen(b: StreamsBuilder) -> None:
        b.stream("in").to("out", Produced.stream_partitioner(lambda _topic, _key, _value, _count: 3))

    result = run_without_spark(backfill_of(chosen, LINES, {"in": 1}, outputs=Outputs.NONE))
    assert result.tasks == {"0_0": (60, 0)}


def test_missing_topics_are_named(spark):
    """All of them, before anything runs."""

    def joined(b: StreamsBuilder) -> None:
        b.stream("in").join(b.table("gone"), pair).join(
            b.global_table("lost"), pair, key_selector=lambda key, _value: key
        )

    with pytest.raises(MissingSourceTopicError, match="There is no history of gone, lost, which the application reads"):
        compute(spark, backfill_of(joined, [], {"in": 1}))


@dataclass
class Filed(Partitions):
    """A history of which a part is in files: rows that Spark brings to the tasks."""

    filed: Sequence[tuple[int, int, int, bytes]] = ()
    """partition, number, timestamp, value; all of topic `in`, with the value as the key."""

    def rows(self, spark):
        """Return the part that is in files."""
        reached = {
            number: max(at for p, n, at, _ in self.filed if p == part and n <= number)
            for part, number, *_ in self.filed
        }
        rows = [("in", part, reached[number], "", number, at, v, v, None) for part, number, at, v in self.filed]
        return spark.createDataFrame(rows, ROWS_DDL)


def test_rows_of_files_come_before_what_is_read(spark):
    """A partition's records are those of the files in their order, then those of the topic; others are merged by time."""

    def copied(b: StreamsBuilder) -> None:
        b.stream(["in", "other"]).to("out")

    read = [("in", b"k", b"k4", 400, ()), ("other", b"o", b"o1", 150, ()), ("other", b"o", b"o2", 350, ())]
    history = Filed.of(read, {"in": 1, "other": 1, "out": 1})
    history.filed = [(0, 1, 100, b"f1"), (0, 2, 300, b"f2"), (0, 3, 200, b"f3")]
    history.shuffled = {"in": None}
    found = compute(spark, Backfill(partial(dsl, copied), SETTINGS, history, outputs=Outputs.ALL))
    values = [value for _, value in outputs_of(result_of(found.plan, found.records().collect()), "out")]
    assert values == [b"f1", b"o1", b"f2", b"f3", b"o2", b"k4"]


def test_topics_that_match_a_pattern_are_read():
    """Every topic that matches feeds the same tasks."""

    def by_pattern(b: StreamsBuilder) -> None:
        b.stream(re.compile("in-.*")).group_by_key().count(kv("counts")).to_stream().to("out", longs())

    inputs = records("in-a", ("a", "1")) + records("in-b", ("a", "1"), ("b", "1"))
    backfill = backfill_of(by_pattern, inputs, {"in-a": 2, "in-b": 3, "out": 1, "other": 9})
    expected = Engine(backfill.topology, backfill.config, backfill.history).run()
    assert len(expected.tasks) == 3
    assert differences(expected, run_without_spark(backfill)) == []


def orders(b: StreamsBuilder) -> None:
    """Join orders with the customers that they name."""
    joined = b.table("orders").join(b.table("customers"), pair, foreign_key=lambda value: value.split(":")[0])
    joined.to_stream().to("out")


def test_foreign_key_joins_end_with_the_join_of_the_tables():
    """Whatever the order of updates, also at the same time, each order has its customer's last value."""
    customers = {f"c{number}": "" for number in range(5)}
    found: dict[str, str] = {}
    inputs = []
    for index in range(300):
        time = (index // 4) * 10 - (35 if index % 11 == 0 else 0)
        if index % 3:
            key, value = f"o{index % 23}", f"c{index * 7 % 5}:{index}"
            found[key] = value
            inputs.append(("orders", key, value, max(time, 0)))
        else:
            key, value = f"c{index % 5}", f"v{index}"
            customers[key] = value
            inputs.append(("customers", key, value, max(time, 0)))
    given = [(topic, key.encode(), value.encode(), time, ()) for topic, key, value, time in inputs]
    result = run_without_spark(backfill_of(orders, given, {"orders": 3, "customers": 2, "out": 3}))
    last = {key: value for rows in result.outputs.values() for key, value, *_ in rows}
    assert last == {key.encode(): f"{value}/{customers[value.split(':')[0]]}".encode() for key, value in found.items()}


def test_each_task_reports_its_offsets_and_times():
    """Positions and partition times are what a commit would have; a partition without records has none."""

    def merged(b: StreamsBuilder) -> None:
        b.stream(["a", "b"]).group_by_key().count(kv("counts"))

    inputs = [("a", b"k", b"1", 50, ()), ("a", b"k", b"1", 20, ())]
    [row] = [row for row in packed_rows(backfill_of(merged, inputs, {"a": 1, "b": 1})) if row.topic == REPORT]
    report = json.loads(row.value)
    assert (row.task, report["processed"], report["dropped"], report["stream_time"]) == ("0_0", 2, 0, 50)
    [[topic, partition, offset, metadata]] = report["offsets"]
    assert (topic, partition, offset, decode_metadata(metadata).partition_time) == ("a", 0, 2, 50)


def test_a_users_topic_that_is_a_changelog_is_handed_over(spark):
    """A topic that the application writes and reads as a table has its last records among the result, outputs or not."""

    def through(b: StreamsBuilder) -> None:
        b.stream("in").to("middle")
        b.table("middle", Materialized.as_("table")).to_stream().to("out")

    optimised = {"topology.optimization": "all"}
    inputs = records("in", ("a", "1"), ("b", "1"), ("a", "2"))
    counts = {"in": 1, "middle": 2, "out": 1}
    for outputs, expected in (
        (Outputs.NONE, {"middle": 2}),
        (Outputs.LAST, {"middle": 2, "out": 2}),
        (Outputs.ALL, {"middle": 3, "out": 3}),
    ):
        found = compute(spark, backfill_of(through, inputs, counts, outputs=outputs, config=optimised))
        counted = {row.topic: row["count"] for row in found.records().groupBy("topic").count().collect()}
        del counted[REPORT]
        assert counted == expected
        assert {topic: size.records for topic, size in found.sizes().items()} == expected


def test_stores_without_changelog_are_named():
    """They are computed for what follows from them, but cannot be handed over."""

    def unlogged(b: StreamsBuilder) -> None:
        store = Materialized.as_("unlogged").with_logging_disabled()
        b.stream("in").group_by_key().count(store).to_stream().to("out", longs())

    plan = dsl(unlogged).build(StreamsConfig.of(SETTINGS)).plan()
    assert notes(plan) == (
        "Store unlogged of sub-topology 0 has no changelog: its contents are used, but not handed over",
    )


def peeking(b: StreamsBuilder) -> None:
    """Side effects of three kinds."""
    stream = b.stream("in").peek(lambda _key, _value: None, "look")
    stream.foreach(lambda _key, _value: None, "each")
    stream.to("out")


def test_side_effects_are_refused_by_name(spark):
    """All nodes with side effects are listed before anything runs."""
    backfill = backfill_of(peeking, records("in", ("a", "1")), {"in": 1, "out": 1})
    with pytest.raises(UnsupportedFeatureError, match=r"(?s)Node look of sub-topology 0.*Node each of sub-topology 0"):
        compute(spark, backfill)


def test_side_effects_can_be_allowed(spark):
    """Then they happen, and the records pass."""
    backfill = backfill_of(peeking, records("in", ("a", "1")), {"in": 1, "out": 1}, side_effects=True)
    compute(spark, backfill)  # which refuses nothing, and runs nothing yet
    assert outputs_of(run_without_spark(backfill), "out") == [(b"a", b"1")]


def clock() -> Topology:
    """A processor that punctuates in both times."""
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("cnt"), Serdes.string(), Serdes.long())
    topology = Topology().add_source("src", "in").add_processor("counter", KvCounter, "src")
    return topology.add_state_store(store, "counter").add_sink("snk", "out", "counter")


def test_wall_clock_punctuators_are_refused_by_name():
    """The node is named, with what to do."""
    history = Partitions.of(records("in", ("a", "1")), {"in": 1, "out": 1})
    with pytest.raises(
        UnsupportedFeatureError, match=r"Node counter of task 0_0 schedules a punctuator by wall-clock time"
    ):
        run_without_spark(Backfill(clock, SETTINGS, history))


def test_wall_clock_punctuators_can_be_allowed():
    """They are never called; those by stream time are."""
    history = Partitions.of(records("in", ("a", "1"), ("a", "2")), {"in": 1, "out": 1})
    backfill = Backfill(clock, SETTINGS, history, outputs=Outputs.ALL, wall_clock_punctuators=True)
    assert outputs_of(run_without_spark(backfill), "out") == [
        (b"a", b"a=1"),
        (b"*sum@0", b"1"),
        (b"a", b"a=2"),
        (b"*sum@1000", b"2"),
    ]


def test_global_stores_of_the_applications_own_topics_are_refused(spark):
    """They would be incomplete, because they are filled first."""

    def own(b: StreamsBuilder) -> None:
        table = b.global_table("middle", kv("all"))
        b.stream("in").join(table, pair, key_selector=lambda key, _value: key).to("middle")

    with pytest.raises(
        UnsupportedFeatureError, match=r"Global store all is filled from topic middle, which sub-topology 1"
    ):
        compute(spark, backfill_of(own, records("in", ("a", "1")), {"in": 1, "middle": 1}))


class Unreadable(Partitions):
    """A history whose ends cannot be read."""

    def read(self, partition):
        """Read a partition, and fail at its end."""
        yield from super().read(partition)
        raise StreamsError("the brokers do not answer")


def test_files_of_global_stores_that_nobody_needs_are_deleted(tmp_path, monkeypatch):
    """Those of a failed attempt, as Spark may try again in the same process, and those of processes that have ended.

    But no others that share the disk: those of another container may run, although nobody here has their numbers.
    """

    def looked_up(b: StreamsBuilder) -> None:
        table = b.global_table("all", kv("all"))
        b.stream("in").join(table, pair, key_selector=lambda key, _value: key).to("out")

    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = socket.gethostname()
    stay = {f"millrace-backfill-global-{os.getppid()}-x@{host}", f"millrace-backfill-global-{ended.pid}-x@other-{host}"}
    for name in {f"millrace-backfill-global-{ended.pid}-x@{host}", *stay}:
        (tmp_path / name).mkdir()
    backfill = backfill_of(
        looked_up, records("all", ("a", "1")) + records("in", ("a", "2")), {"in": 1, "all": 1, "out": 1}
    )
    history = backfill.history
    with pytest.raises(StreamsError, match="the brokers do not answer"):
        run_without_spark(replace(backfill, history=Unreadable(history.counts, history.records)))
    assert {path.name for path in tmp_path.iterdir()} == stay
    assert outputs_of(run_without_spark(backfill), "out") == [(b"a", b"2/1")]


def test_a_loop_that_does_not_end_is_refused(spark, monkeypatch):
    """A topic that causes another record of itself for ever has no final result."""
    monkeypatch.setattr(job, "_MAX_PASSES", 2)

    def forever(b: StreamsBuilder) -> None:
        b.stream(["in", "again"]).map_values(lambda value: value + "x").to("again")

    with pytest.raises(UnsupportedFeatureError, match=r"The records of again depend on each other in a loop"):
        compute(spark, backfill_of(forever, records("in", ("a", "1")), {"in": 1, "again": 1}))


def test_a_loop_that_ends_is_computed():
    """Records go round until the program stops sending them."""

    def countdown(b: StreamsBuilder) -> None:
        stream = b.stream(["in", "again"])
        stream.map_values(lambda value: str(int(value) - 1)).filter(lambda _key, value: int(value) > 0).to("again")
        stream.group_by_key().count(kv("counts")).to_stream().to("out", longs())

    result = run_without_spark(backfill_of(countdown, records("in", ("a", "4")), {"in": 1, "again": 1, "out": 1}))
    assert outputs_of(result, "out")[-1] == (b"a", (4).to_bytes(8, "big"))


def test_an_unnamed_loop_is_refused():
    """A computed topic name must not lead back into the application."""

    def hidden(b: StreamsBuilder) -> None:
        b.stream("in").to(lambda _key, _value, _context: "other")
        b.stream("other").to("out")

    with pytest.raises(
        TopologyError, match=r"Task 0_0 sends to topic other, which the application reads, but the topology"
    ):
        run_without_spark(backfill_of(hidden, records("in", ("a", "1")), {"in": 1, "other": 1, "out": 1}))


class Headed:
    """Adds a header with an empty and one with no value."""

    def init(self, context: Any) -> None:
        """Keep the context."""
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        """Forward with headers."""
        self.context.forward(record.with_headers(record.headers.add("h", b"").add("none", None)))

    def close(self) -> None:
        """Do nothing."""


def test_headers_survive_the_shuffle(spark):
    """Also those that are empty or have no value."""

    def shuffle(b: StreamsBuilder) -> None:
        b.stream("in").process(Headed).repartition().to("out")

    inputs = [("in", b"k", b"", 0, (("h", b"1"),)), ("in", b"", None, 1, ())]
    found = compute(spark, backfill_of(shuffle, inputs, {"in": 1, "out": 1}))
    rows = [row for rows in result_of(found.plan, found.records().collect()).outputs.values() for row in rows]
    assert rows == [
        (b"k", b"", 0, (("h", b"1"), ("h", b""), ("none", None))),
        (b"", None, 1, (("h", b""), ("none", None))),
    ]


def test_spark_is_not_imported_with_the_runtime():
    """Pods need neither Spark nor Arrow."""
    code = "import sys, millrace.cli, millrace.instance; print([n for n in ('pyspark', 'pyarrow', 'pandas') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
