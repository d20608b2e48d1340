"""The application under test: everything that keeps state or crosses topics, in few tasks.

Each output shows which input records led to it, so that one lost record is found among any number of duplicates:

* `joined`: an event's id with the value of its key in the table `first`;
* `closed`: the ids of each key and window, sent once, when the window closes. It reads only one input partition, whose
  timestamps never go back, so a window's content depends on the input alone;
* `totals`: the ids by group and window, after a repartition topic. Its windows stay open for a day, so no order of arrival
  makes a record late; every update adds one id;
* `versions`: the versions in the tables `first` and `second`; every update raises one of the two;
* `pairs`: the ids of two streams;
* `matched`: the version of an order with the version in `second` of the customer that it names, joined by foreign key;
* `dead-letters`: events that cannot be read, and those that a node fails on.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from millrace import (
    BufferConfig,
    Consumed,
    Grouped,
    Joined,
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
from millrace.processor.handlers import LogAndContinueExceptionHandler, LogAndContinueProcessingExceptionHandler
from millrace.serdes.json import JsonSerde
from millrace.topology import Topology

PARTITIONS: Final = 3
WINDOW_MS: Final = 2_000
GROUPS: Final = 8
CLOSED_STORE: Final = "windows"
"""The store of the windows that `closed` sends; it forgets them one window later."""
INPUTS: Final = ("events", "left", "right", "first", "second", "orders")
OUTPUTS: Final = ("joined", "closed", "totals", "versions", "pairs", "matched", "dead-letters")

_TEXT = Serdes.string()
_JSON: JsonSerde[Any] = JsonSerde()
_WINDOW = timedelta(milliseconds=WINDOW_MS)
_DAY = timedelta(days=1)


def topic(application: str, name: str) -> str:
    """Return the name of an application's input or output topic."""
    return f"{application}.{name}"


def settings(application: str) -> dict[str, Any]:
    """Return the settings that belong to the topology: no cache, so that every update is sent, and dead letters."""
    return {
        "statestore.cache.max.bytes": 0,
        "errors.dead.letter.queue.topic.name": topic(application, "dead-letters"),
        "deserialization.exception.handler": LogAndContinueExceptionHandler,
        "processing.exception.handler": LogAndContinueProcessingExceptionHandler,
    }


def window_of(key: str, start_ms: int) -> str:
    """Return the output key for a key and window."""
    return f"{key}@{start_ms}"


def group_of(number: int) -> str:
    """Return an event's key after the repartition topic."""
    return f"g{number % GROUPS}"


def build(application: str) -> Topology:
    """Build the topology."""
    builder = StreamsBuilder()
    written = Produced.with_(_TEXT, _JSON)
    read = Consumed.with_(_TEXT, _JSON)

    def stream(name: str) -> Any:
        return builder.stream(topic(application, name), read)

    def table(name: str) -> Any:
        return builder.table(topic(application, name), _kept(name), consumed=read)

    def ids(grouped: Any, grace: timedelta, store: str) -> Any:
        windows = TimeWindows.of_size_and_grace(_WINDOW, grace)
        return grouped.windowed_by(windows).aggregate(
            list, lambda _, event, so_far: [*so_far, event["id"]], _kept(store)
        )

    def send(table: Any, name: str) -> None:
        windowed = table.to_stream(lambda key, _: window_of(key.key, key.window.start))
        windowed.to(topic(application, name), written)

    events = stream("events").map_values(_refuse_poison)
    first, second = table("first"), table("second")

    joined = events.join(first, lambda event, version: [event["id"], version], joined=Joined.with_(_TEXT, _JSON, _JSON))
    joined.to(topic(application, "joined"), written)

    closed = ids(events.group_by_key(Grouped.with_(_TEXT, _JSON)), timedelta(0), CLOSED_STORE)
    send(closed.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())), "closed")

    by_group = events.select_key(lambda _, event: group_of(event["id"]))
    moved = by_group.repartition(Repartitioned.with_(_TEXT, _JSON).with_name("groups"))
    send(ids(moved.group_by_key(Grouped.with_(_TEXT, _JSON)), _DAY, "totals"), "totals")

    versions = first.join(second, lambda one, other: [one, other], _kept("versions"))
    versions.to_stream().to(topic(application, "versions"), written)

    windows = JoinWindows.of_time_difference_and_grace(timedelta(hours=1), _DAY)
    pairs = stream("left").join(
        stream("right"), lambda one, other: [one, other], windows, StreamJoined.with_(_TEXT, _JSON, _JSON)
    )
    pairs.to(topic(application, "pairs"), written)

    matched = table("orders").join(
        second,
        lambda order, version: [order["version"], order["customer"], version],
        _kept("matched"),
        foreign_key=lambda order: order["customer"],
    )
    matched.to_stream().to(topic(application, "matched"), written)
    return builder.build()


def _kept(store: str) -> Any:
    return Materialized.as_(store).with_key_serde(_TEXT).with_value_serde(_JSON)


def _refuse_poison(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("poison"):
        raise ValueError("This event is poison")
    return event
