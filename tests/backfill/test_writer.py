"""Writing in a transaction that a refused record has failed: the user is told of the record, as no second attempt mends it.

The client knows that the transaction has failed before the record is reported, so each test waits until it knows, and
takes no report.
"""

import secrets

import pytest
from tests.instance.support import has_failed
from tests.waiting import wait_until

from millrace.backfill.kafka_history import backfill_clients
from millrace.backfill.writer import Writer
from millrace.config import StreamsConfig
from millrace.errors import ProductionError
from millrace.records import NO_HEADERS, OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.broker


@pytest.fixture
def writer(kafka):
    """A writer on the shared broker."""
    app = f"app-{secrets.token_hex(4)}"
    config = StreamsConfig.of({"application.id": app, "bootstrap.servers": kafka.bootstrap_servers})
    writer = Writer(backfill_clients(config), f"{app}-backfill")
    yield writer
    writer.close()


def send(writer, target, value):
    """Send a record with a key."""
    writer.send(target, [(b"key", value, 1, NO_HEADERS)])


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(lambda writer, at: writer.add_offsets("group", {at: OffsetAndMetadata(1)}), id="offsets"),
        pytest.param(lambda writer, at: writer.commit("group", {at: OffsetAndMetadata(1)}), id="commit"),
        pytest.param(lambda writer, at: send(writer, at, b"small"), id="another record"),
        pytest.param(lambda writer, _: writer.flush(), id="flush"),
    ],
)
def test_a_refused_record_is_named_by_whatever_is_done_next(writer, topic_factory, then):
    """A transaction of a backfill fails because of the record, not of what could no longer be done."""
    target = TopicPartition(topic_factory("out", config={"max.message.bytes": "500"}), 0)
    with writer.transaction():
        send(writer, target, b"x" * 5_000)
        wait_until(lambda: has_failed(writer._producer.client), "the broker's refusal")
        with pytest.raises(ProductionError, match=rf"{target}.*max\.message\.bytes"):
            then(writer, target)
