"""Global stores follow their topics, and know their offsets after a restart."""

from __future__ import annotations

import pytest
from tests.engine.support import DEFAULTS, Echo

from millrace.config import StreamsConfig
from millrace.engine.global_task import GlobalStateTask
from millrace.errors import FailedProcessingError, TopologyError
from millrace.processor.api import Processor, PunctuationType
from millrace.records import ConsumedRecord, TopicPartition
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.topology import Topology

G0, G1 = TopicPartition("g", 0), TopicPartition("g", 1)


class Fill(Processor):
    """Puts every value into the store."""

    def process(self, record):
        """Put."""
        if record.value == "bad":
            raise ValueError("no good")
        self.context.get_state_store("gs").put(record.key, record.value)


def open_task(directory, processor=Fill, **settings):
    """Return an initialised global task over topic g with store gs."""
    store = Stores.key_value_store_builder(
        Stores.persistent_key_value_store("gs"), Serdes.string(), Serdes.string()
    ).with_logging_disabled()
    topology = Topology().add_global_store(store, "gsrc", "g", "gproc", processor)
    topology.add_source("src", "in").add_processor("p", Echo, "src")
    config = StreamsConfig.of({**DEFAULTS, **settings})
    built = topology.build(config)
    task = GlobalStateTask(built.global_subtopology, config, state_dir=directory / "global", clock=lambda: 0)
    task.open_stores()
    task.initialize()
    return task, task.stores


def record(partition, offset, key, value):
    """Return a raw record of topic g."""
    return ConsumedRecord("g", partition, offset, offset, key.encode(), value.encode())


def test_store_follows_all_partitions(tmp_path):
    """Records of every partition reach the store; later ones overwrite earlier ones."""
    task, stores = open_task(tmp_path)
    task.update(G0, [record(0, 0, "a", "1"), record(0, 1, "b", "2")])
    task.update(G1, [record(1, 0, "a", "3")])
    assert (stores["gs"].get("a"), stores["gs"].get("b")) == ("3", "2")
    assert task.counters.records_processed == 3
    task.close()


def test_committed_offset_survives_a_restart(tmp_path):
    """After a commit and reopening, the store has its contents and its offset."""
    task, _ = open_task(tmp_path)
    assert task.committed_offset(G0) is None
    task.update(G0, [record(0, 0, "a", "1"), record(0, 1, "b", "2")])
    task.commit()
    task.update(G0, [record(0, 2, "a", "lost")])
    task.close()
    again, stores = open_task(tmp_path)
    assert again.committed_offset(G0) == 1
    assert again.committed_offset(G1) is None
    assert stores["gs"].get("a") == "1"
    again.close()


def open_two(directory, other="other", *, in_memory=False):
    """Return an initialised global task that fills the stores gs and `other` from topics g and h."""

    class FillOther(Processor):
        def process(self, record):
            self.context.get_state_store(other).put(record.key, record.value)

    def builder(supplier):
        return Stores.key_value_store_builder(supplier, Serdes.string(), Serdes.string()).with_logging_disabled()

    supplier = Stores.in_memory_key_value_store if in_memory else Stores.persistent_key_value_store
    topology = Topology().add_global_store(builder(Stores.persistent_key_value_store("gs")), "gsrc", "g", "gproc", Fill)
    topology.add_global_store(builder(supplier(other)), "hsrc", "h", "hproc", FillOther)
    topology.add_source("src", "in").add_processor("p", Echo, "src")
    config = StreamsConfig.of(DEFAULTS)
    built = topology.build(config)
    task = GlobalStateTask(built.global_subtopology, config, state_dir=directory / "global", clock=lambda: 0)
    task.open_stores()
    task.initialize()
    return task


H0 = TopicPartition("h", 0)


def test_each_store_has_the_offsets_of_its_own_topic(tmp_path):
    """A new or in-memory store is read from the beginning; the others continue from their offsets."""
    task = open_two(tmp_path)
    task.update(G0, [record(0, 0, "a", "1"), record(0, 1, "b", "2")])
    task.update(H0, [ConsumedRecord("h", 0, 0, 0, b"a", b"1")])
    task.commit()
    task.close()
    for options in ({"other": "renamed"}, {"in_memory": True}):
        again = open_two(tmp_path, **options)
        assert (again.committed_offset(G0), again.committed_offset(H0)) == (1, None)
        again.close()
    same = open_two(tmp_path)
    assert (same.committed_offset(G0), same.committed_offset(H0)) == (1, 0)
    same.close()


def test_wiped_store_is_empty_and_leaves_the_others_alone(tmp_path):
    """Wiping the store of one topic deletes its rows and offsets, and does not affect other stores."""
    task = open_two(tmp_path)
    task.update(G0, [record(0, 0, "a", "1")])
    task.update(H0, [ConsumedRecord("h", 0, 0, 0, b"a", b"1")])
    task.commit()
    task.close()
    again = open_two(tmp_path)
    again.wipe("h")
    assert (again.committed_offset(G0), again.committed_offset(H0)) == (0, None)
    assert (again.stores["gs"].get("a"), again.stores["other"].get("a")) == ("1", None)
    again.close()


CONTINUE = {"processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}
ENABLED = {"processing.exception.handler.global.enabled": True}


def test_processing_handler_is_not_asked_about_global_processors(tmp_path):
    """By default a failing global processor ends the task without asking the handler (KIP-1270)."""
    task, _ = open_task(tmp_path, **CONTINUE)
    with pytest.raises(FailedProcessingError, match=r"gproc.*Set processing.exception.handler.global.enabled=true and"):
        task.update(G0, [record(0, 0, "a", "bad")])
    assert task.counters.dropped_records == 0
    task.close()


def test_processing_handler_may_judge_global_processors(tmp_path):
    """With processing.exception.handler.global.enabled the handler decides: FAIL ends the task, RESUME skips the record."""
    task, _ = open_task(tmp_path / "a", **ENABLED)
    with pytest.raises(FailedProcessingError, match=r"gproc.*Set processing.exception.handler to"):
        task.update(G0, [record(0, 0, "a", "bad")])
    task.close()
    task, stores = open_task(tmp_path / "b", **CONTINUE, **ENABLED)
    task.update(G0, [record(0, 0, "a", "bad"), record(0, 1, "a", "good")])
    assert stores["gs"].get("a") == "good"
    assert task.counters.dropped_records == 1
    task.close()


def test_global_processor_cannot_schedule(tmp_path):
    """Scheduling in a global processor is refused, because the punctuator would never be called."""

    class Scheduling(Fill):
        def init(self, context):
            context.schedule(1, PunctuationType.STREAM_TIME, print)

    with pytest.raises(TopologyError, match="gproc"):
        open_task(tmp_path, Scheduling)
