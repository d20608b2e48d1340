"""Changes on tables' repartition topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SerializationError
from millrace.records import Change
from millrace.serdes import ChangeSerde, Serdes
from millrace.serdes.varint import decode_varint, encode_varint

SERDE = ChangeSerde(Serdes.string())
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.none() | TEXTS, st.none() | TEXTS)
def test_changes_survive(new, old):
    """Any combination of values is read back; a change without values cannot be written."""
    if new is None and old is None:
        with pytest.raises(SerializationError, match="neither"):
            SERDE.serialize("t", Change(new, old))
        return
    assert SERDE.deserialize("t", SERDE.serialize("t", Change(new, old))) == Change(new, old)


@pytest.mark.parametrize(
    ("change", "expected"),
    [(Change("n", None), "6e01"), (Change(None, "o"), "6f00"), (Change("n", "o"), "026e6f02")],
)
def test_the_flag_tells_which_values_are_there(change, expected):
    """The last byte is 0 for the old value alone, 1 for the new one, and 2 for both, which start with the new one's length."""
    assert SERDE.serialize("t", change).hex() == expected


@pytest.mark.parametrize(
    ("data", "change"),
    [
        ("6f0103", Change(None, "o", is_latest=True)),
        ("6e0004", Change("n", None, is_latest=False)),
        ("026e6f0105", Change("n", "o", is_latest=True)),
        ("026e6f0005", Change("n", "o", is_latest=False)),
    ],
)
def test_records_that_tell_whether_they_are_the_latest_are_read(data, change):
    """Flags 3 to 5, which newer writers may use, have one more byte."""
    assert SERDE.deserialize("t", bytes.fromhex(data)) == change


def test_both_values_in_one_record_are_refused_during_an_upgrade():
    """With upgrade.from 3.4 or older, two records must be sent."""
    serde = ChangeSerde(Serdes.string(), allow_both=False)
    assert serde.serialize("t", Change("n", None)) == b"n\x01"
    with pytest.raises(SerializationError, match=r"upgrade\.from"):
        serde.serialize("t", Change("n", "o"))


@pytest.mark.parametrize("data", ["", "6e06", "03", "02", "8080808080808002", "0a6e02", "016e02"])
def test_damaged_changes_are_refused(data):
    """A missing or unknown flag, and lengths that are negative, endless or too long, are errors."""
    with pytest.raises(SerializationError, match="'t'"):
        SERDE.deserialize("t", bytes.fromhex(data))


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3))
def test_varints_survive(number, tail):
    """Every 32-bit number is read back, and reading stops where the number ends."""
    encoded = encode_varint(number)
    assert decode_varint(encoded + tail) == (number, len(encoded))


def test_what_is_not_a_change_is_refused():
    """The error for a bare value names its type."""
    with pytest.raises(SerializationError, match="given int"):
        SERDE.serialize("t", 7)


def test_bits_beyond_the_32nd_of_a_varint_are_ignored_as_in_java():
    """Five bytes have room for three more, which Java shifts out."""
    assert decode_varint(bytes.fromhex("ffffffff7f")) == decode_varint(bytes.fromhex("ffffffff0f")) == (-(2**31), 5)
