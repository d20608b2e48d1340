"""librdkafka's log while brokers are away: repetitions are dropped, other messages are not."""

from __future__ import annotations

import logging

from confluent_kafka import Producer
from tests.waiting import wait_until

from millrace.kafka.clients import RepeatFilter, librdkafka_log


def test_repeated_messages_are_logged_once(caplog) -> None:
    """A client that keeps trying to reach a closed port logs it once; a second client's message is logged too."""
    clients = [
        Producer(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "client.id": name,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 50,
            },
            logger=librdkafka_log,
        )
        for name in ("one", "two")
    ]

    def refused(name: str) -> list[str]:
        return [line for line in caplog.messages if f"[{name}#" in line and "Connection refused" in line]

    with caplog.at_level(logging.DEBUG, "millrace.kafka.librdkafka"):
        wait_until(
            lambda: refused("one") and refused("two"),
            lambda: str(caplog.messages),
            meanwhile=lambda: [client.poll(0.05) for client in clients],
        )
        for _ in range(15):
            for client in clients:
                client.poll(0.05)
    assert [len(refused(name)) for name in ("one", "two")] == [1, 1], caplog.messages


def test_dropped_repetitions_are_counted() -> None:
    """After the interval the message is logged again with the number of repetitions; other messages are logged at once."""
    now = 0.0
    spare = RepeatFilter(interval_s=10.0, clock=lambda: now)
    assert passes(spare, "down (after 1ms in state CONNECT)")
    for duration in range(3):
        assert not passes(spare, f"down (after {duration}ms in state CONNECT)")
    assert passes(spare, "something else")
    now = 10.0
    record = logging.makeLogRecord({"msg": "down (after 7ms in state CONNECT)"})
    assert spare.filter(record)
    assert record.getMessage() == "down (after 7ms in state CONNECT) [and 3 times before]"


def passes(spare: RepeatFilter, message: str) -> bool:
    """Return whether a message would be logged."""
    return spare.filter(logging.makeLogRecord({"msg": message}))
