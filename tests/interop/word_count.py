"""The word count of `java/WordCount.java` in Python: the same arguments, output and way to end."""

from __future__ import annotations

import logging
import sys
from datetime import timedelta

from millrace.dsl import Consumed, Grouped, Materialized, Produced, StreamsBuilder, TimeWindows
from millrace.instance.kafka_streams import KafkaStreams
from millrace.serdes import Serdes
from millrace.topology import Topology

WINDOW = timedelta(seconds=10)


def topology(source: str, sink: str, settings: dict[str, str]) -> Topology:
    """Return the word count."""
    string, long = Serdes.string(), Serdes.long()

    builder = StreamsBuilder()
    words = (
        builder.stream(source, Consumed.with_(string, string))
        .flat_map(lambda _, line: [(word, word) for word in line.split(" ")])
        .group_by_key(Grouped.with_(string, string, name="words"))
    )
    words.count(Materialized.as_("counts")).to_stream().to(sink, Produced.with_(string, long))
    (
        words.windowed_by(TimeWindows.of_size_and_grace(WINDOW, timedelta(hours=1)))
        .count(Materialized.as_("windowed-counts"))
        .to_stream()
        .to(f"{sink}-windowed", Produced.with_(Serdes.time_windowed(string, 10_000), long))
    )
    return builder.build(settings)


def main(arguments: list[str]) -> int:
    """Run until standard input ends."""
    settings = dict(argument.split("=", 1) for argument in arguments)
    source, sink = settings.pop("input"), settings.pop("output")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    streams = KafkaStreams(topology(source, sink, settings), settings)
    streams.set_state_listener(lambda now, _: print(now.value, flush=True))  # noqa: T201 (the protocol with the harness)
    streams.start()
    sys.stdin.read()
    closed = streams.close(60, leave_group=True)
    print("CLOSED" if closed else "NOT CLOSED IN TIME", flush=True)  # noqa: T201
    return 0 if closed and streams.error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
