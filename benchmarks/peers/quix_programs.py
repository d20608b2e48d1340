"""The programs of the benchmark of peers in Quix Streams, run by the interpreter of an environment of its own (`runs.py`).

Not quite the same: Quix Streams has no record cache, so that it writes every change; it joins a stream with a table as of the
record's time; and its state is JSON. `restoration` keeps the last value of every key, and writes the one before.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from process import Measured, say
from quixstreams import Application, State

WINDOW_MS, GRACE_MS = 10_000, 5_000
KEPT = timedelta(days=1)
"""How old a table's row may be."""


def count(_value: str, state: State) -> int:
    """Count by key."""
    number: int = state.get("count", 0) + 1
    state.set("count", number)
    return number


def replace(value: str, state: State) -> str | None:
    """Keep the last value, and return the one before."""
    before: str | None = state.get("value")
    state.set("value", value)
    return before


def build(app: Application, program: str, source: str, table: str, sink: str) -> None:
    """Add a program to an application."""
    stream = app.dataframe(app.topic(source, key_deserializer="bytes", value_deserializer="str"))

    def topic(key: str, value: str) -> Any:
        return app.topic(sink, key_serializer=key, value_serializer=value)

    if program == "lines":
        words = stream.apply(str.split, expand=True).group_by(
            lambda word: word,
            name="words",
            key_serializer="str",
            key_deserializer="str",
            value_serializer="str",
            value_deserializer="str",
        )
        words.apply(count, stateful=True).to_topic(topic("str", "int"))
    elif program == "tumbling":
        stream.tumbling_window(WINDOW_MS, grace_ms=GRACE_MS).count().current().to_topic(topic("bytes", "json"))
    elif program in {"count", "hot"}:
        stream.apply(count, stateful=True).to_topic(topic("bytes", "int"))
    elif program == "join":
        right = app.dataframe(app.topic(table, key_deserializer="bytes", value_deserializer="str"))
        joined = stream.join_asof(right, how="inner", on_merge=lambda left, right: left + right, grace_ms=KEPT)
        joined.to_topic(topic("bytes", "str"))
    elif program == "stateless":
        stream.filter(lambda value: len(value) > 2).apply(str.upper).to_topic(topic("bytes", "str"))
    elif program == "restoration":
        before = stream.apply(replace, stateful=True).filter(lambda value: value is not None)
        before.to_topic(topic("bytes", "str"))
    else:
        raise SystemExit(f"There is no program {program}")


class Recovery(logging.Handler):
    """Reports how long recovery took; nothing but the log tells when it begins and ends."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._began = self._cpu_began = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Note the begin, report the end."""
        if record.getMessage().startswith("Beginning recovery"):
            self._began, self._cpu_began = time.monotonic(), time.process_time()
        elif record.getMessage().startswith("Recovery process complete"):
            say(seconds=time.monotonic() - self._began, cpu_seconds=time.process_time() - self._cpu_began)


def counted() -> tuple[Callable[[], int], Callable[[str, int, int], None]]:
    """Return a function that tells the number of processed records, and one that is called for each."""
    number = 0

    def add(_topic: str, _partition: int, _offset: int) -> None:
        nonlocal number
        number += 1

    return lambda: number, add


def main(arguments: list[str]) -> None:
    """Run until standard input ends."""
    settings = dict(argument.split("=", 1) for argument in arguments)
    processed, add = counted()
    app = Application(
        broker_address=settings["bootstrap.servers"],
        consumer_group=settings["application.id"],
        auto_offset_reset="earliest",
        state_dir=settings["state.dir"],
        processing_guarantee="exactly-once"
        if settings["processing.guarantee"] == "exactly_once_v2"
        else "at-least-once",
        commit_interval=int(settings["commit.interval.ms"]) / 1000,
        on_message_processed=add,
        loglevel="INFO" if settings["program"] == "restoration" else "WARNING",
    )
    build(app, settings["program"], settings["input"], settings["table"], settings["output"])
    if settings["program"] == "restoration":
        logging.getLogger("quixstreams").addHandler(Recovery())
    measured = Measured(processed, app.stop)
    measured.wait_for_start()
    threading.Thread(target=measured.close_at_end_of_input, daemon=True).start()
    app.run()
    measured.report()


if __name__ == "__main__":
    main(sys.argv[1:])
