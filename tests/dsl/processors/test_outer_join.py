"""Left and outer joins of two streams."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dsl.processors.support import Pipeline, Running, Sent

from millrace.dsl.processors.stateless import pass_through
from millrace.dsl.processors.stream_join import stream_join
from millrace.dsl.windows import JoinWindows
from millrace.errors import FailedProcessingError
from millrace.processor.handlers import LogAndContinueProcessingExceptionHandler
from millrace.records import Headers
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.state.outer_join_store import OuterJoinStoreBuilder

WINDOWS = JoinWindows.of_time_difference_and_grace(10, 5)
AT_ONCE = {"__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": 0}


def slash(_key: str, left: str | None, right: str | None) -> str:
    """Join two values."""
    if "bad" in (left, right):
        raise ValueError("no good")
    return f"{left}/{right}"


def window_store(name: str, windows: JoinWindows) -> Any:
    """Return the builder of one side's store."""
    retention = windows.size_ms + windows.grace_ms
    supplier = Stores.persistent_window_store(name, retention, windows.size_ms, retain_duplicates=True)
    return Stores.window_store_builder(supplier, Serdes.string(), Serdes.string())


def pipeline(kind: str, windows: JoinWindows = WINDOWS) -> Pipeline:
    """Return a left or outer join of topics `left` and `right`."""
    join = stream_join(
        windows=windows,
        joiner=slash,
        left_store_name="l",
        right_store_name="r",
        outer_store_name="o",
        left_outer=True,
        right_outer=kind == "outer",
    )
    outer_store = OuterJoinStoreBuilder(
        Stores.persistent_key_value_store("o"), Serdes.string(), Serdes.string(), Serdes.string()
    )
    return (
        Pipeline()
        .source("left")
        .source("right")
        .node("keep-left", join.left_window, "left")
        .node("keep-right", join.right_window, "right")
        .node("join-left", join.left, "keep-left")
        .node("join-right", join.right, "keep-right")
        .node("merge", pass_through(), "join-left", "join-right")
        .store(window_store("l", windows), "keep-left", "join-right")
        .store(window_store("r", windows), "keep-right", "join-left")
        .store(outer_store, "join-left", "join-right")
        .listen_to("merge")
    )


def test_a_record_without_a_partner_is_sent_when_window_and_grace_have_passed() -> None:
    """It has its own timestamp, and the headers of the record that advanced stream time."""
    with Running(pipeline("left"), **AT_ONCE) as task:
        assert task.pipe("left", "k", "a", 100) == []
        assert task.pipe("right", "other", "x", 115) == []
        assert task.pipe("right", "other", "y", 116, [("h", b"1")]) == [
            Sent("k", "a/None", 100, Headers([("h", b"1")])),
        ]
        assert task.pipe("right", "other", "z", 117) == []


def test_a_partner_takes_a_waiting_record_out() -> None:
    """A record that was joined is not emitted again without a match."""
    with Running(pipeline("outer"), **AT_ONCE) as task:
        task.pipe("left", "k", "a", 100)
        assert task.pipe("right", "k", "x", 105) == [Sent("k", "a/x", 105)]
        assert task.pipe("left", "other", "b", 200) == []


def test_only_an_outer_side_keeps_records_without_a_partner() -> None:
    """A left join forgets unmatched records of the right stream; an outer join emits them."""
    for kind, expected in (("left", []), ("outer", [Sent("k", "None/x", 100)])):
        with Running(pipeline(kind), **AT_ONCE) as task:
            task.pipe("right", "k", "x", 100)
            assert task.pipe("left", "other", "a", 200) == expected


def test_all_values_that_wait_under_one_key_and_time_are_sent() -> None:
    """The shared store keeps a list per side, key and timestamp."""
    with Running(pipeline("left"), **AT_ONCE) as task:
        task.pipe("left", "k", "a", 100)
        task.pipe("left", "k", "b", 100)
        assert [s.value for s in task.pipe("left", "other", "c", 200)] == ["a/None", "b/None"]


