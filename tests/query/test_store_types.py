"""The types of stores that queries ask for: what each reads of each kind of store, and what it refuses."""

from __future__ import annotations

import pytest
from tests.state.conftest import Task

from millrace.errors import InvalidStateStoreError, StateStoreMigratedError
from millrace.query import QueryableStoreTypes
from millrace.query.read_only_stores import QueriedStore
from millrace.records import Headers, ValueAndTimestamp, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import AggregationWithHeaders, Stores, ValueTimestampHeaders

TEXT, NUMBER = Serdes.string(), Serdes.long()
DAY = 86_400_000
HEADERS = Headers([("h", b"1")])
SESSION = Windowed("a", Window(3, 5))
FULL = ValueTimestampHeaders(1, 7, HEADERS)
STORES = {
    "key-value": Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), TEXT, NUMBER),
    "timestamped": Stores.timestamped_key_value_store_builder(
        Stores.persistent_timestamped_key_value_store("s"), TEXT, NUMBER
    ),
    "with headers": Stores.timestamped_key_value_store_with_headers_builder(
        Stores.persistent_timestamped_key_value_store_with_headers("s"), TEXT, NUMBER
    ),
    "window": Stores.window_store_builder(Stores.persistent_window_store("s", DAY, 10), TEXT, NUMBER),
    "timestamped window": Stores.timestamped_window_store_builder(
        Stores.persistent_timestamped_window_store("s", DAY, 10), TEXT, NUMBER
    ),
    "window with headers": Stores.timestamped_window_store_with_headers_builder(
        Stores.persistent_timestamped_window_store_with_headers("s", DAY, 10), TEXT, NUMBER
    ),
    "session": Stores.session_store_builder(Stores.persistent_session_store("s", DAY), TEXT, NUMBER),
    "session with headers": Stores.session_store_with_headers_builder(
        Stores.persistent_session_store_with_headers("s", DAY), TEXT, NUMBER
    ),
    "versioned": Stores.versioned_key_value_store_builder(
        Stores.persistent_versioned_key_value_store("s", DAY), TEXT, NUMBER
    ),
}
TYPES = {
    "key_value_store": {"key-value": 1, "timestamped": 1, "with headers": 1},
    "timestamped_key_value_store": {"timestamped": ValueAndTimestamp(1, 7), "with headers": ValueAndTimestamp(1, 7)},
    "timestamped_key_value_store_with_headers": {"with headers": FULL},
    "window_store": {"window": 1, "timestamped window": 1, "window with headers": 1},
    "timestamped_window_store": {
        "timestamped window": ValueAndTimestamp(1, 7),
        "window with headers": ValueAndTimestamp(1, 7),
    },
    "timestamped_window_store_with_headers": {"window with headers": FULL},
    "session_store": {"session": 1, "session with headers": 1},
    "session_store_with_headers": {"session with headers": AggregationWithHeaders(1, HEADERS)},
}
CASES = [(name, kind, value) for name, read in TYPES.items() for kind, value in read.items()]


def filled(task, kind):
    """Return an open store of a kind with one entry."""
    store = task.open(STORES[kind])
    task.at(7, headers=HEADERS)
    if kind == "versioned":
        store.put("a", 1, 7)
    elif "session" in kind:
        store.put(SESSION, AggregationWithHeaders(1, HEADERS) if "headers" in kind else 1)
    else:
        value = {"timestamped": ValueAndTimestamp(1, 7), "with headers": FULL}
        value = next((value[form] for form in value if form in kind), 1)
        store.put(*(("a", value, 3) if "window" in kind else ("a", value)))
    return store


@pytest.fixture(params=[None, 10**6], ids=["uncached", "cached"])
def task(request, tmp_path):
    """A stand-in for a task."""
    owner = Task(tmp_path / "0_0", cache_bytes=request.param)
    yield owner
    owner.close()


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize(("name", "kind", "value"), CASES)
def test_each_type_reads_its_part_of_a_value(task, name, kind, value, committed):
    """Plain types leave timestamps and headers out; keys, ranges and both directions agree, cached or committed."""
    if task.cache is not None:
        STORES[kind].with_caching_enabled()
    store = filled(task, kind)
    if committed:
        task.commit(store)
    found = getattr(QueryableStoreTypes, name)().over("s", lambda: [QueriedStore(store, committed)])
    if "session" in name:
        assert found.fetch_session("a", 3, 5) == value
        ranges = [
            found.fetch("a"),
            found.backward_fetch("a"),
            found.fetch_keys("a", None),
            found.find_sessions("a", 0, 9),
        ]
        expected = (SESSION, value)
    elif "window" in name:
        assert found.fetch("a", 3) == value
        assert [tuple(row) for row in found.fetch("a", 0, 9)] == [(3, value)]
        assert [tuple(row) for row in found.backward_fetch("a", 0, 9)] == [(3, value)]
        ranges = [found.all(), found.backward_all(), found.fetch_all(0, 9), found.fetch_keys("a", "b", 0, 9)]
        expected = (Windowed("a", Window(3, 13)), value)
    else:
        assert found.get("a") == value
        ranges = [
            found.all(),
            found.reverse_all(),
            found.range("a"),
            found.reverse_range(None, "a"),
            found.prefix_scan("a"),
        ]
        expected = ("a", value)
    for rows in ranges:
        assert rows.peek() == expected
        row = next(rows)
        assert tuple(row) == expected
        assert type(row.value) is type(value)
        assert rows.peek() is None
        assert list(rows) == []


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("name", TYPES)
def test_other_stores_are_refused(name, kind):
    """A store that has less than what is asked for, or is of another kind, is refused with the types that read it."""
    wanted = getattr(QueryableStoreTypes, name)()
    store = STORES[kind].build()
    if kind in TYPES[name]:
        wanted.check(store)
        return
    with pytest.raises(InvalidStateStoreError, match=f"cannot be read as {name}: ") as refused:
        wanted.check(store)
    for other, read in TYPES.items():
        assert (f" {other} or" in f"{refused.value} or") == (kind in read)


def test_several_tasks_are_read_as_one_store(tmp_path):
    """Ranges go through the stores one after the other, keys are looked for in all of them, and closing one is told."""
    tasks = [Task(tmp_path / f"0_{number}") for number in range(2)]
    stores = [task.open(STORES["key-value"]) for task in tasks]
    for number, store in enumerate(stores):
        store.put(f"k{number}", number)
        store.put(f"a{number}", number)
    found = QueryableStoreTypes.key_value_store().over("s", lambda: [QueriedStore(store, False) for store in stores])
    assert [tuple(row) for row in found.all()] == [("a0", 0), ("k0", 0), ("a1", 1), ("k1", 1)]
    assert [found.get(key) for key in ("k0", "k1", "k2")] == [0, 1, None]
    assert found.approximate_num_entries() == 4
    rows = found.all()
    assert next(rows).key == "a0"
    with found.range("k0") as part:
        assert next(part).key == "k0"
    assert list(part) == []
    stores[1].close()
    assert next(rows).key == "k0"
    with pytest.raises(StateStoreMigratedError, match="State store 's' was closed"):
        next(rows)
    for task in tasks:
        task.close()
