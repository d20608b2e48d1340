"""A program of the benchmark of peers in Millrace: `java/Peer.java` and `quix_programs.py` do the same."""

from __future__ import annotations

import logging
import sys
from typing import Any

from benchmarks.peers.process import Measured, say
from benchmarks.programs import Build, Names

from millrace.garbage import rarely_collected
from millrace.instance import KafkaStreams


def main(arguments: list[str]) -> int:
    """Run until standard input ends."""
    settings: dict[str, Any] = dict(argument.split("=", 1) for argument in arguments)
    program, source, application = settings.pop("program"), settings.pop("input"), settings["application.id"]
    for own in ("output", "table", "name"):
        settings.pop(own)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    streams = KafkaStreams(Build(program, Names(source), application)(), settings)
    streams.set_state_listener(lambda now, _before: say(state=now.value))
    closed: list[bool] = []
    measured = Measured(
        lambda: sum(thread.tasks.records_total for thread in streams.threads if thread.tasks is not None),
        lambda: closed.append(streams.close(120, leave_group=True)),
    )
    measured.wait_for_start()
    with rarely_collected():  # as `millrace run` does
        streams.start()
        measured.close_at_end_of_input()
        measured.report()
    return 0 if all(closed) and streams.error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
