"""Late and out-of-order records: every task of a backfill sees them as the engine does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.backfill.support import SETTINGS, Engine, Partitions, collected, differences, result_of, run_without_spark
from tests.topologies.support import L, longs, pair, windowed_out

from millrace.backfill.collector import Outputs
from millrace.backfill.history import Backfill
from millrace.backfill.job import compute
from millrace.config import StreamsConfig
from millrace.dsl import JoinWindows, StreamsBuilder, TimeWindows
from millrace.records import NO_HEADERS, ConsumedRecord, TopicPartition

CONFIG = {**SETTINGS, "application.id": "late"}
PARTITIONS = 4
TOPICS = ("clicks", "users", "views")


def late_topology() -> Any:
    """A stream-table join counted by windows, two stream-stream joins, one of them by another key, and counts by another key."""
    builder = StreamsBuilder()
    clicks = builder.stream("clicks")
    joined = clicks.join(builder.table("users"), pair)
    windows = TimeWindows.of_size_and_grace(3_000, 1_500)
    windowed_out(joined.group_by_key().windowed_by(windows).count(), 3_000, L)
    both = JoinWindows.of_time_difference_and_grace(60, 300)
    views = builder.stream("views")
    clicks.left_join(views, pair, both).to("pairs")
    by_end = clicks.select_key(lambda _key, value: value[-2:])
    rare = views.filter(lambda _key, value: value.endswith("7")).select_key(lambda _key, value: value[-2:])
    by_end.left_join(rare, pair, both).to("ends")
    by_value = joined.group_by(lambda _key, value: value[-2:]).windowed_by(windows).count()
    by_value.to_stream(lambda key, _value: f"{key.key}@{key.window.start}").to("values", longs())
    return builder.build(StreamsConfig.of(CONFIG))


@dataclass(frozen=True)
class Late:
    """Records made up on the spot: a tenth of them is late, by up to three windows."""

    records: int
    """Per partition of each topic."""
    shuffled: Mapping[str, int | None] = field(default_factory=dict)

    def partition_counts(self) -> Mapping[str, int]:
        """Return the partitions of inputs and outputs."""
        return dict.fromkeys((*TOPICS, "out", "pairs", "values", "ends"), PARTITIONS)

    def read(self, partition: TopicPartition) -> Iterator[Sequence[ConsumedRecord]]:
        """Return batches of different sizes."""
        chance = random.Random(f"{partition}")
        records = []
        time = 0
        topic = TOPICS.index(partition.topic)
        for offset in range(self.records):
            time += chance.randrange(5)
            at = max(0, time - chance.randrange(3_000)) if chance.random() < 0.1 else time
            at = (
                at * len(TOPICS) + topic
            )  # which of two records with the same timestamp comes first depends on their arrival
            key, value = f"{partition.partition}-{chance.randrange(200)}", f"{partition.topic}{chance.randrange(100)}"
            records.append(ConsumedRecord(*partition, offset, at, key.encode(), value.encode(), NO_HEADERS))
            if len(records) > chance.randrange(2_000):
                yield records
                records = []
        yield records

    def size(self, _partition: TopicPartition) -> int:
        """Return how many records a partition has."""
        return self.records

    def rows(self, _spark: Any) -> None:
        """Return nothing."""


def backfill_of(records: int) -> Backfill:
    """Return the backfill of this many records per partition of each topic."""
    return Backfill(late_topology, CONFIG, Late(records), outputs=Outputs.ALL)


def engine_of(backfill: Backfill) -> Engine:
    """Return the engine with the same records."""
    history = backfill.history
    partitions = [TopicPartition(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
    records = {at: [record for batch in history.read(at) for record in batch] for at in partitions}
    return Engine(late_topology, CONFIG, Partitions(history.partition_counts(), records))


def test_late_records_are_processed_as_the_engine_does():
    """However the records arrive in batches, joins and windows with grace give the same, and as many are dropped."""
    backfill = backfill_of(1_000)
    expected = engine_of(backfill).run()
    assert sum(dropped for _, dropped in expected.tasks.values()) > 100
    assert differences(expected, run_without_spark(backfill)) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("records", [6_000, pytest.param(300_000, marks=pytest.mark.thorough)])
def test_late_records_in_spark_give_what_the_engine_gives(spark, records):
    """Three topics with four partitions each, a tenth of the records late: all tasks and their changelogs are the same."""
    backfill = backfill_of(records // (len(TOPICS) * PARTITIONS))
    expected = engine_of(backfill).run()
    computed = compute(spark, backfill)
    assert differences(expected, result_of(computed.plan, collected(computed.records())))[:3] == []
