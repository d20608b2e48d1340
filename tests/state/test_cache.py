"""The record cache: what is forwarded and logged, in which order, with which context, and when."""

from __future__ import annotations

import pytest

from millrace.errors import SerializationError
from millrace.records import NO_HEADERS, Headers, RecordContext, ValueAndTimestamp, Window, Windowed
from millrace.serdes.primitives import (
    ByteArraySerde,
    ByteBufferSerde,
    FloatSerde,
    IntegerSerde,
    LongSerde,
    ShortSerde,
    StringSerde,
)
from millrace.state import RecordCache, Stores
from millrace.state.cache import StoreCache

S = StringSerde()


def cached(name="s", *, serde=S, supplier=None):
    """Return the builder of a cached store."""
    supplier = supplier or Stores.in_memory_key_value_store(name)
    return Stores.key_value_store_builder(supplier, S, serde).with_caching_enabled()


def opened(task, *, send_old_values=True, builder=None):
    """Return an open cached store and the list that its flushes fill."""
    store = task.open(builder or cached())
    seen: list[tuple] = []
    assert store.set_flush_listener(
        lambda key, change, *rest: seen.append((key, *change[:2], *rest)), send_old_values=send_old_values
    )
    return store, seen


def test_updates_of_a_key_become_one(make_task):
    """Only the last value of a key is forwarded and logged, with the context of the put that set it."""
    task = make_task(cache_bytes=10_000)
    store, seen = opened(task)
    task.at(10, offset=1)
    store.put("a", "1")
    task.at(20, offset=2, headers=Headers([("h", b"x")]))
    store.put("a", "2")
    task.at(99, offset=3)
    assert (seen, task.log("s")) == ([], [])
    store.flush()
    assert seen == [("a", "2", None, 20, (("h", b"x"),))]
    assert [(r.key, r.value, r.timestamp) for r in task.log("s")] == [(b"a", b"2", 20)]
    assert (task.record.timestamp, task.record.offset) == (99, 3)
    store.flush()
    assert len(seen) == 1


def test_flush_goes_by_the_last_put(make_task):
    """A key that is put again moves to the end; reading does not move it."""
    task = make_task(cache_bytes=10_000)
    store, seen = opened(task)
    for key in ("a", "b", "c", "a"):
        store.put(key, "v")
    store.get("b")
    store.flush()
    assert [key for key, *_ in seen] == ["b", "c", "a"]


@pytest.mark.parametrize(("send_old_values", "old"), [(True, "1"), (False, None)])
def test_old_value_is_what_was_flushed_before(make_task, send_old_values, old):
    """The old value is that of the last flush, not of the last put; it is None unless requested."""
    task = make_task(cache_bytes=10_000)
    store, seen = opened(task, send_old_values=send_old_values)
    store.put("a", "1")
    store.flush()
    store.put("a", "2")
    store.put("a", "3")
    store.flush()
    assert seen[-1][:3] == ("a", "3", old)
    store.delete("a")
    store.flush()
    assert seen[-1][:3] == ("a", None, "3" if send_old_values else None)


def test_key_put_and_deleted_within_a_flush_never_was(make_task):
    """A key that is not in the store below and is deleted in the cache is neither logged nor forwarded."""
    task = make_task(cache_bytes=10_000)
    store, seen = opened(task)
    store.put("a", "1")
    store.delete("a")
    store.flush()
    assert (seen, task.log("s"), list(store.all())) == ([], [], [])


def test_timestamped_store_forwards_bare_values(make_task):
    """The listener of a timestamped store gets values without timestamps; the record has the value's timestamp."""
    task = make_task(cache_bytes=10_000)
    builder = Stores.timestamped_key_value_store_builder(Stores.in_memory_key_value_store("s"), S, LongSerde())
    store, seen = opened(task, builder=builder.with_caching_enabled())
    task.at(50)
    store.put("a", ValueAndTimestamp(1, 40))
    store.flush()
    assert seen == [("a", 1, None, 40, ())]
    assert task.log("s")[0].timestamp == 40


def test_eviction_takes_the_dirty_set_along(make_task):
    """Over budget, the least recently used entry is flushed first, and with it all dirty entries."""
    task = make_task(cache_bytes=3 * 50)
    store, seen = opened(task)
    for key in ("a", "b", "c"):
        store.put(key, "v")
    assert store.get("a") == "v"
    store.put("d", "v")
    assert [key for key, *_ in seen] == ["b", "a", "c", "d"]
    assert set(store._cache.entries) == {b"a", b"c", b"d"}
    assert task.cache.used_bytes == store._cache.bytes <= 150


