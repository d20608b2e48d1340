"""Writes the inputs, at a steady rate and directly to the brokers, and records them for the model."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from tests.soak.model import Event, Inputs
from tests.topologies.soak import PARTITIONS, topic

KEYS = 30
ORDERS = 20
_TICK_S = 0.05
_UNREADABLE, _POISON = 0.02, 0.03
_LATER_MS = 600_000
"""How far the closing markers are ahead of the last event."""


class Feeder:
    """The only producer of an application's inputs.

    Args:
        servers: the brokers.
        application: the application whose inputs to write.
        rate: events per second; about as many other records go to the other inputs.
        seed: determines keys and kinds.
    """

    def __init__(self, servers: str, application: str, rate: int, seed: str) -> None:
        self.inputs = Inputs()
        self.errors: list[str] = []
        self._application = application
        self._rate = rate
        self._chance = random.Random(seed)
        self._number = 0
        self._timestamp_ms = int(time.time() * 1000)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,  # so the order, and with it the order of timestamps, survives a broker's restart
                "max.in.flight.requests.per.connection": 1,  # with more, librdkafka may lose its first batch
                "linger.ms": 5,
                "partitioner": "murmur2_random",
                "log_level": 0,
                "reconnect.backoff.max.ms": 500,
                "on_delivery": self._on_delivery,
            }
        )

    def load_tables(self) -> None:
        """Write version 0 of every key in the tables."""
        for number in range(KEYS):
            key = f"k{number}"
            self.inputs.versions[key] = [0, 0]
            for table in ("first", "second"):
                self._send(table, key, 0)
        for number in range(ORDERS):
            self._feed_order(f"o{number}")
        self._flush()

    def start(self) -> None:
        """Write everything else in a thread until `finish`."""
        self._thread.start()

    def finish(self) -> None:
        """Stop, write the markers that close all windows, and wait until everything is acknowledged."""
        self.stop()
        self._timestamp_ms += _LATER_MS
        for partition in range(PARTITIONS):
            event = self._next_event(f"marker{partition}")
            self.inputs.markers.add(event.number)
            self._send("events", event.key, {"id": event.number}, partition)
        self._flush()

    def stop(self) -> None:
        """Stop writing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        began, ticks = time.monotonic(), 0
        while not self._stop.wait(_TICK_S):
            due = int((time.monotonic() - began) * self._rate)
            self._timestamp_ms = max(self._timestamp_ms, int(time.time() * 1000))
            for _ in range(min(due - ticks, self._rate)):  # what was missed while the machine paused is not caught up
                self._feed_one()
            ticks = due
            self._producer.poll(0)

    def _feed_one(self) -> None:
        chance = self._chance
        kind = chance.random()
        event = self._next_event(f"k{chance.randrange(KEYS)}", dead=kind < _POISON)
        if kind < _UNREADABLE:
            self._send("events", event.key, b"\xff" + json.dumps({"id": event.number}).encode())
        else:
            self._send("events", event.key, {"id": event.number} | ({"poison": True} if event.dead else {}))
        if event.number % 10 == 0:
            table = chance.randrange(2)
            key = f"k{chance.randrange(KEYS)}"
            versions = self.inputs.versions[key]
            versions[table] += 1
            self._send(("first", "second")[table], key, versions[table])
        if event.number % 10 == 5:
            self._feed_order(f"o{chance.randrange(ORDERS)}")
        if event.number % 2 == 0:
            self._feed_pairs(event.number)

    def _feed_order(self, key: str) -> None:
        customers = self.inputs.orders.setdefault(key, [])
        customers.append(f"k{self._chance.randrange(KEYS)}")
        self._send("orders", key, {"version": len(customers) - 1, "customer": customers[-1]})

    def _feed_pairs(self, number: int) -> None:
        # One left record with one or two right ones, in either order.
        rights = [number + part for part in range(self._chance.choice((1, 1, 1, 2)))]
        records = [("left", number), *(("right", right) for right in rights)]
        self._chance.shuffle(records)
        for name, value in records:
            self._send(name, f"p{number}", value)
        self.inputs.pairs.update((number, right) for right in rights)

    def _next_event(self, key: str, *, dead: bool = False) -> Event:
        event = Event(self._number, key, self._timestamp_ms, dead)
        self._number += 1
        self.inputs.events.append(event)
        return event

    def _send(self, name: str, key: str, value: Any, partition: int = -1) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        where = topic(self._application, name)
        self._producer.produce(where, data, key.encode(), partition, timestamp=self._timestamp_ms)
        self.inputs.records += 1

    def _flush(self) -> None:
        if self._producer.flush(120):
            self.errors.append("The inputs were not acknowledged in 120 s")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(f"A record for {message.topic()} was not written: {error.str()}")
