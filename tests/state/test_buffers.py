"""The buffers of suppressed tables and of joins with a grace period, and the shared store of outer joins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ProcessorStateError
from millrace.records import NO_HEADERS, Change, Headers, RecordContext
from millrace.serdes import Serdes
from millrace.state import ChangelogRecord, Stores
from millrace.state.buffered_records import (
    BufferedChange,
    decode_change,
    decode_logged_change,
    encode_change,
    encode_context,
)
from millrace.state.grace_buffer import GraceBufferBuilder
from millrace.state.outer_join_store import JoinSideKey, LeftOrRightValue, OuterJoinStoreBuilder
from millrace.state.suppression_buffer import NEVER, SuppressionBufferBuilder
from millrace.state.value_formats import pack_long

S = Serdes.string()
HERE = RecordContext("in", 0, 7, 1_000, Headers([("h1", b"v1"), ("h2", None)]))


def suppression() -> SuppressionBufferBuilder:
    """Return the builder of a suppression buffer."""
    return SuppressionBufferBuilder("b", S, S)


def grace(ms: int = 2_000) -> GraceBufferBuilder:
    """Return the builder of a grace buffer."""
    return GraceBufferBuilder("b", S, S, grace_ms=ms)


def waiting() -> OuterJoinStoreBuilder:
    """Return the builder of an outer join's store."""
    return OuterJoinStoreBuilder(Stores.persistent_key_value_store("o"), S, S, S)


def evicted(buffer: Any, until: int = NEVER) -> list[tuple[Any, ...]]:
    """Emit what is due at a time."""
    sent: list[tuple[Any, ...]] = []
    buffer.evict_while(lambda: buffer.min_timestamp <= until, lambda *found: sent.append(found))
    return sent


# Bytes.

CONTEXTS = st.builds(
    RecordContext,
    st.text(max_size=5),
    st.integers(0, 9),
    st.integers(0, 2**40),
    st.integers(-1, 2**40),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3).map(Headers),
)
VALUES = st.none() | st.binary(max_size=5)


@given(st.builds(BufferedChange, CONTEXTS, VALUES, VALUES, VALUES))
def test_a_buffered_change_is_read_as_it_was_written(change: BufferedChange) -> None:
    """Context, prior, old and new value are preserved, and None is not the same as empty."""
    data = encode_change(change)
    assert decode_change(data) == (change, len(data))


def test_a_change_has_the_bytes_that_java_writes() -> None:
    """An old value that equals the prior one is written as the length -2."""
    context = RecordContext("in", 0, 0, 19)
    data = encode_change(BufferedChange(context, pack_long(0), pack_long(0), pack_long(1)))
    assert data.hex() == (
        "0000000000000013000000000000000000000002696e0000000000000000"
        "000000080000000000000000fffffffe000000080000000000000001"
    )  # fmt: skip


@pytest.mark.parametrize("version", [None, b"\x01", b"\x02", b"\x03", "version 3 called 2"])
def test_every_version_of_the_suppression_changelog_can_be_read(version: Any) -> None:
    """Records of old releases are restored; some of these releases wrote version 3 under the number 2."""
    pair = b"\0\0\0\x01o" + b"\0\0\0\x02nn"
    sized = b"\0\0\0\x0b" + pair
    time, context, prior = pack_long(5), encode_context(HERE), b"\0\0\0\x01p"
    data = {
        None: time + pair,
        b"\x01": time + context + sized,
        b"\x02": context + sized + prior + time,
        b"\x03": context + prior + pair + time,
        "version 3 called 2": context + prior + pair + time,
    }[version]
    number = b"\x02" if isinstance(version, str) else version
    for kept, expected in ((None, b"o"), ((b"kept",), b"kept")):
        due, change = decode_logged_change(data, number, HERE, kept)
        assert due == 5
        if version in (None, b"\x01"):
            assert change == BufferedChange(HERE, expected, b"o", b"nn")
        else:
            assert change == BufferedChange(HERE, b"p", b"o", b"nn")


@pytest.mark.parametrize(("data", "version"), [(b"", b"\x03"), (b"\0" * 30, b"\x01"), (b"", b"\x09")])
def test_an_unreadable_changelog_value_is_refused_with_its_place(data: bytes, version: bytes) -> None:
    """The error names version, topic and offset."""
    with pytest.raises(ProcessorStateError, match="at offset 7 of in"):
        decode_logged_change(data, version, HERE, None)


# The buffer of a suppressed table.


