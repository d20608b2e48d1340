"""The life cycle of a task: states, offsets, stores, failures."""

from __future__ import annotations

import pytest
from tests.engine.support import Failing, Harness, pipe

from millrace.dsl import Materialized, StreamsBuilder
from millrace.engine.offset_metadata import decode_metadata, encode_metadata
from millrace.engine.task_state import ALLOWED_TRANSITIONS, IllegalTaskStateError, TaskState, check_transition
from millrace.errors import FailedProcessingError, TopologyError
from millrace.processor.api import Processor, PunctuationType
from millrace.records import NO_HEADERS, OffsetAndMetadata, Record, TopicPartition, ValueAndTimestamp
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.state.api import ChangelogRecord
from millrace.state.cache import RecordCache
from millrace.topology import Topology

IN = TopicPartition("in", 0)


class Counter(Processor):
    """Counts per key, and forwards the count as text."""

    def process(self, record):
        """Count one."""
        store = self.context.get_state_store("counts")
        count = (store.get(record.key) or 0) + 1
        store.put(record.key, count)
        self.context.forward(record.with_value(str(count)))


def counting(*, persistent=True, caching=False):
    """Return a topology that counts per key in the store `counts`."""
    supplier = Stores.persistent_key_value_store("counts") if persistent else Stores.in_memory_key_value_store("counts")
    store = Stores.key_value_store_builder(supplier, Serdes.string(), Serdes.long())
    if caching:
        store.with_caching_enabled()
    return (
        Topology()
        .add_source("src", "in")
        .add_processor("p", Counter, "src")
        .add_state_store(store, "p")
        .add_sink("snk", "out", "p")
    )


@pytest.mark.parametrize("old", TaskState)
@pytest.mark.parametrize("new", TaskState)
def test_only_tabled_transitions_are_allowed(old, new):
    """Any other transition is refused, and the error names the task and its state."""
    if new in ALLOWED_TRANSITIONS[old]:
        check_transition("0_1", old, new)
    else:
        with pytest.raises(IllegalTaskStateError, match=f"0_1 cannot go from {old.value} to {new.value}"):
            check_transition("0_1", old, new)


def test_task_goes_through_its_states(tmp_path):
    """A task goes through CREATED, RESTORING, RUNNING, SUSPENDED and CLOSED, with a call for each step."""
    harness = Harness(counting(), tmp_path)
    task = harness.task
    assert task.state is TaskState.CREATED
    task.open_stores()
    assert task.state is TaskState.RESTORING
    task.initialize()
    assert task.state is TaskState.RUNNING
    task.suspend()
    assert task.state is TaskState.SUSPENDED
    assert task.prepare_commit() == {}
    task.post_commit({})
    task.close_clean()
    assert task.state is TaskState.CLOSED
    assert not task.stores["counts"].is_open()


def test_records_are_refused_before_running(tmp_path):
    """A task that is not RUNNING refuses records, and the error has its state."""
    harness = Harness(pipe(), tmp_path)
    with pytest.raises(IllegalTaskStateError, match="0_0 is CREATED"):
        harness.add("in", ("k", "v", 1))


def test_commit_returns_next_offsets_with_partition_time(tmp_path):
    """A commit has the offset after the last processed record, with the partition's time."""
    harness = Harness(pipe(), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "a", 30), ("k", "b", 20), ("k", "c", 40))
    assert task.prepare_commit() == {}
    task.process(0, 2)
    assert task.commit_needed
    assert task.prepare_commit() == {IN: OffsetAndMetadata(2, encode_metadata(30))}
    task.post_commit({})
    assert not task.commit_needed
    task.process(0, 10)
    assert task.prepare_commit()[IN].offset == 3
    assert task.stream_time == task.partition_time(IN) == 40


def test_consumer_position_beyond_the_last_record_is_committed(tmp_path):
    """Transaction markers after the last record are skipped if the host reports the consumer's position."""
    harness = Harness(pipe(), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "a", 1))
    task.process(0, 1)
    task.set_position(IN, 5)
    assert task.prepare_commit()[IN].offset == 5


