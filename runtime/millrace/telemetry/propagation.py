"""Trace context in record headers, by the propagators that `OTEL_PROPAGATORS` names (W3C trace context unless set)."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter

from millrace.records import Headers

__all__ = ["extract_context", "inject_context"]


class _HeadersGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        values = [value.decode("utf-8", "replace") for value in carrier.all(key) if value is not None]
        # A record that passed through several traced programs may have gathered several; the last is the newest.
        return values[-1:] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


class _PairsSetter(Setter[dict[str, str]]):
    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        carrier[key] = value


_getter = _HeadersGetter()
_setter = _PairsSetter()


def extract_context(headers: Headers) -> Context:
    """Return the context that the producer of a record put into its headers; empty if there is none."""
    return propagate.extract(headers, context=Context(), getter=_getter)


def inject_context(headers: Headers, context: Context) -> Headers:
    """Return headers that carry a context, in place of one they may have brought along from the input record.

    Headers are returned as they are when there is nothing to put in.
    """
    added: dict[str, str] = {}
    propagate.inject(added, context=context, setter=_setter)
    if not added:
        return headers
    return Headers((*_without(headers, propagate.get_global_textmap().fields), *_encoded(added)))


def _without(headers: Headers, names: set[str]) -> Iterable[tuple[str, bytes | None]]:
    return (pair for pair in headers if pair[0] not in names)


def _encoded(added: dict[str, str]) -> Iterable[tuple[str, bytes]]:
    return ((name, value.encode()) for name, value in added.items())
