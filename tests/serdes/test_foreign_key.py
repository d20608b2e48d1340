"""The bytes of foreign-key joins: subscriptions, responses, keys of the subscription store, hashes."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SerializationError
from millrace.serdes import Serdes
from millrace.serdes.foreign_key import (
    CombinedKey,
    CombinedKeySchema,
    Instruction,
    SubscriptionResponseWrapper,
    SubscriptionResponseWrapperSerde,
    SubscriptionWrapper,
    SubscriptionWrapperSerde,
    value_hash,
)

DATA = Path(__file__).parent / "data"
PXX = bytes.fromhex("9153eb1ec4ed78eea2b36fc512bf43b8")
SUBSCRIPTIONS = SubscriptionWrapperSerde(Serdes.string(), "app-t-pk")
RESPONSES = SubscriptionResponseWrapperSerde(Serdes.string())
KEYS = CombinedKeySchema(Serdes.string(), "app-t-fk", Serdes.string(), "app-t-pk")

hashes = st.none() | st.binary(min_size=16, max_size=16)
partitions = st.integers(0, 2**31 - 1)


@pytest.mark.parametrize("line", (DATA / "murmur3-4.3.1.txt").read_text().splitlines())
def test_hash_is_javas_for_every_length_of_the_tail(line):
    """Random data of 0 to 49 bytes has the hashes of Java's Murmur3."""
    data, expected = line.split()
    assert value_hash(b"" if data == "-" else bytes.fromhex(data)).hex() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pxx", "9153eb1ec4ed78eea2b36fc512bf43b8"),
        ("0123456789abcdef", "1a6e941ec6a76967d7d82808f505d6b1"),
        ("0123456789abcdefg", "a93635c3ece7b605aeed6784d1b08b32"),
        ("éÿ", "89391c48fa1137104e997471d83f26bc"),
    ],
)
def test_hash_of_text_is_javas(text, expected):
    """Bytes above 127 count as unsigned."""
    assert value_hash(text.encode()).hex() == expected


def test_hash_halves_are_javas_longs():
    """The two longs of the recorded vectors are written in order, big-endian."""
    vectors = [json.loads(line) for line in (DATA / "serde.jsonl").read_text().splitlines()]
    murmur = [vector for vector in vectors if vector["serde"].startswith("murmur3_128")]
    assert murmur
    for vector in murmur:
        expected = struct.pack(">qq", int(vector["h0"]), int(vector["h1"]))
        assert value_hash(base64.b64decode(vector["key"])) == expected


@pytest.mark.parametrize(
    ("expected", "subscription"),
    [
        (
            "01039153eb1ec4ed78eea2b36fc512bf43b86100000000",
            (PXX, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE, "a", 0),
        ),
        ("81016100000000", (None, Instruction.DELETE_KEY_AND_PROPAGATE, "a", 0)),
        ("81026100000000", (None, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE, "a", 0)),
        ("8100610000012c", (None, Instruction.DELETE_KEY_NO_PROPAGATE, "a", 300)),
    ],
)
def test_subscriptions_have_javas_bytes(expected, subscription):
    """Version 1, with and without a hash, for each instruction."""
    wrapper = SubscriptionWrapper(*subscription)
    assert SUBSCRIPTIONS.serialize("t", wrapper).hex() == expected
    assert SUBSCRIPTIONS.deserialize("t", bytes.fromhex(expected)) == wrapper


def test_subscriptions_for_older_instances_have_no_partition():
    """Version 0 is written while instances of 3.3 or older may be running, and can always be read."""
    serde = SubscriptionWrapperSerde(Serdes.string(), "app-t-pk", write_version_0=True)
    wrapper = SubscriptionWrapper(PXX, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE, "a", 7)
    data = serde.serialize("t", wrapper)
    assert data.hex() == "0003" + PXX.hex() + "61"
    read = SUBSCRIPTIONS.deserialize("t", data)
    assert read == wrapper._replace(primary_partition=None, version=0)
    assert SUBSCRIPTIONS.serialize("t", read) == data


