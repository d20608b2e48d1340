"""The average temperature of each sensor in five minutes, once the five minutes are over.

A window's result changes with every reading. `suppress` holds it back until no more readings can come: window end and grace have
passed, in stream time. So each window has one result, which is final.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from millrace import (
    BufferConfig,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    Serdes,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Windowed,
)


class Readings(BaseModel):
    """The readings of one sensor in one window so far."""

    count: int = 0
    total: float = 0.0

    def plus(self, degrees: float) -> Readings:
        """Return them with one reading more."""
        return Readings(count=self.count + 1, total=self.total + degrees)


def topology(builder: StreamsBuilder) -> None:
    """Build the topology."""
    text, number = Serdes.string(), Serdes.double()
    windows = TimeWindows.of_size_and_grace(timedelta(minutes=5), timedelta(minutes=1))
    (
        builder.stream("readings", Consumed.with_(text, number))
        .group_by_key(Grouped.with_(text, number))
        .windowed_by(windows)
        .aggregate(
            Readings,
            lambda _, degrees, readings: readings.plus(degrees),
            Materialized.as_("averages").with_key_serde(text).with_value_serde(Serdes.pydantic(Readings)),
        )
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("final"))
        .to_stream(_key)
        .map_values(lambda readings: readings.total / readings.count)
        .to("averages", Produced.with_(text, number))
    )


def _key(sensor: Windowed[str], _readings: Readings) -> str:
    return f"{sensor.key}@{sensor.window.start}"
