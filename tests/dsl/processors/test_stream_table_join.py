"""Joins of a stream with a table."""

from __future__ import annotations

from typing import Any

import pytest
from tests.dsl.processors.support import Pipeline, Running, Sent

from millrace.dsl.processors.stream_table_join import StreamTableJoin
from millrace.dsl.processors.table_operators import TableSourceProcessor
from millrace.errors import FailedProcessingError
from millrace.records import Headers
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.state.grace_buffer import GraceBufferBuilder


def described(key: str | None, value: str, found: str | None) -> str:
    """Join, showing the joiner's arguments."""
    if value == "bad":
        raise ValueError("no good")
    return f"{key}:{value}/{found}"


def pipeline(*, left: bool = False, grace_ms: int | None = None) -> Pipeline:
    """Return a join of topic `stream` with table `table`, with buffer `b` if there is a grace period."""
    table = TableSourceProcessor("t", materialized=True, on_materialize=lambda: None)
    buffer_name = None if grace_ms is None else "b"
    join = StreamTableJoin(view=table.view(), joiner=described, left=left, buffer_name=buffer_name)
    store = Stores.timestamped_key_value_store_builder(
        Stores.persistent_timestamped_key_value_store("t"), Serdes.string(), Serdes.string()
    )
    built = (
        Pipeline()
        .source("stream")
        .source("table")
        .node("t", table, "table")
        .node("join", join, "stream")
        .store(store, "t", "join")
        .listen_to("join")
    )
    if grace_ms is not None:
        built.store(GraceBufferBuilder("b", Serdes.string(), Serdes.string(), grace_ms=grace_ms), "join")
    return built


def test_a_record_is_joined_with_the_value_the_table_has_when_it_comes() -> None:
    """Only records of the stream have results; later updates of the table do not. Timestamp and headers are the record's."""
    with Running(pipeline()) as task:
        task.pipe("table", "k", "v1", 50)
        assert task.pipe("stream", "k", "a", 10, [("h", b"1")]) == [Sent("k", "k:a/v1", 10, Headers([("h", b"1")]))]
        assert task.pipe("table", "k", "v2", 60) == []
        assert task.pipe("stream", "k", "b", 20) == [Sent("k", "k:b/v2", 20)]


def test_an_inner_join_sends_nothing_without_a_match() -> None:
    """A record without a match is neither an error nor counted as dropped."""
    with Running(pipeline()) as task:
        task.pipe("table", "k", "v", 1)
        task.pipe("table", "k", None, 2)
        assert task.pipe("stream", "k", "a", 3) == []
        assert task.dropped == 0


def test_a_left_join_sends_records_without_a_match() -> None:
    """The joiner gets None as the table's value."""
    with Running(pipeline(left=True)) as task:
        assert task.pipe("stream", "k", "a", 1) == [Sent("k", "k:a/None", 1)]


def test_a_left_join_joins_records_without_a_key_with_nothing() -> None:
    """KIP-962: they are no longer dropped. An inner join still drops them."""
    with Running(pipeline(left=True)) as task:
        assert task.pipe("stream", None, "a", 1) == [Sent(None, "None:a/None", 1)]
        assert task.dropped == 0
    with Running(pipeline()) as task:
        assert task.pipe("stream", None, "a", 1) == []
        assert task.dropped == 1


@pytest.mark.parametrize("kind", ["inner", "left"])
def test_records_without_a_value_are_dropped(kind: str) -> None:
    """There is nothing to join."""
    with Running(pipeline(left=kind == "left")) as task:
        task.pipe("table", "k", "v", 1)
        assert task.pipe("stream", "k", None, 1) == []
        assert task.dropped == 1


def test_with_a_grace_period_records_wait_for_the_table() -> None:
    """KIP-923: the look-up happens when stream time has passed the record by the grace period; its context is its own."""
    with Running(pipeline(left=True, grace_ms=100)) as task:
        assert task.pipe("stream", "k", "a", 1_000, [("h", b"1")]) == []
        task.pipe("table", "k", "v", 1_000)
        assert task.pipe("stream", "other", "b", 1_099) == []
        assert task.pipe("stream", "other", "c", 1_100) == [Sent("k", "k:a/v", 1_000, Headers([("h", b"1")]))]


def test_with_a_grace_period_late_records_and_those_without_a_key_do_not_wait() -> None:
    """Records that are later than the grace period are joined at once; without a key there is nothing to wait for."""
    with Running(pipeline(left=True, grace_ms=100)) as task:
        task.pipe("stream", "k", "a", 1_000)
        assert task.pipe("stream", "k", "late", 899) == [Sent("k", "k:late/None", 899)]
        assert task.pipe("stream", None, "b", 1_000) == [Sent(None, "None:b/None", 1_000)]
        assert task.pipe("stream", "k", None, 1_000) == []
        assert task.dropped == 1


def test_a_failing_joiner_is_reported_with_its_node() -> None:
    """Exceptions of user code go to the processing exception handler, which may skip the record."""
    with Running(pipeline(left=True)) as task, pytest.raises(FailedProcessingError, match="node join failed"):
        task.pipe("stream", "k", "bad", 1)


def test_a_join_names_the_stores_it_needs() -> None:
    """The graph connects them to the node."""
    view = TableSourceProcessor("t", materialized=True, on_materialize=lambda: None).view()
    arguments: dict[str, Any] = {"view": view, "joiner": described, "left": True}
    assert StreamTableJoin(**arguments).store_names == ("t",)
    assert StreamTableJoin(**arguments, buffer_name="b").store_names == ("t", "b")
