"""The application of `java/Purchases.java` in Python: the same topology, arguments, output and way to end."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta

from millrace.dsl import Consumed, Grouped, Materialized, Produced, StreamsBuilder, TimeWindows
from millrace.errors import StreamsError
from millrace.instance.kafka_streams import KafkaStreams
from millrace.records import TopicPartition
from millrace.serdes import Serdes

WINDOW = timedelta(seconds=10)
STRING, LONG = Serdes.string(), Serdes.long()


def define(builder: StreamsBuilder, topics: str) -> None:
    """Define the topology.

    Args:
        builder: takes it.
        topics: the prefix of the topics read and written.
    """
    purchases = (
        builder.stream(f"{topics}-purchases", Consumed.with_(STRING, STRING))
        .select_key(lambda _, customer: customer)
        .group_by_key(Grouped.with_(STRING, STRING, name="purchases"))
    )
    counts = purchases.count(Materialized.as_("counts"))
    counts.to_stream().to(f"{topics}-counts", Produced.with_(STRING, LONG))
    (
        purchases.windowed_by(TimeWindows.of_size_and_grace(WINDOW, timedelta(days=1)))
        .count(Materialized.as_("windowed-counts"))
        .to_stream()
        .to(f"{topics}-windowed", Produced.with_(Serdes.time_windowed(STRING, 10_000), LONG))
    )
    customers = builder.table(
        f"{topics}-customers", Materialized.as_("customers"), consumed=Consumed.with_(STRING, STRING)
    )
    joined = Materialized.as_("joined").with_key_serde(STRING).with_value_serde(STRING)
    counts.join(customers, lambda count, city: f"{city}:{count}", joined).to_stream().to(
        f"{topics}-joined", Produced.with_(STRING, STRING)
    )
    (
        customers.group_by(lambda customer, city: (city, customer), Grouped.with_(STRING, STRING, name="cities"))
        .count(Materialized.as_("cities"))
        .to_stream()
        .to(f"{topics}-cities", Produced.with_(STRING, LONG))
    )


class _Restorations:
    def on_restore_start(self, partition: TopicPartition, store: str, start_offset: int, end_offset: int) -> None:
        _tell(f"RESTORE {store}-{partition.partition} {start_offset} {end_offset}")

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        pass

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        _tell(f"RESTORED {store}-{partition.partition} {total_restored}")

    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        pass


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # one call, as several threads do it
    sys.stdout.flush()


def _tasks(streams: KafkaStreams) -> str:
    threads = streams.metadata_for_local_threads()
    active = sorted(str(task.task_id) for thread in threads for task in thread.active_tasks)
    standby = sorted(str(task.task_id) for thread in threads for task in thread.standby_tasks)
    return f"{','.join(active)}|{','.join(standby)}"


def _hosts(streams: KafkaStreams) -> str:
    return ";".join(
        sorted(
            f"{one.host_info}/{_names(one.topic_partitions)}/{_names(one.standby_topic_partitions)}"
            for one in streams.metadata_for_all_streams_clients()
        )
    )


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ",".join(sorted(map(str, partitions)))


def _positions(streams: KafkaStreams) -> str:
    return ",".join(
        sorted(
            f"{store}-{partition}={lag.current_offset_position}"
            for store, lags in streams.all_local_store_partition_lags().items()
            for partition, lag in lags.items()
        )
    )


def _report(streams: KafkaStreams, ended: threading.Event) -> None:
    parts: dict[str, Callable[[KafkaStreams], str]] = {"TASKS": _tasks, "HOSTS": _hosts, "POSITIONS": _positions}
    last = dict.fromkeys(parts, "")
    while not ended.wait(0.2):
        for name, part in parts.items():
            try:
                now = part(streams)
            except StreamsError:  # the brokers did not answer: the next round will tell
                continue
            if now != last[name]:
                _tell(f"{name} {now}")
            last[name] = now


def main(arguments: list[str]) -> int:
    """Run until standard input ends."""
    settings = dict(argument.split("=", 1) for argument in arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    builder = StreamsBuilder()
    define(builder, settings.pop("topics"))
    topology = builder.build(settings)
    _tell("TOPOLOGY " + str(topology.describe()).replace("\n", "|"))
    streams = KafkaStreams(topology, settings)
    streams.set_state_listener(lambda now, _: _tell(now.value))
    streams.set_restore_listener(_Restorations())
    streams.start()
    ended = threading.Event()
    threading.Thread(target=_report, args=(streams, ended), daemon=True).start()
    sys.stdin.read()
    ended.set()
    closed = streams.close(60, leave_group=True)
    _tell("CLOSED" if closed else "NOT CLOSED IN TIME")
    return 0 if closed and streams.error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