def test_end_of_a_recreated_topic_is_committed_although_it_is_before_the_last_record(tmp_path):
    """Otherwise the offset of a log that is gone would be committed until the new one has a record."""
    harness = Harness(pipe(), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "a", 1), ("k", "b", 2))
    task.process(0, 1)
    task.set_position(IN, 0)
    assert task.prepare_commit()[IN].offset == 1, "a record waits"
    task.process(0, 1)
    task.prepare_commit()
    task.post_commit({})
    task.set_position(IN, 0)
    assert task.commit_needed
    assert task.prepare_commit()[IN].offset == 0


def test_committed_partition_time_is_taken_up(tmp_path):
    """A task starts with the partition time and stream time of the last commit."""
    harness = Harness(pipe(), tmp_path)
    task = harness.run({IN: OffsetAndMetadata(7, encode_metadata(1500))})
    assert task.partition_time(IN) == 1500
    assert task.stream_time == 1500


def test_changed_processor_metadata_is_committed_on_all_partitions(tmp_path):
    """Metadata set by a node goes with the offset of every input partition that has one."""
    harness = Harness(pipe("a", "b"), tmp_path, **{"max.task.idle.ms": -1})
    task = harness.run()
    harness.add("a", ("k", "v", 1))
    harness.add("b", ("k", "v", 2))
    task.process(0, 10)
    task.prepare_commit()
    task.post_commit({})
    harness.add("a", ("k", "v", 3))
    task._metadata["windows"] = 99
    task.process(0, 10)
    committed = task.prepare_commit()
    assert {tp.topic for tp in committed} == {"a", "b"}
    assert all(decode_metadata(item.metadata).processor_metadata == {"windows": 99} for item in committed.values())


def test_standby_updates_and_takes_over_with_its_stores_open(tmp_path):
    """A task in RESTORING applies changelog records, and uses the same stores when it is initialised."""
    harness = Harness(counting(), tmp_path)
    task = harness.task
    task.open_stores()
    changelog = TopicPartition("app-counts-changelog", 0)
    assert set(task.changelogs) == {changelog}
    task.restore(changelog, [ChangelogRecord(b"k", (41).to_bytes(8, "big"), 1, 0)])
    assert task.counters.restored_records == 1
    task.initialize()
    harness.add("in", ("k", "v", 2))
    task.process(0, 1)
    assert harness.values("out") == ["42"]


def test_active_becomes_standby_without_closing_stores(tmp_path):
    """Recycling stops the nodes, and keeps the stores open for further updates, after the last offset of the active task."""
    harness = Harness(counting(), tmp_path)
    task = harness.run()
    changelog = TopicPartition("app-counts-changelog", 0)
    assert task.changelog_positions == {changelog: None}
    harness.add("in", ("k", "v", 1))
    task.process(0, 1)
    task.prepare_commit()
    task.post_commit({changelog: 0})
    task.recycle(task.input_partitions)
    assert task.state is TaskState.RESTORING
    assert task.stores["counts"].is_open()
    assert task.changelog_positions == {changelog: 1}
    task.restore(changelog, [ChangelogRecord(b"k", (7).to_bytes(8, "big"), 1, 1)])
    assert task.changelog_positions == {changelog: 2}
    task.initialize()
    harness.add("in", ("k", "v", 2))
    task.process(0, 1)
    assert harness.values("out") == ["1", "8"]
    task.close_dirty()


