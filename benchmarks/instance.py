"""The application of `java/Instance.java` in Python: the same arguments, commands and reports."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import zlib
from typing import Any

from millrace.dsl import Consumed, Materialized, Produced, StreamsBuilder
from millrace.garbage import rarely_collected
from millrace.instance import KafkaStreams
from millrace.records import TopicPartition
from millrace.serdes import Serdes
from millrace.topology import Topology

_WATCH_S = 0.05
_saying = threading.Lock()


def topology(settings: dict[str, Any], source: str, sink: str, name: bytes) -> Topology:
    """Keep the last value of every key, and write the instance's name for every change."""
    raw = Serdes.bytes()
    builder = StreamsBuilder()
    table: Materialized[bytes, bytes] = Materialized.as_("table")
    (
        builder.stream(source, Consumed.with_(raw, raw))
        .to_table(table.with_key_serde(raw).with_value_serde(raw))
        .to_stream()
        .map_values(lambda _value: name)
        .to(sink, Produced.with_(raw, raw))
    )
    return builder.build(settings)


def say(**report: object) -> None:
    """Report something."""
    with _saying:
        print(json.dumps(report), flush=True)


class Progress:
    """Reports restoration, with its time and CPU."""

    def __init__(self) -> None:
        self._began = self._cpu_began = 0.0
        self._restored = self._left = 0

    def on_restore_start(self, _partition: TopicPartition, _store: str, _start: int, _end: int) -> None:
        """Note the time."""
        if not self._began:
            self._began, self._cpu_began = time.monotonic(), time.process_time()
        self._left += 1

    def on_batch_restored(self, _partition: TopicPartition, _store: str, _offset: int, restored: int) -> None:
        """Count."""
        self._restored += restored

    def on_restore_end(self, _partition: TopicPartition, _store: str, _total: int) -> None:
        """Report."""
        self._left -= 1
        seconds, cpu_seconds = time.monotonic() - self._began, time.process_time() - self._cpu_began
        say(restored=self._restored, seconds=seconds, cpu_seconds=cpu_seconds, left=self._left)

    def on_restore_suspended(self, _partition: TopicPartition, _store: str, _total: int) -> None:
        """Forget it."""
        self._left -= 1


def tasks(streams: KafkaStreams) -> dict[str, list[str]]:
    """Return the ids of active and standby tasks."""
    threads = streams.metadata_for_local_threads()
    return {
        "active": sorted(str(task.task_id) for thread in threads for task in thread.active_tasks),
        "standby": sorted(str(task.task_id) for thread in threads for task in thread.standby_tasks),
    }


def watch_tasks(streams: KafkaStreams) -> None:
    """Report changes of tasks."""
    last: dict[str, list[str]] = {}
    while True:
        now = tasks(streams)
        if now != last:
            say(**now)
            last = now
        time.sleep(_WATCH_S)


def check(streams: KafkaStreams) -> None:
    """Report how many keys the stores of all active tasks have, and their checksum; nothing may be processed meanwhile."""
    keys = checksum = 0
    for thread in streams.threads:
        assert thread.tasks is not None
        for task in thread.tasks.running.values():
            for row in task.stores["table"].all():  # type: ignore[attr-defined]
                keys += 1
                checksum += zlib.crc32(row.value.value, zlib.crc32(row.key))
    say(check={"keys": keys, "checksum": checksum})


def report_lag(streams: KafkaStreams) -> None:
    """Report by how many offsets the store that is furthest behind is so."""
    lags = streams.all_local_store_partition_lags().values()
    say(lag=max((lag.offset_lag for partitions in lags for lag in partitions.values()), default=0))


def main(arguments: list[str]) -> int:
    """Run until standard input ends."""
    settings: dict[str, Any] = dict(argument.split("=", 1) for argument in arguments)
    source, sink, name = (settings.pop(key) for key in ("input", "output", "name"))
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    streams = KafkaStreams(topology(settings, source, sink, name.encode()), settings)
    streams.set_state_listener(lambda now, _before: say(state=now.value))
    streams.set_restore_listener(Progress())
    with rarely_collected():  # as `millrace run` does
        streams.start()
        threading.Thread(target=watch_tasks, args=(streams,), daemon=True).start()
        for command in sys.stdin:
            if command.strip() == "check":
                check(streams)
            else:
                report_lag(streams)
        return 0 if streams.close(120, leave_group=True) and streams.error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
