"""State survives crashes: together, the disk, changelog and input put a task back where it was."""

from __future__ import annotations

import shutil

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.support import DEFAULTS

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.processor.api import Processor
from millrace.records import ConsumedRecord, OffsetAndMetadata, TaskId, TopicPartition
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.state.api import ChangelogRecord
from millrace.testing.output_collector import CapturingCollector
from millrace.topology import Topology

IN = TopicPartition("in", 0)
CHANGELOG = TopicPartition("app-last-changelog", 0)


class Last(Processor):
    """Keeps the last value of each key; `None` deletes the key."""

    def process(self, record):
        """Put."""
        self.context.get_state_store("last").put(record.key, record.value)


class Broker:
    """The topics: an input, and a changelog that outlives every task."""

    def __init__(self):
        self.input = []
        self.changelog = []
        self.committed = {}

    def produced(self, collector):
        """Append what a task sent to its changelog."""
        for sent in collector.take():
            self.changelog.append(ChangelogRecord(sent.key, sent.value, sent.timestamp, len(self.changelog)))


def start(broker, directory, *, persistent):
    """Open, restore from the changelog, and initialise a task; return it with its collector."""
    supplier = Stores.persistent_key_value_store("last") if persistent else Stores.in_memory_key_value_store("last")
    store = Stores.key_value_store_builder(supplier, Serdes.string(), Serdes.string())
    topology = Topology().add_source("src", "in").add_processor("p", Last, "src").add_state_store(store, "p")
    config = StreamsConfig.of(DEFAULTS)
    collector = CapturingCollector()
    task = StreamTask(
        TaskId(0, 0),
        topology.build(config).subtopologies[0],
        config,
        collector,
        state_dir=directory / "0_0",
        cache=None,
        clock=lambda: 0,
        input_partitions=frozenset({IN}),
    )
    task.open_stores()
    done = task.changelogs[CHANGELOG].committed_offset(CHANGELOG)
    task.restore(CHANGELOG, broker.changelog[0 if done is None else done + 1 :])
    task.initialize(broker.committed)
    position = broker.committed[IN].offset if IN in broker.committed else 0
    task.add_records(IN, broker.input[position:])
    return task, collector


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.one_of(st.none(), st.text("xyz", max_size=3))),
        st.tuples(st.sampled_from(["process", "commit", "crash", "crash after send", "lose disk", "restart"])),
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(OPERATIONS, st.booleans())
def test_state_equals_the_model_after_any_crashes(tmp_path, operations, persistent):
    """After crashes before and after commits, lost disks and clean restarts, the store has every key's last value."""
    directory = tmp_path / "state"
    shutil.rmtree(directory, ignore_errors=True)
    broker = Broker()
    task, collector = start(broker, directory, persistent=persistent)
    for operation in [*operations, ("process",)]:
        match operation[0]:
            case "put":
                _, key, value = operation
                offset = len(broker.input)
                data = None if value is None else value.encode()
                broker.input.append(ConsumedRecord("in", 0, offset, offset, key.encode(), data))
                task.add_records(IN, [broker.input[-1]])
            case "process":
                task.process(0, 1000)
                broker.produced(collector)
            case "commit" | "restart":
                task.process(0, 2)
                commit(broker, task, collector)
                if operation[0] == "restart":
                    task.suspend()
                    task.close_clean()
                    task, collector = start(broker, directory, persistent=persistent)
            case crash:
                task.process(0, 3)
                if crash == "crash after send":
                    task.prepare_commit()
                    broker.produced(collector)
                task.close_dirty()
                if crash == "lose disk":
                    shutil.rmtree(directory, ignore_errors=True)
                task, collector = start(broker, directory, persistent=persistent)
    expected = {}
    for record in broker.input:
        expected[record.key.decode()] = None if record.value is None else record.value.decode()
    content = dict(task.stores["last"].all())
    task.close_dirty()
    assert content == {key: value for key, value in expected.items() if value is not None}


def commit(broker, task, collector):
    """Commit in a host's order: wait for acknowledgements, commit the offsets, then the stores."""
    offsets = task.prepare_commit()
    broker.produced(collector)
    broker.committed.update({partition: OffsetAndMetadata(*item) for partition, item in offsets.items()})
    if task.commit_needed:
        task.post_commit({CHANGELOG: len(broker.changelog) - 1} if broker.changelog else {})