def test_a_recycled_task_has_no_record_cache(tmp_path):
    """What the cache holds is released, so that a row that a standby restores is not hidden by an older one."""
    cache = RecordCache(1 << 20)
    harness = Harness(counting(caching=True), tmp_path, cache=cache)
    task = harness.run()
    harness.add("in", ("k", "v", 1))
    task.process(0, 1)
    task.prepare_commit()
    task.post_commit({})
    assert cache.used_bytes > 0
    task.recycle(task.input_partitions)
    assert cache.used_bytes == 0
    changelog = TopicPartition("app-counts-changelog", 0)
    task.restore(changelog, [ChangelogRecord(b"k", (7).to_bytes(8, "big"), 1, 1)])
    assert task.stores["counts"].get("k") == 7
    task.close_dirty()


def test_dirty_close_forgets_what_was_not_committed(tmp_path):
    """After a dirty close the disk has the state of the last commit, with its changelog offset."""
    harness = Harness(counting(), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "v", 1))
    task.process(0, 1)
    task.prepare_commit()
    task.post_commit(harness.collector.changelog_offsets())
    harness.add("in", ("k", "v", 2))
    task.process(0, 1)
    assert task.uncommitted_bytes() > 0
    task.close_dirty()
    again = Harness(counting(), tmp_path)
    again.task.open_stores()
    assert again.task.stores["counts"].get("k") == 1
    assert again.task.stores["counts"].committed_offset(TopicPartition("app-counts-changelog", 0)) == 0
    again.task.close_dirty()


def test_clean_close_is_refused_with_uncommitted_work(tmp_path):
    """Closing clean without a commit is the host's mistake and is refused."""
    harness = Harness(pipe(), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "v", 1))
    task.process(0, 1)
    task.suspend()
    with pytest.raises(IllegalTaskStateError, match="uncommitted"):
        task.close_clean()
    task.close_dirty()


def test_failure_names_node_and_position_and_does_not_consume(tmp_path):
    """A processor's exception becomes FailedProcessingError with the node, offset and cause; its record is not committed."""
    harness = Harness(pipe(processor=Failing), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "ok", 1), ("k", "bad", 2), ("k", "later", 3))
    with pytest.raises(
        FailedProcessingError, match=r"node p failed on the record at offset 1 of in-0: ValueError"
    ) as caught:
        task.process(0, 10)
    assert isinstance(caught.value.__cause__, ValueError)
    assert task.position(IN) == 1
    task.close_dirty()


def test_processor_can_ask_for_a_commit(tmp_path):
    """`context.commit` sets a flag that the next commit clears."""

    class Asking(Processor):
        def process(self, record):
            self.context.commit()

    harness = Harness(pipe(processor=Asking), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "v", 1))
    task.process(0, 1)
    assert task.commit_requested
    task.prepare_commit()
    task.post_commit({})
    assert not task.commit_requested


def test_commit_asked_for_at_the_start_is_made_once(tmp_path):
    """A commit requested in `init` needs no input, and happens only once."""

    class Asking(Processor):
        def init(self, context):
            context.commit()

    task = Harness(pipe(processor=Asking), tmp_path).run()
    assert task.commit_requested
    assert task.commit_needed
    assert task.prepare_commit() == {}
    task.post_commit({})
    assert not task.commit_requested
    assert not task.commit_needed


def test_punctuators_see_no_record_and_their_own_time(tmp_path):
    """During punctuation there is no record metadata, headers are empty, and the timestamp is the punctuation's."""
    seen = []

    class Punctuated(Processor):
        def init(self, context):
            super().init(context)
            context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self.tick)

        def tick(self, ts):
            seen.append((ts, self.context.record_metadata, self.context.current_system_time_ms()))
            self.context.forward(Record("k", f"tick {ts}", ts))

        def process(self, record):
            seen.append(self.context.record_metadata.offset)

    harness = Harness(pipe(processor=Punctuated), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "v", 1))
    task.process(5, 1)
    assert task.schedules.wall_clock.next_ms == 10
    assert task.punctuate_wall_clock(9) == 0
    assert task.punctuate_wall_clock(25) == 1
    assert seen == [0, (25, None, 25)]
    assert harness.values() == ["tick 25"]
    assert task.commit_needed


