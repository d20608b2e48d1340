"""Producers that are fenced while they start, under exactly-once on a real broker."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from confluent_kafka import Producer, TopicPartition
from tests.instance.support import (
    CountWords,
    counting_with,
    expected_counts,
    last_counts,
    produce,
    running,
    settings,
    word_count,
)
from tests.waiting import PATIENCE_S, wait_until

from millrace.errors import TaskMigratedError, TransactionAbortedError
from millrace.instance import State
from millrace.kafka.client_supplier import KafkaClientSupplier
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.records import Record

pytestmark = pytest.mark.broker


class FencedAtStart(Producer):
    """A producer that starts at the same time as another one with its transactional id, and is fenced by it."""

    def __init__(self, given):
        super().__init__(given)
        names = ("bootstrap.servers", "transactional.id")
        self._newer = Producer({name: given[name] for name in names})

    def init_transactions(self, timeout):
        """Start, be fenced, and raise what the broker answers."""
        super().init_transactions(timeout)
        self._newer.init_transactions(timeout)
        super().begin_transaction()
        super().send_offsets_to_transaction(
            [TopicPartition("in", 0, 0)], encode_group_metadata("other", -1, ""), timeout
        )


class Supplier(KafkaClientSupplier):
    """Opens producers of which some are fenced when they start."""

    def __init__(self, *fenced):
        self.fenced = fenced
        self.opened = []

    def producer(self, settings):
        """Open one."""
        number = len(self.opened) + 1
        self.opened.append(FencedAtStart(settings) if number in self.fenced else super().producer(settings))
        return self.opened[-1]


def fence(streams):
    """Start another producer with the transactional id of an instance's first thread."""
    newer = Producer(
        {
            "bootstrap.servers": ",".join(streams.config.bootstrap_servers),
            "transactional.id": streams.threads[0].resources.context.settings.producer(1)["transactional.id"],
        }
    )
    newer.init_transactions(PATIENCE_S)


@pytest.fixture
def counting(kafka, topic_factory, app, tmp_path):
    """Return a function that runs a word count with a supplier, and feeds it until it has counted a number of lines."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2")
    lines, feeding = [], itertools.count()

    def feed(streams, more):
        lines.extend(f"word{next(feeding) % 7}" for _ in range(more))
        produce(kafka, source, lines[-more:])
        wait_until(lambda: streams.error or last_counts(kafka, sink) == expected_counts(lines), "all counted")
        if streams.error is not None:
            raise streams.error

    def run(supplier, topology=word_count):
        return running(topology(source, sink), config | {"default.client.supplier": supplier})

    return run, feed


def test_thread_whose_producer_is_fenced_when_it_starts_goes_on(counting):
    """Nothing was processed yet, so a thread does not end for that: its first transaction gets another producer."""
    run, feed = counting
    supplier = Supplier(1)
    with run(supplier) as streams:
        feed(streams, 20)
        assert len(supplier.opened) > 1
        assert streams.state is State.RUNNING


@pytest.mark.parametrize("fenced", [(2,), (2, 3, 4)], ids=["once", "several times"])
def test_thread_that_is_fenced_again_when_it_replaces_its_producer_rejoins(counting, fenced):
    """A fenced producer is replaced; if the new one is fenced when it starts, the thread drops its tasks, rejoins and goes on."""
    run, feed = counting
    supplier = Supplier(*fenced)
    with run(supplier) as streams:
        feed(streams, 20)
        thread = streams._pool.threads[0]
        fence(streams)
        feed(streams, 20)
        assert len(supplier.opened) > max(fenced)
        assert streams._pool.threads == [thread]
        assert streams.state is State.RUNNING


def test_thread_that_is_fenced_after_an_abort_rejoins(counting, monkeypatch):
    """If a transaction fails and the producer that is to continue is fenced when it starts, the thread drops its tasks too."""
    run, feed = counting
    supplier = Supplier(2)
    with run(supplier) as streams:
        feed(streams, 20)
        thread = streams._pool.threads[0]
        producer, member = thread.resources.producer, thread.resources.member
        generation = member.generation
        commit = producer.commit

        def fail(offsets, metadata):
            monkeypatch.setattr(producer, "commit", commit)
            producer.must_be_replaced = True
            raise TransactionAbortedError("The transaction has failed")

        monkeypatch.setattr(producer, "commit", fail)
        feed(streams, 20)
        assert len(supplier.opened) > 2
        assert member.generation > generation
        assert streams._pool.threads == [thread]
        assert streams.state is State.RUNNING


class SendsAtClose(CountWords):
    """Counts words; sends something, and changes its store, when it is closed."""

    def close(self):
        """Do so."""
        self.store.put("closed", 1)
        self.context.forward(Record("closed", 1, 0))


def refuse_once(streams, monkeypatch, *, aborted):
    """Have the broker refuse the next commit of a thread, which cannot send anything more in that transaction.

    Args:
        streams: the instance.
        monkeypatch: replaces its commit once.
        aborted: whether the thread is told that the transaction must be aborted, and not that its tasks have moved.
    """
    producer = streams.threads[0].resources.producer
    commit = producer.commit

    def of_a_ghost(offsets, _metadata):
        monkeypatch.setattr(producer, "commit", commit)
        try:
            commit(offsets, encode_group_metadata(streams.config.application_id, 1, "ghost"))
        except TaskMigratedError as error:
            if aborted:
                raise TransactionAbortedError("The transaction has failed") from error
            raise

    monkeypatch.setattr(producer, "commit", of_a_ghost)


@pytest.mark.parametrize("how", ["fenced", "refused", "aborted"])
def test_processor_that_sends_while_its_task_is_dropped_does_not_end_the_thread(counting, monkeypatch, how):
    """The producer cannot send anything more then, and need not: all of it is void, and the thread rejoins or starts again."""
    run, feed = counting
    with run(Supplier(), partial(counting_with, SendsAtClose)) as streams:
        feed(streams, 20)
        thread = streams.threads[0]
        if how == "fenced":
            fence(streams)
        else:
            refuse_once(streams, monkeypatch, aborted=how == "aborted")
        feed(streams, 20)
        assert streams.threads == (thread,)
