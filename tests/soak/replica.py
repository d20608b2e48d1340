"""One instance of the application as a separate program: `python -m tests.soak.replica {"application": …, "config": …}`.

SIGTERM closes it; SIGUSR1 adds a stream thread and SIGUSR2 removes one. A thread that dies is replaced, and the log says so.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from pathlib import Path
from queue import Empty, SimpleQueue

from tests.soak.resources import Sampler, count_iterators
from tests.topologies.soak import build, settings

from millrace.instance import KafkaStreams, UncaughtExceptionResponse

_log = logging.getLogger("soak")
_SAMPLE_EVERY_S = 2.0


def main(spec: str) -> int:
    """Run an instance until SIGTERM; return 0 after that, and 1 if it ended by itself."""
    signals: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda got, _: signals.put(got))
    given = json.loads(spec)
    application = given["application"]
    streams = KafkaStreams(build(application), given["config"] | settings(application))
    streams.set_uncaught_exception_handler(lambda _: UncaughtExceptionResponse.REPLACE_THREAD)
    streams.start()
    count_iterators()
    told = False
    sampler = Sampler(Path(given["samples"]), given["config"]["client.id"])
    sample_at = 0.0
    while not streams.state.has_ended:
        if time.monotonic() >= sample_at:
            sample_at = time.monotonic() + _SAMPLE_EVERY_S
            sampler.sample(len(streams.metadata_for_local_threads()))
        try:
            number = signals.get(timeout=0.1)
        except Empty:
            continue
        if number == signal.SIGTERM:
            told = True
            streams.close()
            break
        change = streams.add_stream_thread if number == signal.SIGUSR1 else lambda: streams.remove_stream_thread(0.0)
        try:
            _log.info("Changed the number of threads: %s", change())
        except Exception as error:  # including a timeout of zero
            _log.info("Changed the number of threads: %s", error)
    if streams.error is not None or not told:
        _log.error("The instance ended by itself", exc_info=streams.error)
        return 1
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    sys.exit(main(sys.argv[1]))
