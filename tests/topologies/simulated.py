"""The applications whose simulation a campaign consists of, and what their input is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Final

from millrace import (
    BufferConfig,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    Repartitioned,
    Serdes,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from millrace.serdes.json import JsonSerde
from millrace.testing.simulation import Simulation
from millrace.testing.simulation.plan import MakeRecord
from millrace.topology import Topology

TEXT: Final = Serdes.string()
ALO: Final = {"processing.guarantee": "at_least_once", "commit.interval.ms": 300}
STANDBYS: Final = {
    "num.standby.replicas": 1,
    "acceptable.recovery.lag": 0,
    "probing.rebalance.interval.ms": 60_000,
}
STREAMS: Final = {"group.protocol": "streams"}
STREAMS_STANDBYS: Final = STREAMS | {"streams.num.standby.replicas": 1}
THREADS: Final = {"num.stream.threads": 2}
CACHES: Final = {"statestore.cache.max.bytes": 100_000}
LONG_TRANSACTIONS: Final = {"producer.transaction.timeout.ms": 60_000, "session.timeout.ms": 6_000}
_JSON: Final[JsonSerde[Any]] = JsonSerde()
_WINDOW: Final = timedelta(seconds=2)
_DAY: Final = timedelta(days=1)


def words(rng: Random) -> tuple[bytes | None, bytes | None]:
    """Make an input record."""
    return f"k{rng.randrange(4)}".encode(), f"v{rng.randrange(4)}".encode()


def orders(rng: Random) -> tuple[bytes | None, bytes | None]:
    """Make an order that names a customer, or delete one."""
    order = {"customer": f"k{rng.randrange(4)}", "version": rng.randrange(1000)}
    return f"o{rng.randrange(4)}".encode(), json.dumps(order).encode() if rng.random() < 0.9 else None


def stateless() -> Topology:
    """Copy a topic."""
    builder = StreamsBuilder()
    builder.stream("in", Consumed.with_(TEXT, TEXT)).map_values(str.upper).to("out", Produced.with_(TEXT, TEXT))
    return builder.build()


def counting() -> Topology:
    """Count the records of each value, after a repartition topic."""
    builder = StreamsBuilder()
    by_value = builder.stream("in", Consumed.with_(TEXT, TEXT)).group_by(
        lambda _, value: value, Grouped.with_(TEXT, TEXT)
    )
    counts = by_value.count(Materialized.as_("counts").with_key_serde(TEXT))
    counts.to_stream().map_values(str).to("out", Produced.with_(TEXT, TEXT))
    return builder.build()


def table_counting() -> Topology:
    """Count the keys of each value in a table that is restored from its source topic."""
    builder = StreamsBuilder()
    table = builder.table("in", Materialized.as_("latest"), consumed=Consumed.with_(TEXT, TEXT))
    counts = table.group_by(lambda key, value: (value, key), Grouped.with_(TEXT, TEXT)).count(
        Materialized.as_("counts").with_key_serde(TEXT)
    )
    counts.to_stream().map_values(str).to("out", Produced.with_(TEXT, TEXT))
    return builder.build({"application.id": "simulated", "topology.optimization": "all"})


def windows() -> Topology:
    """Count in windows, after a repartition topic and without one; of the latter only windows that are closed are sent."""
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed.with_(TEXT, TEXT))

    def counts(grouped: Any, grace: timedelta, store: str) -> Any:
        windowed = grouped.windowed_by(TimeWindows.of_size_and_grace(_WINDOW, grace))
        return windowed.count(Materialized.as_(store).with_key_serde(TEXT))

    def send(table: Any, topic: str) -> None:
        plain = table.to_stream(lambda key, _: f"{key.key}@{key.window.start}").map_values(str)
        plain.to(topic, Produced.with_(TEXT, TEXT))

    closed = counts(stream.group_by_key(Grouped.with_(TEXT, TEXT)), timedelta(0), "closed")
    send(closed.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())), "closed")
    moved = stream.select_key(lambda _, value: value).repartition(Repartitioned.with_(TEXT, TEXT).with_name("moved"))
    send(counts(moved.group_by_key(Grouped.with_(TEXT, TEXT)), _DAY, "totals"), "totals")
    return builder.build()


def joins() -> Topology:
    """Join two streams, two tables, and orders with their customers by foreign key."""
    builder = StreamsBuilder()
    read, written = Consumed.with_(TEXT, TEXT), Produced.with_(TEXT, TEXT)
    left, right = builder.stream("left", read), builder.stream("right", read)
    within = JoinWindows.of_time_difference_and_grace(timedelta(hours=1), _DAY)
    left.join(right, lambda one, other: one + other, within, StreamJoined.with_(TEXT, TEXT, TEXT)).to("pairs", written)
    kept = Materialized.as_("customers").with_key_serde(TEXT).with_value_serde(TEXT)
    customers = builder.table("customers", kept, consumed=read)
    placed = builder.table(
        "orders",
        Materialized.as_("orders").with_key_serde(TEXT).with_value_serde(_JSON),
        consumed=Consumed.with_(TEXT, _JSON),
    )
    matched = placed.join(
        customers,
        lambda order, customer: [order["version"], order["customer"], customer],
        Materialized.as_("matched").with_key_serde(TEXT).with_value_serde(_JSON),
        foreign_key=lambda order: order["customer"],
    )
    matched.to_stream().to("matched", Produced.with_(TEXT, _JSON))
    left.join(customers, lambda one, customer: one + customer).to("joined", written)
    return builder.build()


@dataclass(frozen=True, slots=True)
class Application:
    """A topology with settings and input, and its share of a campaign's seeds."""

    topology: Any
    config: dict[str, object]
    share: int
    """Of a hundred seeds."""

    def simulation(self) -> Simulation:
        """Prepare it."""
        inputs: dict[str, MakeRecord] = {"in": words}
        if self.topology is joins:
            inputs = {"left": words, "right": words, "customers": words, "orders": orders}
        return Simulation(self.topology(), inputs, self.config)


