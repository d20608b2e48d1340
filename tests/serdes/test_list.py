"""Lists: round trips in both layouts, and damaged bytes."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SerializationError
from millrace.serdes import ListSerde, Serdes

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
LONGS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.none() | TEXTS))
def test_lists_of_variable_size_survive(items):
    """Items with their own lengths are read back, including nulls."""
    serde = Serdes.list(Serdes.string())
    assert serde.deserialize("t", serde.serialize("t", items)) == items


@given(st.lists(st.none() | LONGS))
def test_lists_of_fixed_size_survive(items):
    """Items without lengths are read back, with nulls in place."""
    serde = Serdes.list(Serdes.long())
    assert serde.deserialize("t", serde.serialize("t", items)) == items


@given(st.lists(st.none() | st.lists(st.none() | LONGS)))
def test_lists_nest(items):
    """A list may contain lists."""
    serde = Serdes.list(Serdes.list(Serdes.long()))
    assert serde.deserialize("t", serde.serialize("t", items)) == items


def test_tuples_are_read_when_asked_for():
    """With `tuple` as the container the value is immutable and can therefore be shared."""
    serde = ListSerde(Serdes.string(), tuple)
    assert serde.deserialize("t", serde.serialize("t", ("a", None))) == ("a", None)
    assert serde.shareable


def test_a_deque_is_a_list_too_but_text_is_not():
    """Ordered containers are written; a string is refused, as its items would be its letters."""
    serde = Serdes.list(Serdes.string())
    assert serde.serialize("t", deque(["a"])) == serde.serialize("t", ["a"])
    with pytest.raises(SerializationError, match="given str"):
        serde.serialize("t", "abc")


@pytest.mark.parametrize("items", [["a", None, "bcd"], [], [None]])
def test_every_truncation_of_texts_is_noticed(items):
    """A list truncated anywhere is an error, never a shorter list."""
    serde = Serdes.list(Serdes.string())
    data = serde.serialize("t", items)
    for length in range(len(data)):
        with pytest.raises(SerializationError, match="'t'"):
            serde.deserialize("t", data[:length])


@pytest.mark.parametrize("items", [[1, None, 2], [None, None]])
def test_every_truncation_of_numbers_is_noticed(items):
    """A list of fixed-size items truncated anywhere is an error."""
    serde = Serdes.list(Serdes.long())
    data = serde.serialize("t", items)
    for length in range(len(data)):
        with pytest.raises(SerializationError, match="'t'"):
            serde.deserialize("t", data[:length])


@pytest.mark.parametrize("data", ["017fffffff", "01ffffffff", "007fffffff", "0000000000 7fffffff", "02 00000000"])
def test_absurd_counts_are_refused_before_memory_is_used(data):
    """A count that the bytes cannot hold, a negative one, and an unknown flag are errors."""
    with pytest.raises(SerializationError):
        Serdes.list(Serdes.long()).deserialize("t", bytes.fromhex(data))


def test_fixed_layout_needs_an_inner_serde_of_fixed_size():
    """Bytes of numbers cannot be read as texts, because the layout does not contain their lengths."""
    data = Serdes.list(Serdes.long()).serialize("t", [1])
    with pytest.raises(SerializationError, match="fixed-size"):
        Serdes.list(Serdes.string()).deserialize("t", data)


def test_a_null_that_is_named_twice_is_one():
    """The items begin after all indexes of nulls, as many as there are."""
    data = bytes.fromhex("00 00000002 00000000 00000000 00000002 00000007")
    assert ListSerde(Serdes.integer()).deserialize("t", data) == [None, 7]
