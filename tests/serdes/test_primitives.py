"""Serdes of single values: round trips, ranges and what they refuse."""

import math
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SerializationError
from millrace.serdes import Serdes, StringSerde
from millrace.serdes.primitives import c_decoder, c_encoder

INTEGERS = [(Serdes.short(), 2), (Serdes.integer(), 4), (Serdes.long(), 8)]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives(text):
    """Any text without lone surrogates is read back as written."""
    serde = Serdes.string()
    assert serde.deserialize("t", serde.serialize("t", text)) == text


def test_malformed_utf8_is_replaced_as_in_java():
    """Bytes that are not UTF-8 become U+FFFD and do not stop the topology."""
    assert Serdes.string().deserialize("t", b"a\xff\xe2\x82z") == "a\ufffd\ufffdz"


@pytest.mark.parametrize(
    ("data", "characters"),
    [
        ("eda0bdedb880", 2),
        ("eda0bd", 1),
        ("eda0", 1),
        ("ed", 1),
        ("edbf", 1),
        ("ed80", 1),
        ("e2eda080", 2),
        ("f090edb880", 2),
        ("eda080bf", 2),
        ("edc0", 2),
        ("e08080", 3),
        ("e282", 1),
        ("f0908d", 1),
        ("f0808080", 4),
        ("f4908080", 4),
        ("c080", 2),
        ("f8888080", 4),
    ],
)
def test_as_many_characters_are_replaced_as_in_java(data, characters):
    """What OpenJDK 17's decoder made of these bytes; it takes the bytes of a surrogate for one character."""
    assert Serdes.string().deserialize("t", bytes.fromhex("41" + data)) == "A" + "\ufffd" * characters
    assert Serdes.string().deserialize("t", bytes.fromhex(data + "41")) == "\ufffd" * characters + "A"


def test_a_lone_surrogate_cannot_be_written():
    """A lone surrogate has no UTF-8 form; the error says so, and no question mark is written instead."""
    with pytest.raises(SerializationError, match="surrogates not allowed"):
        Serdes.string().serialize("t", "\ud800")


@pytest.mark.parametrize(("serde", "size"), INTEGERS, ids=repr)
@given(data=st.data())
def test_integers_survive_within_their_range(serde, size, data):
    """Every number that fits the serde's width is read back unchanged."""
    number = data.draw(st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1))
    assert serde.deserialize("t", serde.serialize("t", number)) == number


@pytest.mark.parametrize(("serde", "size"), INTEGERS, ids=repr)
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_beyond_their_range_are_refused(serde, size, sign):
    """A number that does not fit is an error that names the topic and the range; it does not wrap around."""
    too_big = 2 ** (8 * size - 1) if sign == 1 else -(2 ** (8 * size - 1)) - 1
    with pytest.raises(SerializationError, match=rf"2\*\*{8 * size - 1}.*'orders'"):
        serde.serialize("orders", too_big)


@given(st.floats(allow_nan=False))
def test_doubles_survive(number):
    """Every double except NaN is read back unchanged, including its sign."""
    serde = Serdes.double()
    copy = serde.deserialize("t", serde.serialize("t", number))
    assert struct.pack(">d", copy) == struct.pack(">d", number)


def test_every_nan_is_written_as_javas():
    """NaNs with a sign or payload are written as 7ff8000000000000, as in Java."""
    odd_nan = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    data = Serdes.double().serialize("t", odd_nan)
    assert data.hex() == "7ff8000000000000"
    assert math.isnan(Serdes.double().deserialize("t", data))


@given(st.floats(width=32, allow_nan=False))
def test_singles_survive(number):
    """Every single-precision number is read back unchanged."""
    serde = Serdes.float()
    assert serde.deserialize("t", serde.serialize("t", number)) == number


def test_a_double_beyond_single_precision_is_refused():
    """A float that would overflow to infinity is an error."""
    with pytest.raises(SerializationError, match="single precision"):
        Serdes.float().serialize("t", 1e300)


@given(st.uuids())
def test_uuids_survive(value):
    """UUIDs are written as 36 characters and read back unchanged."""
    data = Serdes.uuid().serialize("t", value)
    assert len(data) == 36
    assert Serdes.uuid().deserialize("t", data) == value


@given(st.binary())
def test_bytes_pass_through(data):
    """Byte serdes return the object they were given."""
    assert Serdes.bytes().serialize("t", data) is data
    assert Serdes.byte_array().deserialize("t", data) is data


