"""JSON, of plain values and of pydantic models: compact UTF-8 text, the same bytes for the same value on every run."""

# ruff: noqa: ARG002 (most serdes need neither topic nor headers; the interface has them for those that do)
from __future__ import annotations

import json
from typing import Any, Generic, NoReturn, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from millrace.errors import SerializationError
from millrace.records import NO_HEADERS, Headers
from millrace.serdes.base import Serde
from millrace.serdes.primitives import reject_data

T = TypeVar("T")

_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_dumps_sorted = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_loads = json.JSONDecoder(parse_constant=_reject_constant).decode


class JsonSerde(Serde[T], Generic[T]):
    """Values as JSON without spaces, UTF-8 unescaped.

    Args:
        type_: what to read into: any type pydantic can validate (a dataclass, `list[int]`, a TypedDict). Without it JSON's
            own types are returned: dict, list, str, int, float, bool.
        sort_keys: write object keys in order. Use it for keys of records: equal objects must have equal bytes to be in the
            same partition.
        shareable: tells caches that the values are never changed in place.

    >>> JsonSerde().serialize("orders", {"id": 7, "total": 1.5})
    b'{"id":7,"total":1.5}'
    """

    def __init__(self, type_: type[T] | None = None, *, sort_keys: bool = False, shareable: bool = False) -> None:
        self.type = type_
        self.shareable = shareable
        self._adapter: TypeAdapter[T] | None = None if type_ is None else TypeAdapter(type_)
        self._encode = _dumps_sorted if sort_keys else _dumps

    def serialize(self, topic: str, data: T, headers: Headers = NO_HEADERS) -> bytes:
        """Return the JSON text; NaN and infinities, which JSON does not have, are refused."""
        try:
            plain: Any = data
            if self._adapter is not None:
                plain = self._adapter.dump_python(data, mode="json", by_alias=True, warnings="error")
            return self._encode(plain).encode()
        except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
            expected = "JSON types" if self.type is None else f"what {self.type!r} describes"
            reject_data(self, topic, data, f"{expected} [{error}]", error)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> T:
        """Return the object, validated if a type was given."""
        try:
            if self._adapter is not None:
                return self._adapter.validate_json(data)
            return _loads(data.decode())  # type: ignore[no-any-return]
        except (ValidationError, ValueError, RecursionError) as error:
            raise SerializationError(f"{self!r} cannot read {len(data)} bytes from topic {topic!r}: {error}") from error

    def __repr__(self) -> str:
        return "JsonSerde()" if self.type is None else f"JsonSerde({getattr(self.type, '__name__', self.type)})"


M = TypeVar("M", bound=BaseModel)


class PydanticSerde(Serde[M], Generic[M]):
    """Instances of one model, written as JSON under the fields' aliases and in the order of the fields.

    Args:
        model: the model class; instances of subclasses are written with the model's own fields.
        shareable: True for a frozen model whose fields are immutable too; the record cache then returns its own object
            instead of a fresh one.

    >>> class Order(BaseModel):
    ...     id: int
    >>> PydanticSerde(Order).serialize("orders", Order(id=7))
    b'{"id":7}'
    """

    def __init__(self, model: type[M], *, shareable: bool = False) -> None:
        self.model = model
        self.shareable = shareable
        adapter = TypeAdapter(model)
        self._dump, self._validate = adapter.dump_json, adapter.validate_json

    def serialize(self, topic: str, data: M, headers: Headers = NO_HEADERS) -> bytes:
        """Return the model as JSON."""
        if not isinstance(data, self.model):
            reject_data(self, topic, data, self.model.__qualname__)
        try:
            return self._dump(data, by_alias=True, warnings="error")
        except PydanticSerializationError as error:
            reject_data(self, topic, data, self.model.__qualname__, error)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> M:
        """Return the model, validated."""
        try:
            return self._validate(data)
        except ValidationError as error:
            raise SerializationError(f"{self!r} cannot read {len(data)} bytes from topic {topic!r}: {error}") from error

    def __repr__(self) -> str:
        return f"PydanticSerde({self.model.__name__})"
