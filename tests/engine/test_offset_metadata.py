"""The metadata string of commits is in Java's format (formats §9)."""

from __future__ import annotations

import base64
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.offset_metadata import (
    PartitionMetadata,
    decode_metadata,
    encode_metadata,
    merge_processor_metadata,
)

LONGS = st.integers(-(2**63), 2**63 - 1)


def test_partition_time_alone_is_javas_golden_vector():
    """1500 without processor metadata is AgAAAAAAAAXc, in both directions."""
    assert encode_metadata(1500) == "AgAAAAAAAAXc"
    assert decode_metadata("AgAAAAAAAAXc") == (1500, {})


def test_unknown_partition_time_is_minus_one():
    """An unknown partition time is written as -1, and an empty string is read as unknown."""
    assert decode_metadata(encode_metadata(-1)).partition_time == -1
    assert decode_metadata("") == PartitionMetadata()


def test_version_one_has_only_the_time():
    """Magic 1, which older versions write, can be read."""
    text = base64.b64encode(b"\x01" + (77).to_bytes(8, "big")).decode()
    assert decode_metadata(text) == (77, {})


def test_processor_metadata_layout():
    """An entry count is followed by each key's length, key and value, all big-endian."""
    text = encode_metadata(1, {"store": 258})
    assert base64.b64decode(text) == (
        b"\x02"
        + (1).to_bytes(8, "big")
        + (1).to_bytes(4, "big")
        + (5).to_bytes(4, "big")
        + b"store"
        + (258).to_bytes(8, "big")
    )


@pytest.mark.parametrize(
    "text",
    [
        "not base64!",
        "AA==",
        "CQAAAAAAAAAB",
        "AgAA",
        base64.b64encode(b"\x02" + bytes(8) + b"\x00\x00\x00\x05").decode(),
    ],
)
def test_unreadable_metadata_counts_as_unknown(text, caplog):
    """Garbage, other versions and truncated strings are logged and count as unknown."""
    with caplog.at_level(logging.WARNING):
        assert decode_metadata(text) == PartitionMetadata()
    assert "ignored" in caplog.text


@given(LONGS, st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=30), LONGS, max_size=5))
def test_round_trip(partition_time, metadata):
    """Any metadata survives encoding and decoding."""
    assert decode_metadata(encode_metadata(partition_time, metadata)) == (partition_time, metadata)


def test_merge_keeps_the_largest_value_per_key():
    """With several input partitions, a store's latest emit time wins."""
    parts = [PartitionMetadata(1, {"a": 5, "b": 1}), PartitionMetadata(2, {"a": 3, "c": 9})]
    assert merge_processor_metadata(parts) == {"a": 5, "b": 1, "c": 9}
