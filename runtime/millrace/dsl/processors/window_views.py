"""How other nodes look up values of tables that are kept by window or session."""

from __future__ import annotations

from typing import Any

from millrace.dsl.processors.tables import Found, ValueGetter, View
from millrace.processor.node import NodeContext
from millrace.records import ValueAndTimestamp, Windowed


def window_view(store_name: str) -> View:
    """Return the look-up of a table kept in a window store; its keys are `Windowed`."""

    def open_view(node: NodeContext) -> ValueGetter:
        fetch = node.state_store(store_name).fetch

        def get(key: Windowed[Any]) -> Found:
            found: Found = fetch(key.key, key.window.start)
            return found

        return ValueGetter(get)

    return View((store_name,), open_view)


def session_view(store_name: str) -> View:
    """Return the look-up of a table kept in a session store; its keys are `Windowed`."""

    def open_view(node: NodeContext) -> ValueGetter:
        fetch_session = node.state_store(store_name).fetch_session

        def get(key: Windowed[Any]) -> Found:
            start, end = key.window
            value = fetch_session(key.key, start, end)
            return None if value is None else ValueAndTimestamp(value, end)

        return ValueGetter(get)

    return View((store_name,), open_view)
