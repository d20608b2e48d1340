"""Names of headers that are not text, on a real broker: those that are read, and those that programs want to write."""

from __future__ import annotations

import shutil

import pytest
from tests.instance.support import (
    TEXT,
    expected_counts,
    last_counts,
    produce,
    read_all,
    read_messages,
    running,
    settings,
    word_count,
)
from tests.instance.test_errors import committed_offset, copy
from tests.instance.test_global_stores import lookup
from tests.malformed_headers import write_records
from tests.waiting import PATIENCE_S, wait_until

from millrace.errors import FailedProcessingError
from millrace.instance import KafkaStreams
from millrace.processor.api import Processor
from millrace.records import Record
from millrace.topology import Topology

pytestmark = pytest.mark.broker
BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
MALFORMED = [(b"a", b"1"), (b"caf\xe9", b"2")]
READ = [("a", b"1"), ("caf\ufffd", b"2")]


def with_headers(kafka, topic):
    """Return (value, headers) of the committed records in a topic."""
    return [(message.value(), message.headers()) for message in read_messages(kafka, topic)]


@BOTH
def test_record_with_such_a_name_is_processed(kafka, topic_factory, app, tmp_path, guarantee):
    """It goes on with U+FFFD in the name, as in Java, is committed, and is not read again after a restart."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee)
    write_records(kafka, source, [(None, b"first", []), (None, b"second", MALFORMED), (None, b"third", [])])
    expected = [(b"first", None), (b"second", READ), (b"third", None)]
    with running(copy(source, sink), config):
        wait_until(lambda: with_headers(kafka, sink) == expected, lambda: f"copied: {with_headers(kafka, sink)}")
    assert committed_offset(kafka, app, source) == 3
    with running(copy(source, sink), config):
        write_records(kafka, source, [(None, b"fourth", MALFORMED)])
        expected.append((b"fourth", READ))
        wait_until(lambda: with_headers(kafka, sink) == expected, lambda: f"copied: {with_headers(kafka, sink)}")
    assert committed_offset(kafka, app, source) == 4


@BOTH
def test_changelog_record_with_such_a_name_is_restored(kafka, topic_factory, app, tmp_path, guarantee):
    """Restoration neither fails nor leaves it out."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee)
    with running(word_count(source, sink), config):
        produce(kafka, source, ["one", "two"])
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(["one", "two"]), "counted")
    write_records(kafka, f"{app}-counts-changelog", [(b"one", (7).to_bytes(8, "big"), MALFORMED)])
    shutil.rmtree(tmp_path / app)
    with running(word_count(source, sink), config):
        produce(kafka, source, ["one", "two"])
        wait_until(lambda: last_counts(kafka, sink) == {"one": 8, "two": 2}, lambda: str(last_counts(kafka, sink)))


def test_global_store_has_records_with_such_names(kafka, topic_factory, app, tmp_path):
    """It is filled with them and kept up to date."""
    names, source, sink = topic_factory("names"), topic_factory("in"), topic_factory("out")
    write_records(kafka, names, [(b"a", b"Ann", MALFORMED), (b"b", b"Bob", [])])
    produce(kafka, source, ["a", "b"])

    def found():
        return {key.decode(): value.decode() for key, value, _ in read_all(kafka, sink)}

    with running(lookup(names, source, sink), settings(kafka, app, tmp_path)):
        wait_until(lambda: found() == {"a": "Ann", "b": "Bob"}, lambda: str(found()))
        write_records(kafka, names, [(b"a", b"Anne", MALFORMED)])

        def updated():
            produce(kafka, source, ["a"])
            return found()["a"] == "Anne"

        wait_until(updated, lambda: str(found()))


class Naming(Processor):
    """Names a header after the value."""

    def process(self, record):
        """Forward the record with plain pairs, which are nobody's but the processor's until then."""
        self.context.forward(Record(record.key, record.value, record.timestamp, [(record.value + "\udce9", b"1")]))


def naming(source, sink):
    """Return a topology that names headers."""
    return (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("name", Naming, "in")
        .add_sink("out", sink, "name", key_serde=TEXT, value_serde=TEXT)
    )


@BOTH
def test_record_with_a_name_that_cannot_be_written_fails_like_any_other(kafka, topic_factory, app, tmp_path, guarantee):
    """The process goes on; the handler is asked, and the record is skipped, with a dead letter, or ends the instance."""
    source, sink, letters = topic_factory("in"), topic_factory("out"), topic_factory("letters")
    produce(kafka, source, ["caf", "other"])
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee)
    streams = KafkaStreams(naming(source, sink), config)
    streams.start()
    with pytest.raises(FailedProcessingError, match=r"node name failed on the record at offset 0.*name of a header"):
        streams.wait(PATIENCE_S)
    streams.close()
    skipping = {
        "processing.exception.handler": "LogAndContinueProcessingExceptionHandler",
        "errors.dead.letter.queue.topic.name": letters,
    }
    with running(naming(source, sink), {**config, **skipping}) as streams:
        wait_until(lambda: len(with_headers(kafka, letters)) == 2, "two dead letters")
        assert [value for value, _ in with_headers(kafka, letters)] == [b"caf", b"other"]
        assert dict(with_headers(kafka, letters)[1][1])["__streams.errors.offset"] == b"1"
        assert read_all(kafka, sink) == []
    assert committed_offset(kafka, app, source) == 2