def test_sizes_are_javas(make_task):
    """An entry counts key, value, topic and 45 bytes; clean entries count the same without the topic."""
    task = make_task(cache_bytes=10_000)
    store, _ = opened(task)
    store.put("key", "value")
    assert task.cache.used_bytes == 3 + 5 + len("in") + 45
    store.put("key", "v")
    assert task.cache.used_bytes == 3 + 1 + len("in") + 45
    store.flush()
    store.close()
    assert task.cache.used_bytes == 0


def test_put_while_flushing_is_not_lost(make_task):
    """What a listener puts into the store during its flush waits for the next one, even under the key being flushed."""
    task = make_task(cache_bytes=10_000)
    store = task.open(cached())
    seen: list[tuple] = []

    def listener(key, change, timestamp, headers):
        new, old, _ = change
        seen.append((key, new, old))
        if len(seen) <= 2:
            store.put("a", f"again-{len(seen)}")
            store.put(f"new-{len(seen)}", "n")

    store.set_flush_listener(listener, send_old_values=True)
    store.put("a", "1")
    store.put("b", "2")
    store.flush()
    assert seen == [("a", "1", None), ("b", "2", None)]
    store.flush()
    assert seen[2:] == [("new-1", "n", None), ("a", "again-2", "1"), ("new-2", "n", None)]
    assert dict(store.all()) == {"a": "again-2", "b": "2", "new-1": "n", "new-2": "n"}


def test_stores_that_feed_each_other_keep_everything(make_task):
    """Two small caches, each of whose flushes puts into the other, lose nothing and stay within the budget."""
    task = make_task(cache_bytes=260)
    first, second = task.open(cached("first")), task.open(cached("second"))
    first.set_flush_listener(lambda key, change, *_: second.put(key * 2, change[0]), send_old_values=False)
    out: dict[str, str] = {}
    second.set_flush_listener(lambda key, change, *_: out.__setitem__(key, change[0]), send_old_values=False)
    for i in range(200):
        task.at(i)
        first.put(f"k{i % 17}", f"v{i}")
        assert task.cache.used_bytes <= 260
    first.flush()
    second.flush()
    assert dict(first.all()) == {f"k{i % 17}": f"v{i}" for i in range(200)}
    assert out == {f"k{i % 17}" * 2: f"v{i}" for i in range(200)}


def test_failing_listener_loses_nothing(make_task):
    """If a forward fails, the remaining entries are still dirty, and the record's context is restored."""
    task = make_task(cache_bytes=10_000)
    store = task.open(cached())
    seen: list[str] = []

    def listener(key, *_):
        if key == "b" and "b!" not in seen:
            seen.append("b!")
            raise ValueError("no")
        seen.append(key)

    store.set_flush_listener(listener, send_old_values=False)
    task.at(1)
    for key in ("a", "b", "c"):
        store.put(key, key)
    task.at(7)
    with pytest.raises(ValueError, match="no"):
        store.flush()
    assert task.record.timestamp == 7
    store.flush()
    assert seen == ["a", "b!", "b", "c"]
    assert dict(store.all()) == {"a": "a", "b": "b", "c": "c"}


def test_no_budget_means_no_cache(make_task):
    """With a budget of 0, or none, a store is not cached, and says so."""
    for name, budget in (("x", 0), ("y", None)):
        task = make_task(name, cache_bytes=budget)
        store = task.open(cached())
        assert not store.set_flush_listener(lambda *_: None, send_old_values=True)
        store.put("a", "1")
        assert len(task.log("s")) == 1


def test_values_of_opaque_serdes_are_not_shared(make_task):
    """Values are copied unless their serde declares them immutable, so changing one outside does not change the cache."""

    class Lists(StringSerde):
        shareable = False

        def serialize(self, topic, data, headers=()):
            return ",".join(data).encode()

        def deserialize(self, topic, data, headers=()):
            return data.decode().split(",")

    task = make_task(cache_bytes=10_000)
    store = task.open(cached(serde=Lists()))
    value = ["x"]
    store.put("a", value)
    value.append("y")
    store.get("a").append("z")
    assert store.get("a") == ["x"]
    assert list(store.all()) == [("a", ["x"])]


def test_cached_puts_are_found_by_scans(make_task):
    """Ranges, prefixes and their reverses include entries that are only in the cache, and exclude what it deleted."""
    task = make_task(cache_bytes=10_000)
    store = task.open(cached())
    for key in ("a", "ab", "b", "c"):
        store.put(key, "below")
    store.flush()
    store.put("ab", "cached")
    store.put("b", None)
    store.put("bb", "cached")
    assert list(store.range("ab", "c")) == [("ab", "cached"), ("bb", "cached"), ("c", "below")]
    assert [key for key, _ in store.reverse_all()] == ["c", "bb", "ab", "a"]
    assert [key for key, _ in store.prefix_scan("a")] == ["a", "ab"]


