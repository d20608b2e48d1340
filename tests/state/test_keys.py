"""Key and value layouts: each reads what it wrote, and writes what Java wrote; range bounds cover what they must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.records import NO_HEADERS, Headers
from millrace.serdes import Serdes
from millrace.serdes.foreign_key import CombinedKeySchema
from millrace.serdes.varint import decode_varint, encode_varint
from millrace.state import keys
from millrace.state.bytes_store import decode_position, encode_position
from millrace.state.value_formats import (
    HEADERS,
    PLAIN,
    SESSION_HEADERS,
    TIMESTAMPED,
    StoredValue,
    decode_headers,
    encode_headers,
)

LONGS = st.integers(0, 2**63 - 1)
INTS = st.integers(0, 2**31 - 1)
RAW = st.binary(max_size=12)
SHORT = st.binary(max_size=3).map(lambda raw: bytes(b % 3 * 127 for b in raw))
HEADER_LISTS = st.lists(st.tuples(st.text(max_size=5), st.none() | RAW), max_size=4).map(Headers)

COMBINED_KEYS = CombinedKeySchema(Serdes.bytes(), "topic-fk", Serdes.bytes(), "topic-pk")


@given(RAW, LONGS, INTS)
def test_window_keys_round_trip(key, start, seq):
    """Both layouts of a window key are read back."""
    assert keys.decode_window_key(keys.encode_window_key(key, start, seq)) == (key, start, seq)
    assert keys.decode_time_ordered_window_key(keys.encode_time_ordered_window_key(key, start, seq)) == (
        key,
        start,
        seq,
    )


@given(RAW, LONGS, LONGS)
def test_session_keys_round_trip(key, start, end):
    """Both layouts of a session key are read back."""
    assert keys.decode_session_key(keys.encode_session_key(key, start, end)) == (key, start, end)
    row = keys.encode_time_ordered_session_key(key, start, end)
    assert keys.decode_time_ordered_session_key(row) == (key, start, end)


@given(RAW, RAW)
def test_combined_keys_round_trip(foreign, primary):
    """A subscription's key is read back, and starts with its foreign key's prefix."""
    row = COMBINED_KEYS.serialize(foreign, primary)
    assert COMBINED_KEYS.deserialize(row) == (foreign, primary)
    assert row.startswith(COMBINED_KEYS.prefix(foreign))


@given(LONGS, st.booleans(), RAW)
def test_join_side_keys_round_trip(timestamp, left, key):
    """The key of an outer join's shared store is read back."""
    assert keys.decode_join_side_key(keys.encode_join_side_key(timestamp, key, left=left)) == (timestamp, left, key)


def test_keys_are_javas():
    """The vectors of the recorded Java runs."""
    assert keys.encode_window_key(b"a", 1000, 1).hex() == "6100000000000003e800000001"
    assert keys.encode_session_key(b"a", 1500, 1900).hex() == "61000000000000076c00000000000005dc"
    assert keys.encode_time_ordered_window_key(b"b", 5000).hex() == "0000000000000013886200000000"
    assert keys.encode_time_ordered_session_key(b"a", 1500, 1500).hex() == "0000000000000005dc00000000000005dc61"
    assert keys.encode_join_side_key(1000, b"c", left=False).hex() == "00000000000003e80063"
    assert COMBINED_KEYS.serialize(b"q", b"a").hex() == "000000017161"


@given(SHORT, SHORT, LONGS, LONGS)
def test_upper_range_covers_every_smaller_key(key, other, time, limit):
    """No row of a key up to the bound's key, at a time up to the bound's time, is above the bound."""
    key, other = max(key, other), min(key, other)
    bound = keys.upper_range(key, keys.pack_window_suffix(max(time, limit), keys.MAX_INT))
    assert keys.encode_window_key(other, time, keys.MAX_INT) <= bound
    assert keys.upper_range(b"a\0", keys.pack_window_suffix(300, 0)) >= keys.encode_window_key(b"a", 300)


@pytest.mark.parametrize(
    ("number", "wire"), [(0, "00"), (1, "02"), (-1, "01"), (63, "7e"), (64, "8001"), (300, "d804")]
)
def test_varints_are_javas(number, wire):
    """Zig-zag varints have Kafka's bytes."""
    assert encode_varint(number).hex() == wire
    assert decode_varint(bytes.fromhex(wire)) == (number, len(wire) // 2)


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints_round_trip(number):
    """Every 32-bit number is read back."""
    wire = encode_varint(number)
    assert decode_varint(wire) == (number, len(wire))


@given(HEADER_LISTS)
def test_headers_round_trip(headers):
    """Headers are read back, with repeated names and null values."""
    assert decode_headers(encode_headers(headers)) == headers


@given(RAW, LONGS, HEADER_LISTS)
def test_value_formats_round_trip(value, timestamp, headers):
    """Each format keeps what it promises: plain the value, timestamped also the timestamp, headers everything."""
    assert PLAIN.from_disk(PLAIN.to_disk(value, timestamp, headers)) == StoredValue(value, -1, NO_HEADERS)
    stored = TIMESTAMPED.from_disk(TIMESTAMPED.to_disk(value, timestamp, headers))
    assert stored == StoredValue(value, timestamp, NO_HEADERS)
    assert HEADERS.from_disk(HEADERS.to_disk(value, timestamp, headers)) == StoredValue(value, timestamp, headers)
    stored = SESSION_HEADERS.from_disk(SESSION_HEADERS.to_disk(value, timestamp, headers))
    assert stored == StoredValue(value, -1, headers)


def test_header_format_is_javas():
    """With one header h1=v1, time 1000 and value x; and without headers."""
    headers = Headers([("h1", b"v1")])
    assert HEADERS.to_disk(b"x", 1000, headers).hex() == "0e0204683104763100000000000003e878"
    assert HEADERS.to_disk(b"y", 1100, NO_HEADERS).hex() == "00000000000000044c79"


def test_position_is_javas():
    """The position {t: {0: 5}} has Java's bytes, including the zero padding; whatever follows the content is ignored."""
    wire = encode_position({("t", 0): 5})
    assert len(wire) == 201
    assert wire.hex().startswith("0000000001000000017400000001000000000000000000000005")
    assert set(wire[26:]) == {0}
    assert decode_position(wire + b"\xff") == {("t", 0): 5}


@given(st.dictionaries(st.tuples(st.text(max_size=8), INTS), LONGS, max_size=6))
def test_positions_round_trip(position):
    """Any number of topics and partitions is read back."""
    assert decode_position(encode_position(position)) == position
