"""A store and a builder written by a user, in a task: opened, logged, committed and restored, even after a crash."""

from __future__ import annotations

import json

import pytest
from tests.engine.support import Harness

from millrace.config import StreamsConfig
from millrace.processor import Processor
from millrace.records import NO_HEADERS, TopicPartition
from millrace.state import ChangelogRecord, StateStore, StoreBuilder, StoreBuilderBase
from millrace.topology import Topology

CHANGELOG = TopicPartition("app-tally-changelog", 0)


class Tally:
    """How often each key came; `FileTally` keeps it in a file."""

    persistent = False

    def __init__(self, name):
        self.name = name
        self.counts = {}
        self.offset = None
        self.opened = False

    def init(self, context):
        partition = context.changelog_partition(self.name)
        self.log = None if partition is None else context.send_change(partition)
        self.record = context.record
        self.opened = True

    def add(self, key):
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.log is not None:
            self.log(key.encode(), str(self.counts[key]).encode(), self.record.timestamp, NO_HEADERS)

    def flush(self):
        """Do nothing: nothing is buffered."""

    def commit(self, offsets):
        self.offset = offsets.get(CHANGELOG, self.offset)

    def committed_offset(self, partition):
        assert partition == CHANGELOG
        return self.offset

    def restore(self, records):
        for record in records:
            self.counts[record.key.decode()] = int(record.value)
            self.offset = record.offset

    def uncommitted_bytes(self):
        return 0

    def is_open(self):
        return self.opened

    def close(self):
        self.opened = False


class FileTally(Tally):
    """Writes counts and offset into one file at every commit."""

    persistent = True

    def init(self, context):
        super().init(context)
        self.path = context.state_dir / f"{self.name}.json"
        if self.path.exists():
            self.counts, self.offset = json.loads(self.path.read_text())

    def commit(self, offsets):
        super().commit(offsets)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps([self.counts, self.offset]))
        written.replace(self.path)


class TallyBuilder(StoreBuilderBase):
    """Makes tallies."""

    def build(self):
        return Tally(self.name)


class FileTallyBuilder(StoreBuilderBase):
    """Makes tallies that survive restarts."""

    persistent = True

    def build(self):
        return FileTally(self.name)


class Count(Processor):
    """Counts."""

    def process(self, record):
        self.context.get_state_store("tally").add(record.key)


def task_with(builder, directory):
    """Return a task whose processor uses the store."""
    topology = Topology().add_source("src", "in").add_processor("p", Count, "src").add_state_store(builder, "p")
    return Harness(topology, directory)


def process(harness, *keys):
    """Process records with these keys."""
    harness.add("in", *[(key, "x", 5) for key in keys])
    while harness.task.process(0, 10):
        pass


def changelog(harness, first=0):
    """Return what was logged, as restoration reads it."""
    sent = [record for record in harness.collector.take() if record.topic == CHANGELOG.topic]
    return [ChangelogRecord(r.key, r.value, r.timestamp, first + number) for number, r in enumerate(sent)]


def commit(harness):
    """Commit as a stream thread does."""
    harness.task.prepare_commit()
    harness.task.post_commit(harness.collector.changelog_offsets())


@pytest.mark.parametrize(("builder", "kept"), [(TallyBuilder, {}), (FileTallyBuilder, {"a": 2})])
def test_it_is_back_where_it_was_after_a_crash(tmp_path, builder, kept):
    """The disk has what was committed, with its offset; the changelog has the rest."""
    first = task_with(builder("tally"), tmp_path)
    first.run()
    process(first, "a", "a")
    commit(first)
    process(first, "a", "b")
    log = changelog(first)
    assert [(record.key, record.value, record.timestamp) for record in log] == [
        (b"a", b"1", 5),
        (b"a", b"2", 5),
        (b"a", b"3", 5),
        (b"b", b"1", 5),
    ]
    store = first.task.stores["tally"]
    first.task.close_dirty()
    assert not store.is_open()

    second = task_with(builder("tally"), tmp_path)
    second.task.open_stores()
    store = second.task.stores["tally"]
    assert store.counts == kept
    offset = store.committed_offset(CHANGELOG)
    assert offset == (1 if kept else None)
    second.task.restore(CHANGELOG, log[0 if offset is None else offset + 1 :])
    assert store.counts == {"a": 3, "b": 1}
    second.task.initialize({})
    process(second, "b")
    assert [record.value for record in changelog(second)] == [b"2"]
    commit(second)
    second.task.suspend()
    second.task.close_clean()
    assert not store.is_open()


def test_without_logging_it_has_no_changelog(tmp_path):
    """The builder's base class has the option; the store learns about it from its context."""
    harness = task_with(TallyBuilder("tally").with_logging_disabled(), tmp_path)
    harness.run()
    process(harness, "a")
    assert changelog(harness) == []
    assert harness.task.changelogs == {}
    assert harness.task.stores["tally"].counts == {"a": 1}
    harness.task.close_dirty()


def test_the_plan_knows_it():
    """Its changelog is created like any other, with the settings given to the builder."""
    builder = FileTallyBuilder("tally").with_logging_enabled({"min.insync.replicas": "2"})
    topology = Topology().add_source("src", "in").add_processor("p", Count, "src").add_state_store(builder, "p")
    (subtopology,) = topology.build(StreamsConfig.of({"application.id": "app"})).plan().subtopologies
    (store,) = subtopology.stores
    assert (store.name, store.kind, store.persistent, store.changelog_topic) == (
        "tally",
        "key-value",
        True,
        CHANGELOG.topic,
    )
    (topic,) = subtopology.changelog_topics
    assert (topic.name, topic.config["min.insync.replicas"]) == (CHANGELOG.topic, "2")


def test_it_is_all_that_the_interfaces_ask_for():
    """To the type checker, the classes of these tests are complete stores and builders."""
    store: StateStore = Tally("tally")
    builder: StoreBuilder = TallyBuilder("tally")
    assert isinstance(store, StateStore)
    assert isinstance(builder.build(), StateStore)