def test_a_change_takes_the_place_of_the_one_before_it(task: Any) -> None:
    """It keeps the time of the first change and the prior value from before any change waited; its context is its own."""
    buffer = task.open(suppression())
    buffer.put(100, "k", Change("a", "old"), RecordContext("in", 0, 1, 100))
    buffer.put(200, "k", Change("b", "a"), RecordContext("in", 0, 2, 200))
    assert (buffer.num_records, buffer.min_timestamp) == (1, 100)
    assert buffer.prior_value_for_buffered("k") == (True, ("old", -1))
    assert evicted(buffer) == [("k", Change("b", "a"), RecordContext("in", 0, 2, 200))]
    assert (buffer.num_records, buffer.min_timestamp, buffer.buffer_size) == (0, NEVER, 0)
    assert buffer.prior_value_for_buffered("k") == (False, None)


def test_changes_leave_by_time_and_then_by_key(task: Any) -> None:
    """Eviction stops at the first change that is not due."""
    buffer = task.open(suppression())
    for time, key in ((30, "a"), (10, "z"), (20, "m"), (10, "b")):
        buffer.put(time, key, Change("v", None), HERE)
    assert [key for key, _, _ in evicted(buffer, until=20)] == ["b", "z", "m"]
    assert buffer.min_timestamp == 30


def test_the_changelog_has_the_last_state_of_each_key_at_the_flush(task: Any) -> None:
    """Keys added and removed between flushes leave a tombstone; waiting ones are logged without a timestamp, as version 3."""
    buffer = task.open(suppression())
    buffer.put(10, "k", Change("a", None), HERE)
    buffer.put(10, "k", Change("b", "a"), HERE)
    buffer.put(5, "gone", Change("x", None), HERE)
    evicted(buffer, until=5)
    assert task.log("b") == []
    buffer.flush()
    logged = {record.key: record for record in task.log("b")}
    assert logged[b"gone"][1:3] == (None, None)
    kept = encode_change(BufferedChange(HERE, None, b"a", b"b")) + pack_long(10)
    assert logged[b"k"][1:3] == (kept, None)
    assert logged[b"k"].headers == Headers([("v", b"\x03")])
    buffer.flush()
    assert len(task.log("b")) == 2


def test_keys_to_be_logged_count_as_uncommitted(task: Any) -> None:
    """Also those of changes that were emitted: a task commits before there are too many."""
    buffer = task.open(suppression())
    for number in range(100):
        buffer.put(number, f"{number:04}", Change("a", None), HERE)
    waiting = buffer.uncommitted_bytes()
    assert waiting > 400
    evicted(buffer)
    assert buffer.uncommitted_bytes() == waiting
    task.commit(buffer)
    assert buffer.uncommitted_bytes() == 0


def test_without_a_changelog_nothing_is_to_be_logged(task: Any) -> None:
    """So nothing grows with the number of keys that ever were there."""
    builder = suppression()
    builder.with_logging_disabled()
    buffer = task.open(builder)
    buffer.put(1, "k", Change("a", None), HERE)
    evicted(buffer)
    task.commit(buffer)
    assert (buffer.uncommitted_bytes(), buffer._dirty) == (0, {})


def test_a_restored_buffer_continues_where_the_old_one_stopped(task: Any, make_task: Any) -> None:
    """It is rebuilt from the changelog alone, since it lives only in memory."""
    buffer = task.open(suppression())
    buffer.put(10, "k", Change("a", "p"), HERE)
    buffer.put(20, "l", Change("b", None), HERE)
    buffer.flush()
    evicted(buffer, until=10)
    buffer.flush()
    restored = make_task("other").open(suppression())
    assert restored.committed_offset("any") is None
    restored.restore(task.log("b"))
    assert restored.buffer_size == buffer.buffer_size
    assert restored.min_timestamp == 20
    assert evicted(restored) == [("l", Change("b", None), HERE)]
    assert task.log("b")[0].headers == Headers([("v", b"\x03")])


def test_a_change_whose_sending_fails_stays(task: Any) -> None:
    """It is still there when the task continues."""
    buffer = task.open(suppression())
    buffer.put(10, "k", Change("a", None), HERE)

    def fail(*_: Any) -> None:
        raise ValueError("downstream")

    with pytest.raises(ValueError, match="downstream"):
        buffer.evict_while(lambda: True, fail)
    assert buffer.num_records == 1


# The buffer of a join with a grace period.