def test_a_record_that_comes_after_its_window_is_sent_at_once() -> None:
    """There is nothing to wait for if stream time is past its window; the grace period does not matter then."""
    with Running(pipeline("left"), **AT_ONCE) as task:
        task.pipe("right", "other", "x", 111)
        assert task.pipe("left", "k", "late", 100) == [Sent("k", "late/None", 100)]
        assert task.pipe("left", "k", "in time", 101) == []


def test_an_outer_side_joins_records_without_a_key_with_nothing() -> None:
    """KIP-962: they cannot have a match. The other side of a left join drops them; no side accepts null values."""
    with Running(pipeline("left"), **AT_ONCE) as task:
        assert task.pipe("left", None, "a", 1) == [Sent(None, "a/None", 1)]
        assert task.pipe("right", None, "x", 1) == []
        assert task.pipe("left", "k", None, 1) == []
        assert task.dropped == 2


def test_expired_records_are_looked_for_once_per_interval_of_wall_clock() -> None:
    """Checking costs a scan, so it is done every second unless configured otherwise."""
    with Running(pipeline("left"), now_ms=5_000) as task:
        task.pipe("left", "k", "a", 100)
        task.pipe("left", "k", "b", 200)
        task.now_ms = 5_999
        assert task.pipe("left", "k", "c", 300) == []
        task.now_ms = 6_000
        assert [s.value for s in task.pipe("left", "k", "d", 400)] == ["a/None", "b/None", "c/None"]


def test_each_side_of_an_asymmetric_window_waits_for_its_own_time() -> None:
    """A left record waits `after` for later right ones, a right record waits `before` for later left ones."""
    windows = JoinWindows.of_time_difference_with_no_grace(0).before(100).after(10)
    with Running(pipeline("outer", windows), **AT_ONCE) as task:
        task.pipe("right", "r", "x", 1_000)
        task.pipe("left", "l", "a", 1_000)
        assert [s.value for s in task.pipe("left", "other", "b", 1_011)] == ["a/None"]
        assert [s.value for s in task.pipe("left", "other", "c", 1_101)] == ["None/x", "b/None"]


def test_a_failing_joiner_is_reported_with_its_node() -> None:
    """Exceptions of user code go to the processing exception handler, which may skip the record."""
    with Running(pipeline("left"), **AT_ONCE) as task:
        task.pipe("left", "k", "a", 1)
        with pytest.raises(FailedProcessingError, match="node join-right failed"):
            task.pipe("right", "k", "bad", 1)
    handler: dict[str, Any] = {"processing.exception.handler": LogAndContinueProcessingExceptionHandler}
    with Running(pipeline("left"), **AT_ONCE, **handler) as task:
        task.pipe("left", "k", "a", 1)
        assert task.pipe("right", "k", "bad", 1) == []
        assert task.dropped == 1


RECORDS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("km"), st.integers(min_value=0, max_value=3)),
    max_size=15,
)


@given(RECORDS)
@settings(max_examples=100)
def test_every_record_gives_results_with_all_partners_or_one_without(records: list[tuple[str, str, int]]) -> None:
    """If stream time never goes back, an outer join is complete, and never emits a superfluous result."""
    time = 0
    numbered = []
    for index, (topic, key, step) in enumerate(records):
        time += step * 4
        numbered.append((topic, key, str(index), time))
    lefts = [record for record in numbered if record[0] == "left"]
    rights = [record for record in numbered if record[0] == "right"]
    expected: Counter[tuple[str, str]] = Counter()
    for _, key, left, left_time in lefts:
        partners = [r for _, other, r, right_time in rights if other == key and abs(left_time - right_time) <= 10]
        expected.update((key, f"{left}/{right}") for right in partners or [None])
    for _, key, right, right_time in rights:
        if not any(other == key and abs(left_time - right_time) <= 10 for _, other, _, left_time in lefts):
            expected[key, f"None/{right}"] += 1
    with Running(pipeline("outer"), **AT_ONCE) as task:
        found = [sent for topic, key, value, at in numbered for sent in task.pipe(topic, key, value, at)]
        found += task.pipe("left", "end", "end", time + 1_000)
    assert Counter((sent.key, sent.value) for sent in found) == expected
