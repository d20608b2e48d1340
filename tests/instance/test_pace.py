"""How many records a stream thread processes before it commits."""

from __future__ import annotations

import threading

import pytest
from tests.committed_offsets import committed_offset
from tests.instance.support import GUARANTEES, TEXT, produce, read_all, running, settings
from tests.soak.network import Network, Rule
from tests.waiting import PATIENCE_S, wait_until

from millrace.errors import SlowRecordError
from millrace.instance.kafka_streams import KafkaStreams
from millrace.instance.pace import Pace
from millrace.processor.api import Processor
from millrace.topology import Topology


def processed(pace):
    """Process as much as the pace allows, in a hundred turns at most; return how many records."""
    total = 0
    for _ in range(100):
        turn = pace.next_turn
        pace.processed(turn)
        total += turn
    return total


def test_only_a_failed_commit_limits_what_is_processed_before_the_next():
    """Turns are limited by their time: how many records took it does not matter to the next one, of another task maybe."""
    pace = Pace()
    first = pace.next_turn
    pace.processed(1)
    assert pace.next_turn == first
    assert processed(pace) == 100 * first


def test_after_an_abort_half_as_much_is_processed_before_the_next_commit():
    """The same amount would fail again; a limit ends at one record."""
    pace = Pace()
    pace.processed(10)
    pace.aborted()
    assert processed(pace) == 5
    pace.aborted()
    assert processed(pace) == 2
    for _ in range(3):
        pace.aborted()
        assert processed(pace) == 1


def test_an_abort_of_nothing_changes_nothing():
    """A transaction may fail before anything is processed."""
    pace = Pace()
    pace.processed(10)
    pace.aborted()
    pace.aborted()
    assert processed(pace) == 5


def test_quick_commits_lift_the_limit():
    """Each quick commit allows twice as much; a slow one allows as much again."""
    pace = Pace()
    pace.processed(10)
    pace.aborted()
    assert processed(pace) == 5
    pace.committed(5.0)
    assert processed(pace) == 5
    pace.committed(0.1)
    assert processed(pace) == 10
    pace.committed(0.1)
    assert processed(pace) == 20


@pytest.mark.broker
@pytest.mark.slow
def test_output_that_takes_too_long_is_sent_in_smaller_transactions(own_kafka, tmp_path):
    """Brokers so slow that the whole input's output cannot be delivered in time get it in parts, exactly once."""
    count = 300
    with Network(1) as network:
        kafka = own_kafka(advertised_ports=network.ports)
        network.upstream = kafka.proxied_ports
        kafka.create_topics("in", "out")
        produce(kafka, "in", [f"{number:01000d}" for number in range(count)])
        network.begin(Rule(client="*-producer", bytes_per_s=30_000))
        topology = (
            Topology()
            .add_source("from", "in", key_serde=TEXT, value_serde=TEXT)
            .add_sink("to", "out", "from", key_serde=TEXT, value_serde=TEXT)
        )
        config = settings(
            network.bootstrap_servers,
            "slow",
            tmp_path,
            processing_guarantee="exactly_once_v2",
            producer_delivery_timeout_ms=3000,
        ) | {"producer.transaction.timeout.ms": 6000}
        with running(topology, config):
            wait_until(lambda: len(read_all(kafka, "out")) == count, "all of the output")


SLOW_S = 2.0
TIMES = {
    "at_least_once": {"max_poll_interval_ms": 1_000},
    "exactly_once_v2": {"producer_transaction_timeout_ms": 1_000},
}


class Slow(Processor):
    """Forwards each record twice: before and after a time that its value names."""

    def process(self, record):
        """Forward, wait, forward."""
        self.context.forward(record)
        threading.Event().wait(float(record.value))
        self.context.forward(record)


def slow_copy(source, sink):
    """Return a topology of `Slow`."""
    return (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("slow", Slow, "in")
        .add_sink("out", sink, "slow", key_serde=TEXT, value_serde=TEXT)
    )


@GUARANTEES
@pytest.mark.parametrize("protocol", ["classic", "streams"])
@pytest.mark.broker
def test_a_turn_ends_with_a_slow_record(kafka, topic_factory, app, tmp_path, guarantee, protocol):
    """Records that take half of the transaction's time each are committed one by one, and the instance closes in between."""
    source, sink = topic_factory("in"), topic_factory("out")
    produce(kafka, source, ["0.5"] * 100)
    config = settings(
        kafka,
        app,
        tmp_path,
        processing_guarantee=guarantee,
        group_protocol=protocol,
        producer_transaction_timeout_ms=2_000,
    )
    with running(slow_copy(source, sink), config) as streams:
        wait_until(lambda: (committed_offset(kafka, app, source) or 0) >= 2, "two records are committed")
        assert streams.threads[0].totals.commits >= 2
    assert 2 <= committed_offset(kafka, app, source) < 64, "not the whole of a first turn by number"


@GUARANTEES
@pytest.mark.broker
def test_a_record_that_is_too_slow_is_an_error_the_second_time(kafka, topic_factory, app, tmp_path, guarantee):
    """It is named with its position, its time, the user's function and the setting; records before it are committed."""
    source, sink = topic_factory("in"), topic_factory("out")
    produce(kafka, source, ["0", "0", str(SLOW_S), "0"])
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee, **TIMES[guarantee])
    streams = KafkaStreams(slow_copy(source, sink), config)
    streams.start()
    try:
        wait_until(lambda: streams.error is not None, "the error")
    finally:
        assert streams.close(PATIENCE_S)
    assert isinstance(streams.error, SlowRecordError)
    message = str(streams.error)
    assert f"offset 2 of {source}-0" in message
    assert "source in" in message
    assert "Slow.process (test_pace.py:" in message
    setting = "max.poll.interval.ms" if guarantee == "at_least_once" else "producer.transaction.timeout.ms"
    assert f"{setting} (1 s)" in message
    assert committed_offset(kafka, app, source) == 2