def test_stream_time_punctuation_needs_a_record(tmp_path):
    """Stream-time punctuators do not fire before the first record, and fire immediately after it."""
    calls = []

    class Punctuated(Processor):
        def init(self, context):
            context.schedule(100, PunctuationType.STREAM_TIME, calls.append)

        def process(self, record):
            pass

    harness = Harness(pipe(processor=Punctuated), tmp_path)
    task = harness.run()
    assert task.punctuate_stream_time() == 0
    harness.add("in", ("k", "v", 7))
    task.process(0, 1)
    assert task.punctuate_stream_time() == 1
    assert task.punctuate_stream_time() == 0
    assert calls == [7]


def test_store_of_another_node_is_refused(tmp_path):
    """A processor only gets the stores connected to it; the error says how to connect one."""

    class Nosy(Processor):
        def init(self, context):
            context.get_state_store("counts")

    topology = counting().add_processor("nosy", Nosy, "src")
    harness = Harness(topology, tmp_path)
    harness.task.open_stores()
    with pytest.raises(TopologyError, match="nosy asks for store 'counts' but is not connected"):
        harness.task.initialize()
    harness.task.close_dirty()


def test_extractor_is_given_the_record_and_the_partition_time(tmp_path):
    """A custom extractor gets deserialised records and the largest earlier timestamp; -1 drops a record."""
    seen = []

    def extract(record, partition_time):
        seen.append((record.topic, record.offset, record.key, record.value, partition_time))
        return int(record.value)

    topology = (
        Topology()
        .add_source("src", "in", timestamp_extractor=extract)
        .add_processor("p", Failing, "src")
        .add_sink("snk", "out", "p")
    )
    harness = Harness(topology, tmp_path)
    task = harness.run()
    harness.add("in", ("a", "10", 1), ("b", "-1", 2), ("c", "5", 3))
    task.process(0, 10)
    assert seen == [("in", 0, "a", "10", -1), ("in", 1, "b", "-1", 10), ("in", 2, "c", "5", 10)]
    assert [(sent.value, sent.timestamp) for sent in harness.collector.take()] == [(b"10", 10), (b"5", 5)]
    assert task.counters.dropped_records == 1
    assert task.stream_time == 10


def test_failing_extractor_names_the_record(tmp_path):
    """An extractor that raises fails the task, and the error names the source and offset."""

    def extract(record, partition_time):
        raise KeyError("when")

    topology = Topology().add_source("src", "in", timestamp_extractor=extract).add_processor("p", Failing, "src")
    harness = Harness(topology, tmp_path)
    task = harness.run()
    harness.add("in", ("a", "10", 1))
    with pytest.raises(FailedProcessingError, match=r"source src failed on the record at offset 0 of in-0: KeyError"):
        task.process(0, 10)
    assert task.position(IN) == 0


def test_failed_record_can_be_processed_again(tmp_path):
    """After a failure the record is still at the head, and what came before it can be committed."""
    attempts = []

    class Flaky(Processor):
        def process(self, record):
            attempts.append(record.value)
            if len(attempts) == 2:
                raise ValueError("once")
            self.context.forward(record)

    harness = Harness(pipe(processor=Flaky), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "a", 1), ("k", "b", 2), ("k", "c", 3))
    with pytest.raises(FailedProcessingError):
        task.process(0, 10)
    assert task.prepare_commit()[IN].offset == 1
    task.process(0, 10)
    assert attempts == ["a", "b", "b", "c"]
    assert task.prepare_commit()[IN].offset == 3


