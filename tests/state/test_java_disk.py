"""What lies on disk after the same updates: byte for byte what Kafka Streams 4.3.1 wrote (`data/disk-4.3.1.json`).

The recorded runs are DSL topologies; here their stores get the updates that the topologies made. Every row of every column
family is compared, and so are the position and the changelog offset.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from millrace.records import NO_HEADERS, Headers, ValueAndTimestamp, Window, Windowed
from millrace.serdes.primitives import LongSerde, StringSerde
from millrace.state import Stores
from millrace.state.bytes_store import decode_position

RECORDED = json.loads((Path(__file__).parent / "data" / "disk-4.3.1.json").read_text())
S, L = StringSerde(), LongSerde()
H1 = Headers([("h1", b"v1")])
AGGREGATE = "KSTREAM-AGGREGATE-STATE-STORE-000000000"


def key_value(name, fmt, values):
    """Return the builder of a table's store."""
    headers = fmt == "HEADERS"
    make = "persistent_timestamped_key_value_store" + ("_with_headers" if headers else "")
    return Stores.timestamped_key_value_store_builder(getattr(Stores, make)(name), S, values)


def windows(name, fmt, *, on_close=False):
    """Return the builder of a windowed count."""
    headers = fmt == "HEADERS"
    if on_close:
        supplier = Stores.persistent_time_ordered_window_store(name, 2_000, 1_000, with_headers=headers)
    else:
        make = "persistent_timestamped_window_store" + ("_with_headers" if headers else "")
        supplier = getattr(Stores, make)(name, 61_000, 1_000)
    return Stores.timestamped_window_store_builder(supplier, S, L)


def sessions(name, fmt, *, on_close=False):
    """Return the builder of a session count."""
    headers = fmt == "HEADERS"
    if on_close:
        supplier = Stores.persistent_time_ordered_session_store(name, 1_000, with_headers=headers)
    elif headers:
        supplier = Stores.persistent_session_store_with_headers(name, 1_000)
    else:
        supplier = Stores.persistent_session_store(name, 1_000)
    return Stores.session_store_builder(supplier, S, L)


def joins(name, fmt):
    """Return the builder of one side of a join."""
    make = "persistent_timestamped_window_store_with_headers" if fmt == "HEADERS" else "persistent_window_store"
    return Stores.join_window_store_builder(getattr(Stores, make)(name, 2_000, 1_000, True), S, S)


def update(key, value, timestamp):
    """Return a put for a table."""
    return timestamp, NO_HEADERS, (key, None if value is None else ValueAndTimestamp(value, timestamp))


def windowed(key, start, count, timestamp):
    """Return a put for a windowed count."""
    return timestamp, NO_HEADERS, (key, ValueAndTimestamp(count, timestamp), start)


def session(key, start, end, count, timestamp):
    """Return a put for a session count."""
    return timestamp, NO_HEADERS, (Windowed(key, Window(start, end)), count)


def joined(key, value, timestamp, headers=NO_HEADERS):
    """Return a put for one side of a join."""
    return timestamp, headers, (key, value, timestamp)


CASES = [
    ("count-groupBy", AGGREGATE + "2", lambda n, f: key_value(n, f, L), [update("x", 1, 1000), update("x", 2, 1000)]),
    (
        "table-mat",
        "tstore",
        lambda n, f: key_value(n, f, S),
        [update("a", "x", 1000), update("a", None, 1001), update("b", "y", 1002)],
    ),
    ("tumbling", AGGREGATE + "1", windows, [windowed("a", 1000, 1, 1500), windowed("a", 200_000, 1, 200_000)]),
    (
        "session",
        AGGREGATE + "1",
        sessions,
        [session("a", 1500, 1500, 1, 1500), session("a", 1500, 1500, None, 1900), session("a", 1500, 1900, 2, 1900)],
    ),
    (
        "tumbling-onclose",
        AGGREGATE + "1",
        lambda n, f: windows(n, f, on_close=True),
        [windowed("a", 1000, 1, 1500), windowed("b", 5000, 1, 5000)],
    ),
    (
        "session-onclose",
        AGGREGATE + "1",
        lambda n, f: sessions(n, f, on_close=True),
        [session("a", 1500, 1500, 1, 1500)],
    ),
    ("ss-inner", "KSTREAM-JOINTHIS-0000000004-store", joins, [joined("a", "x", 1000, H1), joined("a", "z", 1200)]),
    ("ss-inner", "KSTREAM-JOINOTHER-0000000005-store", joins, [joined("a", "y", 1100)]),
    (
        "ss-left",
        "KSTREAM-JOINTHIS-0000000004-store",
        joins,
        [joined("a", "x", 1000, H1), joined("a", "x2", 1000), joined("b", "x", 10_000)],
    ),
    ("fk-join", "r-STATE-STORE-0000000003", lambda n, f: key_value(n, f, S), [update("p", "right", 500)]),
    (
        "fk-join",
        "l-STATE-STORE-0000000000",
        lambda n, f: key_value(n, f, S),
        [update("a", "pxx", 1000), update("a", "qxx", 1100), update("a", None, 1200)],
    ),
]