def test_records_wait_until_the_grace_period_has_passed(task: Any) -> None:
    """Its bytes in the changelog are Java's; the time that matters is the largest timestamp put so far."""
    buffer = task.open(grace(2_000))
    sent: list[Any] = []
    first = RecordContext("l", 0, 0, 1_500, Headers([("h1", b"v1")]))
    assert buffer.put("a", "x", first)
    buffer.evict(lambda *found: sent.append(found))
    assert sent == []
    assert buffer.put("a", "x", RecordContext("l", 0, 1, 9_000))
    buffer.evict(lambda *found: sent.append(found))
    assert sent == [("a", "x", first)]
    assert [(record.key.hex(), record.value and record.value.hex(), record.timestamp) for record in task.log("b")] == [
        (
            "0000000000000005dc6100000001",
            (
                "00000000000005dc0000000000000000000000016c0000000000000001000000026831000000027631"
                "ffffffffffffffff00000001780000000000000000"
            ),
            None,
        ),
        (
            "0000000000000023286100000002",
            "00000000000023280000000000000001000000016c0000000000000000ffffffffffffffff00000001780000000000000000",
            None,
        ),
        ("0000000000000005dc6100000001", None, None),
    ]
    assert not buffer.put("a", "late", RecordContext("l", 0, 2, 6_999))
    assert buffer.put("a", "just in time", RecordContext("l", 0, 3, 7_000))


def test_waiting_records_leave_in_the_order_of_time(task: Any) -> None:
    """Records with the same time and key leave in order of arrival."""
    buffer = task.open(grace(10))
    for offset, (value, time) in enumerate([("c", 105), ("a", 100), ("b", 100)]):
        buffer.put("k", value, RecordContext("l", 0, offset, time))
    buffer.put("k", "end", RecordContext("l", 0, 9, 200))
    sent: list[Any] = []
    buffer.evict(lambda _key, value, _context: sent.append(value))
    assert sent == ["a", "b", "c"]


@pytest.mark.parametrize("how", ["reopened", "restored"])
def test_waiting_records_survive_a_restart(make_task: Any, how: str) -> None:
    """From disk or from the changelog; new records never overwrite old ones."""
    old = make_task("one")
    buffer = old.open(grace(10))
    old.at(100)
    buffer.put("k", "a", RecordContext("l", 0, 0, 100))
    old.commit(buffer)
    buffer.close()
    new = make_task("one" if how == "reopened" else "two")
    again = new.open(grace(10))
    if how == "restored":
        again.restore(old.log("b"))
    again.put("k", "b", RecordContext("l", 0, 1, 100))
    again.put("k", "end", RecordContext("l", 0, 2, 200))
    sent: list[Any] = []
    again.evict(lambda _key, value, _context: sent.append(value))
    assert sent == ["a", "b"]


# The shared store of an outer join.


def test_records_that_wait_have_javas_bytes(task: Any) -> None:
    """Key, element and list have the layout of formats §4; every change logs the whole list."""
    store = task.open(waiting())
    key = JoinSideKey(1_000, is_left=True, key="a")
    task.at(1_000)
    store.put(key, LeftOrRightValue(is_left=True, value="x"))
    store.put(key, LeftOrRightValue(is_left=True, value="x2"))
    store.put(key, None)
    assert [(r.key.hex(), r.value and r.value.hex(), r.timestamp, r.headers) for r in task.log("o")] == [
        ("00000000000003e80161", "0100000001000000020178", 1_000, NO_HEADERS),
        ("00000000000003e80161", "01000000020000000201780000000301" + "7832", 1_000, NO_HEADERS),
        ("00000000000003e80161", None, 1_000, NO_HEADERS),
    ]
    assert list(store.all()) == []


def test_taking_out_what_does_not_wait_changes_nothing(task: Any) -> None:
    """Most matches never waited, so this must not cost a changelog record."""
    store = task.open(waiting())
    store.take(JoinSideKey(1, is_left=False, key="k"))
    assert task.log("o") == []
    store.put(JoinSideKey(1, is_left=False, key="k"), LeftOrRightValue(is_left=False, value="x"))
    store.take(JoinSideKey(1, is_left=False, key="k"))
    assert len(task.log("o")) == 2


def test_waiting_records_come_by_time_and_right_before_left(make_task: Any) -> None:
    """The scan for expired records relies on this order; a restored store has it too."""
    task = make_task("one")
    store = task.open(waiting())
    expected = []
    for timestamp, is_left, key in ((5, False, "b"), (5, True, "a"), (7, False, "a"), (300, True, "a")):
        expected.append((JoinSideKey(timestamp, is_left, key), LeftOrRightValue(is_left, key)))
    for key, value in reversed(expected):
        store.put(key, value)
    assert [tuple(pair) for pair in store.all()] == expected
    restored = make_task("two").open(waiting())
    restored.restore([ChangelogRecord(*record) for record in task.log("o")])
    assert [tuple(pair) for pair in restored.all()] == expected