def test_input_partitions_may_come_and_go(tmp_path):
    """A task that reads a pattern adds new partitions, and keeps what the others have buffered."""
    topology = (
        Topology().add_source("src", pattern="in-.*").add_processor("p", Failing, "src").add_sink("snk", "out", "p")
    )
    harness = Harness(topology, tmp_path, **{"max.task.idle.ms": -1})
    task = harness.run()
    one, two = TopicPartition("in-1", 0), TopicPartition("in-2", 0)
    task.update_input_partitions(frozenset({one}))
    harness.add("in-1", ("k", "a", 1), ("k", "c", 3))
    task.process(0, 1)
    task.update_input_partitions(frozenset({one, two}))
    harness.add("in-2", ("k", "b", 2))
    task.process(0, 10)
    assert harness.values() == ["a", "b", "c"]
    assert {partition: item.offset for partition, item in task.prepare_commit().items()} == {one: 2, two: 1}
    task.post_commit({})
    task.update_input_partitions(frozenset({two}))
    assert task.input_partitions == {two}
    assert task.buffered() == 0


def test_text_that_is_not_utf8_is_read_amid_other_text(tmp_path):
    """Java replaces such bytes, in keys and values; null keys and values stay null, and order and offsets stay as they are."""
    harness = Harness(pipe(), tmp_path)
    task = harness.run()
    pairs = [(b"k", b"a"), (None, b"b"), (b"k\xff", b"c"), (b"k", b"\xfed"), (b"k", None), (b"k", b"e")]
    raw = [("in", 0, offset, offset, key, value, NO_HEADERS) for offset, (key, value) in enumerate(pairs)]
    task.add_records(IN, raw)
    assert task.process(0, 10) == 6
    sent = [(record.key, record.value) for record in harness.collector.take()]
    replaced = "\ufffd".encode()
    assert sent == [
        (b"k", b"a"),
        (None, b"b"),
        (b"k" + replaced, b"c"),
        (b"k", replaced + b"d"),
        (b"k", None),
        (b"k", b"e"),
    ]
    assert task.prepare_commit()[IN].offset == 6
    task.close_dirty()


class Remember(Processor):
    """Puts what it gets into the store `seen`."""

    def process(self, record):
        """Put it."""
        self.context.get_state_store("seen").put(record.key, record.value)


def remembering():
    """Return a topology with a cached store that is flushed before the table whose updates are put into it, too."""
    builder = StreamsBuilder()
    seen = Stores.key_value_store_builder(Stores.in_memory_key_value_store("seen"), Serdes.string(), Serdes.string())
    builder.add_state_store(seen.with_caching_enabled())
    builder.stream("first").process(Remember, "seen")
    builder.stream("in").group_by_key().reduce(lambda _old, new: new).to_stream().process(Remember, "seen")
    return builder.build()


def test_what_a_flush_puts_into_another_store_is_committed_with_its_offset(tmp_path):
    """Whatever the order in which stores are flushed, the changelog has it before the offset is committed."""
    harness = Harness(remembering(), tmp_path, cache=RecordCache(1_000_000), **{"max.task.idle.ms": -1})
    task = harness.run()
    for number in range(3):
        harness.add("in", ("k", f"v{number}", number))
        task.process(0, 10)
        assert task.prepare_commit()[IN].offset == number + 1
        assert harness.values("app-seen-changelog") == [f"v{number}"]
        task.post_commit({})
    task.suspend()
    task.close_clean()


class Raise(Processor):
    """Adds one to what the store `total` has, which is a table, so that its flush changes it again."""

    def process(self, record):
        """Put one more."""
        self.context.get_state_store("total").put(record.key, ValueAndTimestamp(record.value + "+", record.timestamp))


def test_a_store_that_feeds_itself_is_not_flushed_for_ever(tmp_path):
    """One round for each store is enough for all that do not."""
    builder = StreamsBuilder()
    table = builder.stream("in").group_by_key().reduce(lambda _old, new: new, Materialized.as_("total"))
    table.to_stream().process(Raise, "total")
    harness = Harness(builder.build(), tmp_path, cache=RecordCache(1_000_000))
    task = harness.run()
    harness.add("in", ("k", "v", 0))
    task.process(0, 10)
    task.prepare_commit()
    assert harness.values("app-total-changelog") == ["v"]
    task.close_dirty()
