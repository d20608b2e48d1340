"""Key-value stores against a dict, through commits, clean restarts and crashes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millrace.records import TopicPartition, ValueAndTimestamp
from millrace.serdes.base import Serde
from millrace.serdes.primitives import ByteArraySerde, StringSerde
from millrace.state import Stores

KEYS = st.binary(min_size=0, max_size=3).map(lambda raw: bytes(b % 4 * 85 for b in raw))
VALUES = st.text(max_size=4)
CHANGELOG = TopicPartition("app-s-changelog", 0)


class Opaque(StringSerde):
    """A string serde whose values the cache must not share."""

    shareable = False


def machine(task_class, supplier, value_serde: Serde, *, caching: bool, timestamped: bool, cache_bytes: int):
    """Return a state machine class that drives one kind of store."""
    build = Stores.timestamped_key_value_store_builder if timestamped else Stores.key_value_store_builder

    class Machine(RuleBasedStateMachine):
        @initialize()
        def start(self):
            self.directory = Path(tempfile.mkdtemp(prefix="millrace-kv-"))
            self.task = task_class(self.directory, cache_bytes=cache_bytes)
            self.builder = build(supplier, ByteArraySerde(), value_serde)
            if caching:
                self.builder.with_caching_enabled()
            self.store = self.task.open(self.builder)
            self.model: dict[bytes, object] = {}
            self.committed: dict[bytes, object] = {}
            self.clock = 0

        def wrap(self, value):
            if value is None or not timestamped:
                return value
            self.clock += 1
            return ValueAndTimestamp(value, self.clock)

        @rule(key=KEYS, value=st.none() | VALUES)
        def put(self, key, value):
            self.task.at(self.clock)
            stored = self.wrap(value)
            self.store.put(key, stored)
            if stored is None:
                self.model.pop(key, None)
            else:
                self.model[key] = stored

        @rule(key=KEYS, value=VALUES)
        def put_if_absent(self, key, value):
            stored = self.wrap(value)
            assert self.store.put_if_absent(key, stored) == self.model.get(key)
            self.model.setdefault(key, stored)

        @rule(key=KEYS)
        def delete(self, key):
            assert self.store.delete(key) == self.model.pop(key, None)

        @rule(key=KEYS)
        def get(self, key):
            assert self.store.get(key) == self.model.get(key)

        @rule(lower=st.none() | KEYS, upper=st.none() | KEYS, data=st.data())
        def scan(self, lower, upper, data):
            wanted = [
                (k, v)
                for k, v in sorted(self.model.items())
                if (lower is None or k >= lower) and (upper is None or k <= upper)
            ]
            assert list(self.store.range(lower, upper)) == wanted
            assert list(self.store.reverse_range(lower, upper)) == wanted[::-1]

        @rule(prefix=KEYS)
        def prefix(self, prefix):
            wanted = [(k, v) for k, v in sorted(self.model.items()) if k.startswith(prefix)]
            assert list(self.store.prefix_scan(prefix)) == wanted

        @rule()
        def write_while_iterating(self):
            rows = self.store.all()
            seen = [key for key, _ in rows if self.store.put(key, None) is None]
            assert seen == sorted(self.model)
            self.model.clear()

        @rule()
        def commit(self):
            self.task.commit(self.store)
            self.committed = dict(self.model)
            assert self.store.uncommitted_bytes() == 0

        @precondition(lambda self: self.builder.persistent)
        @rule()
        def crash(self):
            self.store.close()
            self.store = self.task.open(self.builder)
            assert dict(self.store.all()) == self.committed
            done = self.store.committed_offset(CHANGELOG)
            tail = self.task.log("s")[0 if done is None else done + 1 :]
            if tail:
                self.store.restore(tail)
                assert self.store.committed_offset(CHANGELOG) == tail[-1].offset
            replayed: dict[bytes, object] = {}
            for key, value, timestamp, *_ in self.task.log("s"):
                if value is None:
                    replayed.pop(key, None)
                else:
                    text = value.decode()
                    replayed[key] = ValueAndTimestamp(text, timestamp) if timestamped else text
            assert dict(self.store.all()) == replayed
            self.model, self.committed = dict(replayed), dict(replayed)

        @invariant()
        def holds_the_model(self):
            assert list(self.store.all()) == sorted(self.model.items())
            assert list(self.store.reverse_all()) == sorted(self.model.items(), reverse=True)

        def teardown(self):
            if hasattr(self, "task"):
                self.task.close()
                shutil.rmtree(self.directory)

    return Machine


@pytest.mark.parametrize("caching", [False, "large", "tiny"])
@pytest.mark.parametrize("timestamped", [False, True])
@pytest.mark.parametrize("serde", [StringSerde(), Opaque()], ids=["shareable", "opaque"])
@pytest.mark.parametrize("kind", ["rocksdb", "memory"])
def test_store_behaves_as_a_sorted_dict(task_class, kind, serde, timestamped, caching):
    """Through puts, reads, scans, commits, crashes and restores, the store behaves like a sorted dict."""
    if kind == "memory":
        supplier = Stores.in_memory_key_value_store("s")
    elif timestamped:
        supplier = Stores.persistent_timestamped_key_value_store("s")
    else:
        supplier = Stores.persistent_key_value_store("s")
    cache_bytes = 200 if caching == "tiny" else 1_000_000
    run_state_machine_as_test(
        machine(task_class, supplier, serde, caching=bool(caching), timestamped=timestamped, cache_bytes=cache_bytes),
        settings=settings(
            max_examples=8 if kind == "rocksdb" else 25,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
        ),
    )
