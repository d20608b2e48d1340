"""What the state updater guarantees to the stream thread: every task handed to it comes back, whatever fails."""

from __future__ import annotations

import secrets
import threading
from collections import deque

import pytest
from tests.instance.support import last_counts, produce, running, settings, word_count
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.instance import KafkaStreams, State
from millrace.instance.state_updater import StateUpdater
from millrace.records import TaskId, TopicPartition


class Stateless:
    """A task without stores."""

    task_id = TaskId(0, 0)
    changelogs = ()


def updater():
    """Return an updater that needs no brokers, as its tasks have no changelogs."""
    return StateUpdater("updater", lambda: None, None, StreamsConfig.of({"application.id": "app"}))


def test_a_task_without_changelogs_is_complete_at_once():
    """`drain_restored` returns it, and it can no longer be removed from the updater."""
    state, task = updater(), Stateless()
    state.start()
    state.add(task, {})
    assert wait_until(state.drain_restored, "restored") == [task]
    assert state.remove(task).result(PATIENCE_S) is None
    state.shutdown()


def test_a_task_that_is_taken_back_when_it_is_complete_comes_once():
    """The stream thread may look for complete tasks while the updater gives one of them back, which does not end the updater."""
    state, task, drained = updater(), Stateless(), []

    class Looked(deque):
        def __contains__(self, item):
            found = super().__contains__(item)
            looking.start()
            looking.join(0.2)
            return found

    looking = threading.Thread(target=lambda: drained.extend(state.drain_restored()))
    state.add(task, {})
    state.step()
    state._reader.restored = Looked(state._reader.restored)
    answer = state.remove(task)
    looking.join(PATIENCE_S)
    assert (drained, answer.result(0)) == ([], task)


def test_a_task_handed_to_an_ended_updater_fails():
    """The task is not lost: the thread learns that it failed."""
    state, task = updater(), Stateless()
    state.start()
    state.shutdown()
    state.add(task, {})
    [failed] = state.drain_failed()
    assert failed.task is task
    assert "stopped" in str(failed.error)


def test_a_task_is_asked_back_while_the_updater_ends(monkeypatch):
    """Closing the consumer takes a moment; nobody waits then for an answer that never comes."""
    state, closing, go_on = updater(), threading.Event(), threading.Event()
    monkeypatch.setattr(state._reader, "close", lambda: (closing.set(), go_on.wait(PATIENCE_S)))
    state.start()
    state.shutdown(0)
    try:
        assert closing.wait(PATIENCE_S)
        assert state.remove(Stateless()).result(5) is None
    finally:
        go_on.set()
        state.shutdown()


def test_every_request_is_answered_even_if_the_updater_fails_at_one(monkeypatch):
    """The stream thread, which waits for the answers, goes on."""
    state, asked = updater(), threading.Event()
    failures = iter([RuntimeError("the consumer is closed")])

    def let_go(*_):
        assert asked.wait(PATIENCE_S)
        for failure in failures:
            raise failure

    monkeypatch.setattr(state._reader, "let_go", let_go)
    state.start()
    answers = [state.remove(Stateless()) for _ in range(3)]
    asked.set()
    assert [answer.result(PATIENCE_S) for answer in answers] == [None] * 3
    state.shutdown()


class Logged:
    """A task with a changelog."""

    def __init__(self, number):
        self.task_id = TaskId(0, number)
        self.changelogs = {TopicPartition("changelog", number): None}


def test_a_task_that_is_removed_at_once_is_not_restored(monkeypatch):
    """What is asked for is done in that order, also while the updater begins with another task: nobody restores a closed task."""
    state, busy, go_on = updater(), threading.Event(), threading.Event()
    first, second = Logged(1), Logged(2)
    begin = state._reader.begin

    def slow_begin(added):
        begin(added)
        if added[0].task is first:
            busy.set()
            assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(state._reader, "begin", slow_begin)
    monkeypatch.setattr(state._reader, "_read_offsets", lambda *_: {})
    state.start()
    state.add(first, {})
    assert busy.wait(PATIENCE_S)
    state.add(second, {})
    removed = state.remove(second)
    go_on.set()
    assert removed.result(PATIENCE_S) is second
    assert second.task_id not in state._reader._asked
    state.shutdown()


def test_a_task_is_known_by_itself_and_not_by_its_id(monkeypatch):
    """Asking for a task that has been closed does not take the one that has its id now."""
    state, task = updater(), Stateless()
    state.start()
    state.add(task, {})
    assert state.remove(Stateless()).result(PATIENCE_S) is None
    assert wait_until(state.drain_restored, "restored") == [task]
    state.shutdown()


class Failing:
    """A restore listener whose methods fail from a given one on."""

    def __init__(self, first):
        self.first = first

    def _maybe(self, name):
        if name >= self.first:
            raise RuntimeError(f"no listening to {name}")

    def on_restore_start(self, *_):
        self._maybe("1 start")

    def on_batch_restored(self, *_):
        self._maybe("2 batch")

    def on_restore_end(self, *_):
        self._maybe("3 end")

    def on_restore_suspended(self, *_):
        self._maybe("4 suspended")


@pytest.mark.broker
@pytest.mark.parametrize("first", ["1 start", "2 batch", "3 end"])
def test_a_failing_restore_listener_ends_the_instance(kafka, topic_factory, tmp_path, first):
    """The listener's error ends the instance; nothing waits for the task forever."""
    source, sink, app = topic_factory("in"), topic_factory("out"), f"app-{secrets.token_hex(4)}"
    produce(kafka, source, ["word"] * 10)
    with running(word_count(source, sink), settings(kafka, app, tmp_path / "first")):
        wait_until(lambda: last_counts(kafka, sink).get("word") == 10, "counted")
    streams = KafkaStreams(word_count(source, sink), settings(kafka, app, tmp_path / "second"))
    streams.set_restore_listener(Failing(first))
    streams.start()
    with pytest.raises(RuntimeError, match=first):
        streams.wait(PATIENCE_S)
    assert streams.state is State.ERROR
