"""The timestamp extractors treat negative timestamps as Kafka Streams' do."""

from __future__ import annotations

import time

import pytest

from millrace.errors import InvalidTimestampError
from millrace.processor.timestamp_extractors import (
    fail_on_invalid_timestamp,
    log_and_skip_on_invalid_timestamp,
    use_partition_time_on_invalid_timestamp,
    wallclock_timestamp,
)
from millrace.records import ConsumedRecord

ALL = (fail_on_invalid_timestamp, log_and_skip_on_invalid_timestamp, use_partition_time_on_invalid_timestamp)


def record(timestamp):
    """Return a record of that timestamp."""
    return ConsumedRecord("in", 3, 17, timestamp, "k", "v")


@pytest.mark.parametrize("extractor", ALL)
@pytest.mark.parametrize("timestamp", [0, 1, 2**62])
def test_valid_timestamp_is_taken(extractor, timestamp):
    """A timestamp that is not negative is the record's own, whatever the partition time."""
    assert extractor(record(timestamp), 99) == timestamp


def test_default_extractor_fails_and_names_the_record():
    """The message names topic, partition, offset and timestamp."""
    with pytest.raises(InvalidTimestampError, match=r"offset 17 of in-3 has the negative timestamp -2"):
        fail_on_invalid_timestamp(record(-2), 99)


def test_skipping_extractor_returns_the_negative_timestamp(caplog):
    """The engine drops records with a negative timestamp; the extractor logs which."""
    assert log_and_skip_on_invalid_timestamp(record(-2), 99) == -2
    assert "offset 17 of in-3" in caplog.text


def test_partition_time_replaces_a_negative_timestamp():
    """If the partition time is not known yet, that is an error."""
    assert use_partition_time_on_invalid_timestamp(record(-1), 99) == 99
    with pytest.raises(InvalidTimestampError, match="not known yet"):
        use_partition_time_on_invalid_timestamp(record(-1), -1)


def test_wallclock_is_now():
    """The wall-clock extractor ignores the record."""
    before = time.time_ns() // 1_000_000
    assert before <= wallclock_timestamp(record(5), 0) <= time.time_ns() // 1_000_000
