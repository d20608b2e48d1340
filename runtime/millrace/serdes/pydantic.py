"""Pydantic models as JSON: validated when read, so that a topology never sees a malformed value."""

# ruff: noqa: ARG002 (most serdes need neither topic nor headers; the interface has them for those that do)
from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from millrace.errors import SerializationError
from millrace.records import NO_HEADERS, Headers
from millrace.serdes.base import Serde
from millrace.serdes.primitives import reject_data

M = TypeVar("M", bound=BaseModel)


class PydanticSerde(Serde[M], Generic[M]):
    """Instances of one model, written as JSON under the fields' aliases and in the order of the fields.

    Args:
        model: the model class; instances of subclasses are written with the model's own fields.
        shareable: say True for a frozen model whose fields are immutable too; the record cache then hands out its own
            object instead of a fresh one.

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
            return self._dump(data, by_alias=True)
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