@pytest.mark.parametrize("buffer", [bytearray(b"ab"), memoryview(b"ab"), b"ab"])
def test_buffers_are_copied_when_written(buffer):
    """Any buffer is copied to bytes, so later changes to it do not affect the record."""
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
    """The error names the value's type, the serde and the topic."""
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
    """The error for bytes that are too short or too long has their number."""
    with pytest.raises(SerializationError, match=f"got {len(data)} bytes from topic 'orders'"):
        serde.deserialize("orders", data)


def test_immutable_values_may_be_shared():
    """With serdes of immutable values caches may keep and return the object itself; with others they may not."""
    assert all(serde.shareable for serde in (Serdes.string(), Serdes.long(), Serdes.bytes(), Serdes.uuid()))
    assert not Serdes.json().shareable
    assert not Serdes.list(Serdes.long()).shareable


@pytest.mark.parametrize(
    ("kind", "serde"),
    [(str, Serdes.string()), (int, Serdes.long()), (float, Serdes.double()), (uuid.UUID, Serdes.uuid())],
)
def test_python_types_have_a_serde(kind, serde):
    """`serde_from` returns the serde with the Python type's range."""
    assert Serdes.serde_from(kind) is serde


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12345678-1234-5678-ABCD-123456789abc", "12345678-1234-5678-abcd-123456789abc"),
        ("1-2-3-4-5", "00000001-0002-0003-0004-000000000005"),
        ("1ffffffff-2-3-4-5", "ffffffff-0002-0003-0004-000000000005"),
    ],
)
def test_uuids_are_read_as_java_reads_them(text, number):
    """Any five groups of hexadecimal digits, each cut to its size."""
    assert Serdes.uuid().deserialize("t", text.encode()) == uuid.UUID(number)


@pytest.mark.parametrize(
    "text",
    [
        "12345678123456781234567812345678",
        "urn:uuid:12345678-1234-5678-1234-567812345678",
        "{12345678-1234-5678-1234-567812345678}",
        "1_345678-1234-5678-1234-567812345678",
        "+1-2-3-4-5",
        "1-2-3-4",
        "1-2-3-4-",
        "000000000012345678-1234-5678-1234-567812345678",
        "",
    ],
)
def test_other_texts_are_no_uuids(text):
    """What Python's UUID accepts in addition is refused, as in Java."""
    with pytest.raises(SerializationError, match="a UUID as text"):
        Serdes.uuid().deserialize("t", text.encode())


def test_what_differs_from_itself_is_not_taken_for_nan():
    """Only numbers are written as NaN: an object of another type is refused, however it compares."""

    class Missing:
        def __eq__(self, other):
            return False

        __hash__ = None

    with pytest.raises(SerializationError, match=r"writes float, but was given .*Missing"):
        Serdes.double().serialize("t", Missing())


@pytest.mark.parametrize(
    ("serde", "data"),
    [(Serdes.string(), "grüß"), (Serdes.short(), -2), (Serdes.integer(), 3), (Serdes.long(), 2**40)],
)
def test_what_c_encodes_is_the_same(serde, data):
    """A serde's function in C makes its bytes, and raises for what the serde refuses."""
    encode = c_encoder(serde)
    assert encode(data) == serde.serialize("topic", data)
    with pytest.raises((TypeError, struct.error)):
        encode(1.5)


def test_what_c_decodes_is_the_same():
    """It reads text, and raises for bytes that are not UTF-8, which the serde replaces."""
    decode = c_decoder(Serdes.string())
    assert decode("grüß".encode()) == "grüß"
    with pytest.raises(UnicodeDecodeError):
        decode(b"\xff")


def test_a_serde_of_ones_own_has_no_function_in_c():
    """Not even if it is derived from one that has, or one of its methods is replaced: its own method must be called."""

    class Shouting(StringSerde):
        def serialize(self, topic, data, headers=()):
            return super().serialize(topic, data.upper(), headers)

        def deserialize(self, topic, data, headers=()):
            return super().deserialize(topic, data, headers).lower()

    replaced = StringSerde()
    replaced.serialize = replaced.deserialize = lambda _topic, data, _headers=(): data
    for serde in (Shouting(), replaced, Serdes.byte_array(), Serdes.json()):
        assert (c_encoder(serde), c_decoder(serde)) == (None, None)
    assert c_decoder(Serdes.long()) is None


def test_a_replaced_method_of_a_class_is_called(monkeypatch):
    """As when a library that traces calls wraps the serdes of all its users."""
    for name in ("serialize", "deserialize"):
        monkeypatch.setattr(StringSerde, name, lambda *_args: "other")
    assert (c_encoder(StringSerde()), c_decoder(StringSerde())) == (None, None)