APPLICATIONS: Final = {
    "stateless": Application(stateless, {}, 9),
    "stateless, streams protocol": Application(stateless, STREAMS, 4),
    "stateless, two threads": Application(stateless, THREADS, 1),
    "stateless, long transactions": Application(stateless, LONG_TRANSACTIONS, 6),
    "stateless, at-least-once": Application(stateless, ALO, 8),
    "stateless, at-least-once, streams protocol": Application(stateless, ALO | STREAMS, 2),
    "counting": Application(counting, {}, 8),
    "counting, streams protocol": Application(counting, STREAMS, 3),
    "counting, streams protocol, standbys": Application(counting, STREAMS_STANDBYS, 3),
    "counting, two threads": Application(counting, THREADS, 2),
    "counting, caches": Application(counting, CACHES, 5),
    "counting, at-least-once": Application(counting, ALO, 6),
    "counting, at-least-once, streams protocol": Application(counting, ALO | STREAMS, 3),
    "counting, at-least-once, streams protocol, two threads": Application(counting, ALO | STREAMS | THREADS, 2),
    "counting, at-least-once, two threads": Application(counting, ALO | THREADS, 1),
    "counting, at-least-once, caches": Application(counting, ALO | CACHES, 2),
    "counting, standbys": Application(counting, STANDBYS, 3),
    "counting, standbys, two threads": Application(counting, STANDBYS | THREADS, 2),
    "counting, at-least-once, standbys": Application(counting, ALO | STANDBYS, 3),
    "table counting": Application(table_counting, {}, 3),
    "table counting, streams protocol, two threads": Application(table_counting, STREAMS | THREADS, 1),
    "table counting, streams protocol, standbys": Application(table_counting, STREAMS_STANDBYS, 1),
    "table counting, at-least-once": Application(table_counting, ALO, 3),
    "table counting, standbys": Application(table_counting, STANDBYS, 3),
    "windows": Application(windows, {}, 4),
    "windows, at-least-once": Application(windows, ALO, 2),
    "windows, standbys": Application(windows, STANDBYS, 2),
    "joins": Application(joins, {}, 3),
    "joins, streams protocol, two threads": Application(joins, STREAMS | THREADS, 1),
    "joins, at-least-once": Application(joins, ALO, 2),
    "joins, standbys, caches": Application(joins, STANDBYS | CACHES, 2),
}
"""By name; their shares add up to a hundred. A new one comes after the one whose share it takes, so that few seeds change."""
