"""What other windows or another retention mean for the state of the running application."""

from __future__ import annotations

import json

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import (
    Consumed,
    EmitStrategy,
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StoreType,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    UnlimitedWindows,
)
from millrace.plan.diff import PlanVerdict, diff_plans
from millrace.plan.topology_plan import TopologyPlan
from millrace.serdes import Serdes
from millrace.state import Stores

STRINGS = Consumed.with_(Serdes.string(), Serdes.string())
HASH = "31f5ddb01a6bea432225528746997b4564fcd34af3c6b214a2602391b596139f"
"""The hash of `windowed("5m")` in plans that did not tell windows."""


def plan(build):
    """Return the plan of what a function adds to a builder."""
    builder = StreamsBuilder()
    build(builder)
    config = StreamsConfig.of({"application.id": "app"})
    return builder.build(config).build(config).plan()


def counted(windows, materialized=None, *, emit=EmitStrategy.ON_WINDOW_UPDATE):
    """Return the plan of a count by windows."""

    def build(builder):
        windowed = builder.stream("in", STRINGS).group_by_key().windowed_by(windows)
        windowed.emit_strategy(emit).count(materialized or Materialized.as_("counts")).to_stream().to("out")

    return plan(build)


def tumbling(size, grace="0ms", *, materialized=None):
    """Return the plan of a count by windows that follow one another."""
    return counted(TimeWindows.of_size_and_grace(size, grace), materialized)


def joined(windows):
    """Return the plan of a join of two streams."""

    def build(builder):
        left, right = builder.stream("left", STRINGS), builder.stream("right", STRINGS)
        left.join(right, lambda one, other: one + other, windows, StreamJoined.as_("pairs")).to("out")

    return plan(build)


def history(retention):
    """Return the plan of a table that keeps old values."""
    supplier = Stores.persistent_versioned_key_value_store("prices", retention)
    return plan(lambda builder: builder.table("in", STRINGS, Materialized.as_(supplier)).to_stream().to("out"))


def told(old, new):
    """Return the changes of stores, marked by whether they need a reset."""
    return [
        f"{'✗' if item.needs_reset else '✓'} {item.name} {item.change}"
        for item in diff_plans(old, new).reasons
        if item.resource == "store"
    ]


def as_before(one):
    """Return a plan as an earlier version of Millrace wrote it."""
    content = json.loads(one.to_json())
    for store in (store for part in content["subtopologies"] for store in part["stores"]):
        store.pop("windows", None)
        store.pop("retentionMs", None)
    return TopologyPlan.from_json(json.dumps(content))


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (
            TimeWindows.of_size_with_no_grace("5m"),
            TimeWindows.of_size_with_no_grace("10m"),
            "had time windows of 5m and has time windows of 10m",
        ),
        (
            SlidingWindows.of_time_difference_with_no_grace("5m"),
            SlidingWindows.of_time_difference_with_no_grace("1m"),
            "had sliding windows of 5m and has sliding windows of 1m",
        ),
        (
            TimeWindows.of_size_with_no_grace("5m"),
            SlidingWindows.of_time_difference_with_no_grace("5m"),
            "had time windows of 5m and has sliding windows of 5m",
        ),
        (
            TimeWindows.of_size_with_no_grace("1h30m"),
            UnlimitedWindows.of(),
            "had time windows of 1h30m and has unlimited windows",
        ),
    ],
)
def test_windows_of_another_size_would_be_misread(old, new, change):
    """The key of a window has its start alone, so a window of the old size would go on as one of the new size."""
    diff = diff_plans(counted(old), counted(new))
    assert diff.verdict is PlanVerdict.NEEDS_RESET
    (reason,) = [item for item in diff.reasons if item.needs_reset]
    assert f"{reason.resource} {reason.name} {reason.change}" == f"store counts {change}"
    assert not reason.leaves_behind
    assert "windows are stored under their start, without their size" in reason.why


def test_grace_period_changes_retention():
    """Nothing is misread; the store keeps windows longer, and restores its files, whose segments become longer."""
    diff = diff_plans(tumbling("5m"), tumbling("5m", "3m"))
    assert diff.verdict is PlanVerdict.COMPATIBLE
    assert told(tumbling("5m"), tumbling("5m", "3m")) == [
        "✓ counts had a grace period of 0ms and has one of 3m",
        "✓ counts kept windows for 5m and keeps them for 8m",
    ]
    assert "its task's files are restored from the changelogs once" in diff.reasons[1].why
    assert "changelog topic app-counts-changelog is configured differently (retention.ms: 86700000 → 86880000)" in str(
        diff.reasons[2]
    )