def test_budget_is_shared_and_only_the_writer_evicts():
    """The cache that was just written evicts its own entries until the total fits, or it is empty."""
    budget = RecordCache(300)
    record = RecordContext("in", 0, 0, 0)
    written: list[bytes] = []
    big, small = (StoreCache(budget, record, lambda key, entry: written.append(key)) for _ in range(2))
    big.put(b"big", "x", 200)
    small.put(b"s", "y", 10)
    assert written == [b"s"]
    assert (len(big.entries), len(small.entries)) == (1, 0)


def cached_stores(serde):
    """Yield the builder of a cached store of each kind, how a value is put and how it is got."""
    plain = Stores.in_memory_key_value_store
    yield (
        cached("plain", serde=serde),
        lambda store, value: store.put("k", value),
        lambda store: store.get("k"),
    )
    yield (
        Stores.timestamped_key_value_store_builder(plain("timed"), S, serde).with_caching_enabled(),
        lambda store, value: store.put("k", ValueAndTimestamp(value, 5)),
        lambda store: store.get("k")[0],
    )
    yield (
        Stores.timestamped_key_value_store_with_headers_builder(plain("headers"), S, serde).with_caching_enabled(),
        lambda store, value: store.put("k", (value, 5, NO_HEADERS)),
        lambda store: store.get("k")[0],
    )
    yield (
        Stores.timestamped_window_store_builder(
            Stores.in_memory_window_store("windows", 1_000, 10), S, serde
        ).with_caching_enabled(),
        lambda store, value: store.put("k", ValueAndTimestamp(value, 5), 0),
        lambda store: store.fetch("k", 0)[0],
    )
    yield (
        Stores.session_store_builder(
            Stores.in_memory_session_store("sessions", 1_000), S, serde
        ).with_caching_enabled(),
        lambda store, value: store.put(Windowed("k", Window(0, 5)), value),
        lambda store: store.fetch_session("k", 0, 5),
    )


@pytest.mark.parametrize(
    ("serde", "value", "wrong"),
    [
        (S, "x", 5),
        (LongSerde(), 5, "x"),
        (IntegerSerde(), 5, 2**31),
        (ShortSerde(), 5, 2**15),
        (FloatSerde(), 0.5, 1e300),
        (ByteArraySerde(), b"x", "x"),
    ],
)
def test_value_that_cannot_be_written_is_an_error_of_its_put(make_task, serde, value, wrong):
    """Not of a later write-back during another record; the store keeps the value it had."""
    task = make_task(cache_bytes=10_000)
    for builder, put, get in cached_stores(serde):
        store = task.open(builder)
        put(store, value)
        with pytest.raises(SerializationError, match="give the operator a serde"):
            put(store, wrong)
        assert get(store) == value
        store.flush()
        assert get(store) == value


@pytest.mark.parametrize(
    ("serde", "given"),
    [(ByteArraySerde(), bytearray(b"abc")), (ByteBufferSerde(), memoryview(bytearray(b"abc")))],
)
def test_buffer_that_is_changed_after_its_put_does_not_change_the_store(make_task, serde, given):
    """The cache keeps a copy of it."""
    task = make_task(cache_bytes=10_000)
    for builder, put, get in cached_stores(serde):
        store = task.open(builder)
        given[:] = b"abc"
        put(store, given)
        given[:] = b"xyz"
        assert bytes(get(store)) == b"abc"


@pytest.mark.parametrize(("serde", "given", "read"), [(LongSerde(), True, 1), (FloatSerde(), 0.1, 0.10000000149011612)])
def test_cached_value_is_read_as_the_stored_one(make_task, serde, given, read):
    """Before and after it is written back."""
    task = make_task(cache_bytes=10_000)
    for builder, put, get in cached_stores(serde):
        store = task.open(builder)
        put(store, given)
        assert (get(store), type(get(store))) == (read, type(read))


def test_entry_whose_eviction_failed_is_kept(make_task):
    """Whoever catches the error of the put that evicted it loses nothing: it can be read, and is written back later."""
    task = make_task(cache_bytes=120)
    store = task.open(cached())
    broken, seen = [True], []

    def listener(key, change, *_context):
        if broken:
            raise RuntimeError("the next node failed")
        seen.append((key, change[0]))

    store.set_flush_listener(listener, send_old_values=False)
    store.put("a", "1")
    store.put("b", "2")
    with pytest.raises(RuntimeError, match="next node"):
        store.put("c", "3")
    assert [store.get(key) for key in "abc"] == ["1", "2", "3"]
    broken.clear()
    store.flush()
    assert sorted(seen) == [("a", "1"), ("b", "2"), ("c", "3")]
    assert {record.value for record in task.log("s")} == {b"1", b"2", b"3"}
