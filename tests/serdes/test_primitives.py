"""Serdes of single values: round trips, ranges and what they refuse."""

import math
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SerializationError
from millrace.serdes import Serdes

INTEGERS = [(Serdes.short(), 2), (Serdes.integer(), 4), (Serdes.long(), 8)]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives(text):
    """Any text without lone surrogates is read back as written."""
    serde = Serdes.string()
    assert serde.deserialize("t", serde.serialize("t", text)) == text


def test_malformed_utf8_is_replaced_as_in_java():
    """Bytes that are not UTF-8 become U+FFFD and do not stop the topology."""
    assert Serdes.string().deserialize("t", b"a\xff\xe2\x82z") == "a\ufffd\ufffdz"


def test_a_lone_surrogate_cannot_be_written():
    """Half a surrogate pair has no UTF-8 form; the error says so instead of writing a question mark."""
    with pytest.raises(SerializationError, match="surrogates not allowed"):
        Serdes.string().serialize("t", "\ud800")


@pytest.mark.parametrize(("serde", "size"), INTEGERS, ids=repr)
@given(data=st.data())
def test_integers_survive_within_their_range(serde, size, data):
    """Every number of the serde's width is read back as written."""
    number = data.draw(st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1))
    assert serde.deserialize("t", serde.serialize("t", number)) == number


@pytest.mark.parametrize(("serde", "size"), INTEGERS, ids=repr)
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_beyond_their_range_are_refused(serde, size, sign):
    """The first number that does not fit is an error that names topic and range, not a wrapped number."""
    too_big = 2 ** (8 * size - 1) if sign == 1 else -(2 ** (8 * size - 1)) - 1
    with pytest.raises(SerializationError, match=rf"2\*\*{8 * size - 1}.*'orders'"):
        serde.serialize("orders", too_big)


@given(st.floats(allow_nan=False))
def test_doubles_survive(number):
    """Every double but NaN is read back as the same number, with its sign."""
    serde = Serdes.double()
    copy = serde.deserialize("t", serde.serialize("t", number))
    assert struct.pack(">d", copy) == struct.pack(">d", number)


def test_every_nan_is_written_as_javas():
    """NaNs with a sign or payload are written as 7ff8000000000000, as Java does."""
    odd_nan = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    data = Serdes.double().serialize("t", odd_nan)
    assert data.hex() == "7ff8000000000000"
    assert math.isnan(Serdes.double().deserialize("t", data))


@given(st.floats(width=32, allow_nan=False))
def test_singles_survive(number):
    """Every number of single precision is read back as written."""
    serde = Serdes.float()
    assert serde.deserialize("t", serde.serialize("t", number)) == number


def test_a_double_beyond_single_precision_is_refused():
    """A float that would overflow to infinity is an error."""
    with pytest.raises(SerializationError, match="single precision"):
        Serdes.float().serialize("t", 1e300)


@given(st.uuids())
def test_uuids_survive(value):
    """UUIDs are written as 36 characters and read back."""
    data = Serdes.uuid().serialize("t", value)
    assert len(data) == 36
    assert Serdes.uuid().deserialize("t", data) == value


@given(st.binary())
def test_bytes_pass_through(data):
    """Byte serdes return the very object they were given."""
    assert Serdes.bytes().serialize("t", data) is data
    assert Serdes.byte_array().deserialize("t", data) is data


@pytest.mark.parametrize("buffer", [bytearray(b"ab"), memoryview(b"ab"), b"ab"])
def test_buffers_are_copied_when_written(buffer):
    """Any buffer is written as bytes, so that a later change to it does not reach the record."""
    assert Serdes.byte_buffer().serialize("t", buffer) == b"ab"
    assert type(Serdes.byte_array().serialize("t", buffer)) is bytes
    assert Serdes.byte_buffer().deserialize("t", b"ab") == memoryview(b"ab")


@pytest.mark.parametrize(
    ("serde", "wrong"),
    [
        (Serdes.string(), 7),
        (Serdes.string(), b"x"),
        (Serdes.bytes(), "x"),
        (Serdes.byte_buffer(), [1]),
        (Serdes.short(), "1"),
        (Serdes.integer(), 1.0),
        (Serdes.long(), "1"),
        (Serdes.float(), "1.0"),
        (Serdes.double(), "1.0"),
        (Serdes.boolean(), 1),
        (Serdes.uuid(), "9a4bc05b-acb1-c0c4-50b4-18c9be3ae05e"),
        (Serdes.void(), 0),
    ],
    ids=repr,
)
def test_a_wrong_type_is_named(serde, wrong):
    """Data of another type is refused, and the message names its type, the serde and the topic."""
    with pytest.raises(SerializationError) as caught:
        serde.serialize("orders", wrong)
    message = str(caught.value)
    assert type(wrong).__name__ in message
    assert repr(serde) in message
    assert "'orders'" in message


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (Serdes.short(), b"\0"),
        (Serdes.short(), b"\0\0\0"),
        (Serdes.integer(), b"\0\0\0"),
        (Serdes.long(), b""),
        (Serdes.long(), bytes(9)),
        (Serdes.float(), bytes(3)),
        (Serdes.double(), bytes(7)),
        (Serdes.boolean(), b""),
        (Serdes.boolean(), b"\x02"),
        (Serdes.uuid(), b"not a uuid"),
        (Serdes.uuid(), b"\xff" * 36),
        (Serdes.void(), b"\0"),
    ],
    ids=repr,
)
def test_bytes_of_another_format_are_refused(serde, data):
    """Truncated or oversized bytes are an error that tells how many there were."""
    with pytest.raises(SerializationError, match=f"got {len(data)} bytes from topic 'orders'"):
        serde.deserialize("orders", data)


def test_immutable_values_may_be_shared():
    """Serdes of immutable values let caches keep and hand out the object itself; those of mutable ones do not."""
    assert all(serde.shareable for serde in (Serdes.string(), Serdes.long(), Serdes.bytes(), Serdes.uuid()))
    assert not Serdes.json().shareable
    assert not Serdes.list(Serdes.long()).shareable


@pytest.mark.parametrize(
    ("kind", "serde"),
    [(str, Serdes.string()), (int, Serdes.long()), (float, Serdes.double()), (uuid.UUID, Serdes.uuid())],
)
def test_python_types_have_a_serde(kind, serde):
    """`serde_from` gives the serde whose range is that of the Python type."""
    assert Serdes.serde_from(kind) is serde