def test_advance_leaves_windows_incomplete():
    """Hopping windows keep their size, so those with the same start go on; the others lack records."""
    old, new = (counted(TimeWindows.of_size_with_no_grace("10m").advance_by(advance)) for advance in ("5m", "2m"))
    assert told(old, new) == ["✓ counts had windows every 5m and has them every 2m"]


def test_gap_of_sessions_is_compatible():
    """Sessions are stored with both bounds."""
    old, new = (counted(SessionWindows.of_inactivity_gap_with_no_grace(gap)) for gap in ("5m", "10m"))
    assert told(old, new) == [
        "✓ counts had an inactivity gap of 5m and has one of 10m",
        "✓ counts kept sessions for 5m and keeps them for 10m",
    ]


def test_join_windows_are_compatible():
    """A join's stores have records under their own time; both are told."""
    old = joined(JoinWindows.of_time_difference_with_no_grace("5m"))
    new = joined(JoinWindows.of_time_difference_with_no_grace("5m").before(-1000))
    assert told(old, new) == [
        line
        for store in ("pairs-other-join-store", "pairs-this-join-store")
        for line in (
            f"✓ {store} had a join window from 5m before to 5m after and has a join window from -1s before to 5m after",
            f"✓ {store} kept windows for 10m and keeps them for 4m59s",
        )
    ]


def test_history_of_versioned_stores_is_compatible():
    """The latest values stay, and older versions are restored from the changelog."""
    assert told(history("1h"), history("1d")) == ["✓ prices kept the history of values for 1h and keeps them for 1d"]


def test_retention_of_a_store_without_a_changelog():
    """Its segments on disk get another length, and cannot be restored; in memory there is nothing to lose."""
    for store_type, mark in ((StoreType.ROCKS_DB, "✗"), (StoreType.IN_MEMORY, "✓")):
        kept = Materialized.as_("counts").with_logging_disabled().with_store_type(store_type)
        old, new = (tumbling("5m", materialized=kept.with_retention(retention)) for retention in ("1h", "2h"))
        assert told(old, new) == [f"{mark} counts kept windows for 1h and keeps them for 2h"]


def test_supplier_decides_the_retention():
    """A store that the user supplies may keep windows for longer than the operator needs."""
    old, new = (
        tumbling("5m", materialized=Materialized.as_(Stores.persistent_timestamped_window_store("w", kept, "5m")))
        for kept in ("1h", "2h")
    )
    assert told(old, new) == ["✓ w kept windows for 1h and keeps them for 2h"]


def test_emitting_on_close_orders_windows_by_time():
    """Files are restored from the changelog, which does not depend on it; there must be one. In memory there are no files."""
    windows = TimeWindows.of_size_with_no_grace("5m")
    on_close = EmitStrategy.ON_WINDOW_CLOSE
    assert told(counted(windows), counted(windows, emit=on_close)) == ["✓ counts emits results when windows close"]
    assert told(counted(windows, emit=on_close), counted(windows)) == ["✓ counts emits results with every update"]
    unlogged = Materialized.as_("counts").with_logging_disabled()
    assert told(counted(windows, unlogged), counted(windows, unlogged, emit=on_close)) == [
        "✗ counts emits results when windows close"
    ]
    kept = Materialized.as_("counts").with_store_type(StoreType.IN_MEMORY)
    assert told(counted(windows, kept), counted(windows, kept, emit=on_close)) == []


def test_older_plans_do_not_tell_windows():
    """An upgrade of Millrace needs no reset; if the changelog's retention differs, the windows may be why."""
    old = as_before(tumbling("5m"))
    assert diff_plans(old, tumbling("5m")).reasons == ()
    assert diff_plans(tumbling("5m"), old).reasons == ()
    diff = diff_plans(old, tumbling("10m"))
    assert diff.verdict is PlanVerdict.COMPATIBLE
    assert "The older plan does not contain the windows" in str(diff.reasons[0])


def test_windows_are_not_part_of_the_hash():
    """A topology has the same hash as before plans told its windows."""
    assert tumbling("5m").hash == HASH
    assert tumbling("10m").hash == HASH


def test_plans_of_other_stores_are_as_before():
    """Only stores with windows or history have more in their JSON, so older operators read all other plans."""
    keys = plan(lambda builder: builder.stream("in", STRINGS).group_by_key().count("counts").to_stream().to("out"))
    assert as_before(keys).to_json() == keys.to_json()
    windows = tumbling("5m")
    assert TopologyPlan.from_json(windows.to_json()) == windows
    (store,) = windows.subtopologies[0].stores
    assert store.windows is not None
    assert (store.windows.kind, store.windows.size_ms, store.retention_ms) == ("time", 300_000, 300_000)