@pytest.mark.parametrize(
    ("expected", "response"),
    [
        ("00" + PXX.hex() + "7269676874", (PXX, "right")),
        ("00" + PXX.hex(), (PXX, None)),
        ("80", (None, None)),
        ("8072", (None, "r")),
    ],
)
def test_responses_have_javas_bytes(expected, response):
    """With and without a hash or a value; the partition is not included."""
    wrapper = SubscriptionResponseWrapper(*response)
    assert RESPONSES.serialize("t", wrapper._replace(primary_partition=3)).hex() == expected
    assert RESPONSES.deserialize("t", bytes.fromhex(expected)) == wrapper


def test_empty_right_value_is_read_as_none():
    """A response cannot distinguish an empty value from none, as in Java."""
    data = RESPONSES.serialize("t", SubscriptionResponseWrapper(PXX, ""))
    assert RESPONSES.deserialize("t", data).foreign_value is None


def test_combined_key_is_length_foreign_key_primary_key():
    """The key is the one that Java put in the changelog of the subscription store."""
    assert KEYS.serialize("p", "a").hex() == "000000017061"
    assert KEYS.deserialize(bytes.fromhex("000000017061")) == CombinedKey("p", "a")


@given(st.text(max_size=6), st.text(max_size=6), st.text(max_size=6))
def test_prefix_finds_the_subscriptions_of_one_foreign_key_only(foreign_key, primary_key, other):
    """Another foreign key's keys never start with the prefix, even if one foreign key is a prefix of the other."""
    key = KEYS.serialize(foreign_key, primary_key)
    assert key.startswith(KEYS.prefix(other)) is (foreign_key == other)
    assert KEYS.primary_key(key, len(KEYS.prefix(foreign_key))) == primary_key
    assert KEYS.deserialize(key) == (foreign_key, primary_key)


@given(hashes, st.sampled_from(Instruction), st.text(), partitions)
def test_subscriptions_come_back_as_they_were(digest, instruction, key, partition):
    """For any hash, instruction, key and partition."""
    wrapper = SubscriptionWrapper(digest, instruction, key, partition)
    assert SUBSCRIPTIONS.deserialize("t", SUBSCRIPTIONS.serialize("t", wrapper)) == wrapper


@given(hashes, st.none() | st.text(min_size=1))
def test_responses_come_back_as_they_were(digest, value):
    """For any hash and any value that is not empty."""
    wrapper = SubscriptionResponseWrapper(digest, value)
    assert RESPONSES.deserialize("t", RESPONSES.serialize("t", wrapper)) == wrapper


@pytest.mark.parametrize("data", ["", "01", "0103", "81", "8101", "8101000000", "8104" + "00" * 5, "0204" + "00" * 30])
def test_bytes_that_are_no_subscription_are_refused(data):
    """Bytes that are too short, have an unknown instruction or a later version are errors."""
    with pytest.raises(SerializationError):
        SUBSCRIPTIONS.deserialize("t", bytes.fromhex(data))


@pytest.mark.parametrize("data", ["", "00", "00" + "11" * 15, "01" + "11" * 16, "81"])
def test_bytes_that_are_no_response_are_refused(data):
    """Bytes that are too short or have a later version are errors."""
    with pytest.raises(SerializationError):
        RESPONSES.deserialize("t", bytes.fromhex(data))


@pytest.mark.parametrize("data", ["", "000000", "0000000261", "ffffffff61"])
def test_bytes_that_are_no_combined_key_are_refused(data):
    """A foreign key length that does not fit is an error."""
    with pytest.raises(SerializationError):
        KEYS.deserialize(bytes.fromhex(data))


def test_subscriptions_of_later_versions_are_not_written():
    """Only versions 0 and 1 can be written."""
    with pytest.raises(SerializationError, match="version 2"):
        SUBSCRIPTIONS.serialize("t", SubscriptionWrapper(None, Instruction.DELETE_KEY_NO_PROPAGATE, "a", 0, version=2))