def read(path):
    """Return every row of every column family of a database."""
    names = Rdict.list_cf(str(path))
    raw = Options(raw_mode=True)
    db = Rdict(str(path), options=raw, column_families={name: raw for name in names if name != "default"})
    found = {}
    for name in names:
        family = db if name == "default" else db.get_column_family(name)
        rows = {}
        for key, value in family.items():
            text = key.decode() if name == "offsets" else key.hex()
            rows[text] = value.hex()
        if rows:
            found[name] = rows
        if family is not db:
            family.close()
    db.close()
    return found


@pytest.mark.parametrize("fmt", ["DEFAULT", "HEADERS"])
@pytest.mark.parametrize(("case", "name", "builder", "updates"), CASES, ids=[f"{c[0]}-{c[1][:16]}" for c in CASES])
def test_disk_is_what_java_wrote(task, case, name, builder, updates, fmt):
    """After the recorded updates and a clean close, the directories, families and rows are Java's."""
    recorded = {
        directory: families for directory, families in RECORDED[f"{case} {fmt}"].items() if name in directory.split("/")
    }
    assert recorded
    families = next(iter(recorded.values()))
    (((topic, partition), offset),) = decode_position(bytes.fromhex(families["offsets"]["position"])).items()
    store = task.open(builder(name, fmt))
    task.record.topic, task.record.partition = topic, partition
    for number, (timestamp, headers, args) in enumerate(updates):
        task.at(timestamp, offset=offset - len(updates) + 1 + number, headers=headers)
        store.put(*args)
    task.commit(store)
    store.close()
    assert {directory: read(task.state_dir / directory) for directory in recorded} == recorded
    databases = {str(path.parent.relative_to(task.state_dir)) for path in task.state_dir.rglob("CURRENT")}
    assert databases == set(recorded)


@pytest.mark.parametrize("fmt", ["DEFAULT", "HEADERS"])
def test_table_of_the_older_format_is_read_and_moves_over_as_it_is_written(task, fmt):
    """Plain rows become timestamped (-1), timestamped rows get empty headers; a row that is written leaves the old family."""
    name = "s"
    older = (
        Stores.persistent_key_value_store(name)
        if fmt == "DEFAULT"
        else Stores.persistent_timestamped_key_value_store(name)
    )
    make = Stores.key_value_store_builder if fmt == "DEFAULT" else Stores.timestamped_key_value_store_builder
    store = task.open(make(older, S, S))
    for key in ("a", "b", "c"):
        store.put(key, f"{key}1" if fmt == "DEFAULT" else ValueAndTimestamp(f"{key}1", 5))
    task.commit(store)
    store.close()
    newer = key_value(name, fmt, S)
    store = task.open(newer)
    at = -1 if fmt == "DEFAULT" else 5
    assert list(store.all()) == [(key, ValueAndTimestamp(f"{key}1", at)) for key in "abc"]
    store.put("a", ValueAndTimestamp("a2", 9))
    store.put("b", None)
    task.commit(store)
    wanted = [("a", ValueAndTimestamp("a2", 9)), ("c", ValueAndTimestamp("c1", at))]
    assert list(store.all()) == wanted
    assert list(store.reverse_all()) == wanted[::-1]
    store.close()
    families = read(task.state_dir / "rocksdb" / name)
    old_family, new_family = (
        ("default", "keyValueWithTimestamp")
        if fmt == "DEFAULT"
        else (
            "keyValueWithTimestamp",
            "keyValueWithTimestampAndHeaders",
        )
    )
    assert set(families[old_family]) == {b"c".hex()}
    assert set(families[new_family]) == {b"a".hex()}
    store = task.open(newer)
    assert list(store.all()) == wanted
