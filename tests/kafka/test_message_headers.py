"""Headers as a real broker returns them, with any bytes in their names."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from tests.malformed_headers import write_records
from tests.reading import read_to_end

from millrace.kafka.clients import open_consumer
from millrace.kafka.message_headers import mend_headers

pytestmark = pytest.mark.broker


def messages_of(kafka, topic, *all_headers):
    """Write records with these headers and return the messages that are read."""
    write_records(kafka, topic, [(b"k", b"v", headers) for headers in all_headers])
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "reader",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    consumer = open_consumer(settings)
    try:
        return list(read_to_end(consumer, kafka.admin(), [TopicPartition(topic, 0, 0)], 60))
    finally:
        consumer.close()


def test_bytes_that_are_not_utf8_in_a_name_are_replaced(kafka, topic_factory):
    """Each becomes U+FFFD, as in Java; the values, the other headers and the other records are as they were written."""
    messages = messages_of(
        kafka,
        topic_factory(),
        [(b"a", b"1"), ("é".encode(), b"")],
        [(b"a", b"1"), (b"caf\xe9", b"2"), (b"b", b"")],
        [],
        [(b"\xff\xfe", b"")],
        [(b"a", b"3")],
        [(b"\xff", b"4")],
    )
    expected = [
        [("a", b"1"), ("é", b"")],
        [("a", b"1"), ("caf\ufffd", b"2"), ("b", b"")],
        None,
        [("\ufffd\ufffd", b"")],
        [("a", b"3")],
        [("\ufffd", b"4")],
    ]
    for _ in range(2):
        assert mend_headers(messages)
        assert [message.headers() for message in messages] == expected


def test_of_several_such_names_in_a_record_the_first_is_known(kafka, topic_factory):
    """The others are U+FFFD alone; no value is lost."""
    [message] = messages_of(
        kafka, topic_factory(), [(b"a", b"1"), (b"x\xff", b"2"), (b"y\xff", b""), (b"b", b"3"), (b"z\xff", b"4")]
    )
    assert mend_headers([message])
    assert message.headers() == [("a", b"1"), ("x\ufffd", b"2"), ("\ufffd", b""), ("b", b"3"), ("\ufffd", b"4")]


def test_thousands_of_such_records_are_read(kafka, topic_factory):
    """No exception is left behind, however often it happens."""
    messages = messages_of(kafka, topic_factory(), *[[(b"\xff%d" % number, b"v")] for number in range(2_000)])
    for number, message in enumerate(messages):
        assert mend_headers([message])
        assert message.headers() == [(f"\ufffd{number}", b"v")]
    assert number == 1_999


def test_records_without_headers(kafka, topic_factory):
    """There is nothing to mend."""
    messages = messages_of(kafka, topic_factory(), [], [])
    assert len(messages) == 2
    assert not mend_headers(messages)
    assert not mend_headers([])


def test_another_failure_is_not_hidden():
    """Only a name that cannot be decoded is put right."""

    class Failing:
        def headers(self):
            raise SystemError("something else")

    with pytest.raises(SystemError, match="something else"):
        mend_headers([Failing()])
