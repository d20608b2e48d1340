"""A stand-in for a task: it gives stores a context, keeps their changelog, and can commit, crash and restore them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.config import StreamsConfig
from millrace.records import NO_HEADERS, RecordContext, TaskId, TopicPartition
from millrace.state import ChangelogRecord, RecordCache, StoreContext


class Task:
    """Owns the stores of one task, and acts as the broker for their changelogs."""

    def __init__(self, state_dir: Path, *, cache_bytes: int | None = None, settings: dict[str, Any] | None = None):
        self.state_dir = state_dir
        self.record = RecordContext("in", 0, 0, 0)
        self.cache = None if cache_bytes is None else RecordCache(cache_bytes)
        self.logs: dict[TopicPartition, list[ChangelogRecord]] = {}
        self.dropped = 0
        self.settings = {"application.id": "app", "bootstrap.servers": "x:1"} | (settings or {})
        self.stores: list[Any] = []

    def open(self, builder: Any, *, shared: bool = False) -> Any:
        """Build and open a store; a shared store can be read by other threads."""
        store = builder.build()
        topics = {builder.name: f"app-{builder.name}-changelog"} if builder.logging_enabled else {}
        store.init(
            StoreContext(
                application_id="app",
                task_id=TaskId(0, 0),
                config=StreamsConfig.of(self.settings),
                state_dir=self.state_dir,
                record=self.record,
                cache=self.cache,
                changelog_topics=topics,
                send_change=self._sender,
                now_ms=lambda: 0,
                drop_record=self._drop,
                shared=shared,
            )
        )
        self.stores.append(store)
        return store

    def _drop(self, *_: object) -> None:
        self.dropped += 1

    def _sender(self, partition: TopicPartition) -> Callable[..., None]:
        log = self.logs.setdefault(partition, [])

        def send(key, value, timestamp, headers=NO_HEADERS):
            assert isinstance(key, bytes)
            log.append(ChangelogRecord(key, value, timestamp, len(log), headers))

        return send

    def log(self, name: str) -> list[ChangelogRecord]:
        """Return what a store has logged so far."""
        return self.logs.setdefault(TopicPartition(f"app-{name}-changelog", 0), [])

    def at(self, timestamp: int, offset: int | None = None, headers=NO_HEADERS) -> None:
        """Pretend that a record with this timestamp is being processed."""
        self.record.timestamp = timestamp
        self.record.offset = self.record.offset + 1 if offset is None else offset
        self.record.headers = headers

    def commit(self, store: Any) -> None:
        """Flush and commit a store up to the end of its changelog."""
        store.flush()
        partition = TopicPartition(f"app-{store.name}-changelog", 0)
        log = self.logs.get(partition, [])
        store.commit({partition: len(log) - 1} if log else {})

    def close(self) -> None:
        """Close whatever is still open."""
        for store in self.stores:
            store.close()


@pytest.fixture
def task(tmp_path):
    """A task without a record cache."""
    owner = Task(tmp_path / "0_0")
    yield owner
    owner.close()


@pytest.fixture
def make_task(tmp_path):
    """Creates tasks, which are closed after the test."""
    made: list[Task] = []

    def make(name: str = "0_0", **options: Any) -> Task:
        made.append(Task(tmp_path / name, **options))
        return made[-1]

    yield make
    for owner in made:
        owner.close()


@pytest.fixture
def switching_often():
    """Make threads switch after almost every step."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(scope="session")
def task_class():
    """The stand-in class itself, for tests that create their own directories."""
    return Task
