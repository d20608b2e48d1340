"""JSON and pydantic serdes: deterministic bytes, validation, errors."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, Strict

from millrace.errors import ConfigError, SerializationError
from millrace.serdes import JsonSerde, PydanticSerde, Serdes

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@dataclass
class Point:
    """A plain dataclass."""

    x: int
    y: int


class Order(BaseModel):
    """A model with an alias."""

    number: int = Field(alias="orderNumber")
    note: str = ""


class RushOrder(Order):
    """A model with an additional field."""

    hours: int = 1


@given(JSON_VALUES.filter(lambda value: value is not None))
def test_json_values_survive(value):
    """Every JSON value is read back unchanged."""
    value_bytes = Serdes.json().serialize("t", value) if _encodable(value) else None
    if value_bytes is not None:
        assert Serdes.json().deserialize("t", value_bytes) == value


def _encodable(value):
    try:
        str(value).encode()
        repr(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def test_json_is_compact_and_unescaped():
    """There are no spaces, and no escapes for what UTF-8 can represent, so equal values have equal bytes."""
    assert Serdes.json().serialize("t", {"b": "ä", "a": [1, None]}) == '{"b":"ä","a":[1,null]}'.encode()


def test_sorted_keys_make_equal_objects_equal_bytes():
    """With `sort_keys`, insertion order does not affect the bytes, which matters for record keys."""
    serde = Serdes.json(sort_keys=True)
    assert serde.serialize("t", {"b": 1, "a": 2}) == serde.serialize("t", {"a": 2, "b": 1})


def test_a_type_is_validated_and_built():
    """With a type, JSON is read into that type; the error for data that does not match says where."""
    serde = JsonSerde(Point)
    assert serde.deserialize("t", serde.serialize("t", Point(1, 2))) == Point(1, 2)
    with pytest.raises(SerializationError, match=r"(?s)points.*y"):
        serde.deserialize("points", b'{"x":1}')


@pytest.mark.parametrize(
    "value", [{1, 2}, float("nan"), float("inf"), object(), "\ud800"], ids=["set", "nan", "inf", "object", "surrogate"]
)
def test_what_json_cannot_say_is_refused(value):
    """Sets, NaN, foreign objects and lone surrogates are errors, and are not approximated."""
    with pytest.raises(SerializationError):
        Serdes.json().serialize("t", value)


def test_a_type_of_models_is_written_under_their_aliases():
    """As one model is: otherwise it could not be read back."""
    serde = JsonSerde(list[Order])
    data = serde.serialize("t", [Order(orderNumber=1)])
    assert data == b'[{"orderNumber":1,"note":""}]'
    assert serde.deserialize("t", data) == [Order(orderNumber=1)]


def test_a_strict_type_is_read_from_its_json():
    """A strict type takes the form that JSON has for it, such as text for a time."""
    serde = JsonSerde(Annotated[datetime, Strict()])
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert serde.deserialize("t", serde.serialize("t", now)) == now


def test_nesting_beyond_the_interpreters_limit_is_refused():
    """It is an error as any other, for which there are handlers, when written and when read."""
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(SerializationError, match="recursion"):
        Serdes.json().serialize("t", nested)
    with pytest.raises(SerializationError, match="recursion"):
        Serdes.json().deserialize("t", b"[" * 100_000)


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":1}x', b"\xff", b"[1,", b"NaN", b"[-Infinity]"])
def test_text_that_is_not_json_is_refused(data):
    """Truncated text, trailing text and numbers that JSON does not have are errors that name the topic."""
    with pytest.raises(SerializationError, match="'orders'"):
        Serdes.json().deserialize("orders", data)


@given(st.integers(), st.text(st.characters(exclude_categories=["Cs"])))
def test_models_survive(number, note):
    """A model that is read back equals the one that was written."""
    serde = PydanticSerde(Order)
    order = Order(orderNumber=number, note=note)
    assert serde.deserialize("t", serde.serialize("t", order)) == order


def test_models_are_written_under_their_aliases():
    """Fields are written under their aliases, in order."""
    assert PydanticSerde(Order).serialize("t", Order(orderNumber=1)) == b'{"orderNumber":1,"note":""}'


def test_a_subclass_is_written_as_the_model():
    """Fields that only the subclass has are not written."""
    data = PydanticSerde(Order).serialize("t", RushOrder(orderNumber=1))
    assert data == b'{"orderNumber":1,"note":""}'


def test_a_value_of_another_model_is_refused():
    """The error names both types."""
    with pytest.raises(SerializationError, match=r"writes Order, but was given dict"):
        PydanticSerde(Order).serialize("t", {"orderNumber": 1})


def test_a_model_with_a_field_of_another_type_is_refused():
    """A field that was assigned without validation is not written: nobody could read it."""
    order = Order(orderNumber=1)
    order.number = "one"
    with pytest.raises(SerializationError, match="writes Order"):
        PydanticSerde(Order).serialize("t", order)


def test_bytes_that_do_not_validate_are_refused():
    """The error names a missing field."""
    with pytest.raises(SerializationError, match="orderNumber"):
        PydanticSerde(Order).deserialize("t", b"{}")


def test_models_have_a_serde_by_type():
    """`serde_from` knows models; the error for an unknown type lists the known ones."""
    assert isinstance(Serdes.serde_from(Order), PydanticSerde)
    with pytest.raises(ConfigError, match="pydantic models"):
        Serdes.serde_from(complex)
