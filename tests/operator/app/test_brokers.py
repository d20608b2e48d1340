"""What is known of brokers: the newest when they answer, something in any case."""

import threading

import pytest

from millrace_operator.app import brokers as module
from millrace_operator.app.brokers import Brokers
from millrace_operator.app.refs import Ref
from millrace_operator.model import Group, KafkaState

REF = Ref("StreamsApp", "shop", "orders")


@pytest.fixture
def changes():
    """The applications of which something new was told."""
    return []


@pytest.fixture
def now():
    """A clock."""
    return [0.0]


@pytest.fixture
def brokers(changes, now, monkeypatch):
    """Brokers with that clock, and with as much time for an answer as a slow machine takes."""
    monkeypatch.setattr(module, "_FIRST_WAIT_SECONDS", 60.0)
    monkeypatch.setattr(module, "_WAIT_SECONDS", 60.0)
    told = Brokers(changes.append, lambda: now[0])
    yield told
    told.close()


class Slow:
    """Answers when it is let."""

    def __init__(self, state):
        self.state = state
        self.begun, self.go = threading.Event(), threading.Event()
        self.asked = 0

    def __call__(self):
        self.asked += 1
        self.begun.set()
        assert self.go.wait(60)
        return self.state


def test_pass_gets_the_newest_answer(brokers, now):
    """Brokers that answer in time are asked for each pass."""
    assert brokers.state(REF, lambda: KafkaState(brokers=3), 1).brokers == 3
    now[0] += 5
    assert brokers.state(REF, lambda: KafkaState(brokers=2), 1).brokers == 2


def test_passes_in_quick_succession_ask_once(brokers):
    """What is a second old is new enough."""
    assert brokers.state(REF, lambda: KafkaState(brokers=3), 1).brokers == 3
    assert brokers.state(REF, lambda: KafkaState(brokers=2), 1).brokers == 3


def test_what_an_action_has_changed_is_asked_for_again(brokers):
    """However new the answer is: it is out of date."""
    brokers.state(REF, lambda: KafkaState(brokers=3), 1)
    brokers.changed(REF)
    assert brokers.state(REF, lambda: KafkaState(brokers=2), 1).brokers == 2


def test_a_new_manifest_is_judged_by_what_is_true_now(brokers):
    """What was asked for the old one, if only just now, does not count, nor does an answer that is still under way."""
    assert brokers.state(REF, lambda: KafkaState(brokers=3), 1).brokers == 3
    assert brokers.state(REF, lambda: KafkaState(brokers=2), 2).brokers == 2
    brokers.changed(REF)
    slow = Slow(KafkaState(brokers=9))
    under_way = threading.Thread(target=brokers.state, args=(REF, slow, 2))
    under_way.start()
    assert slow.begun.wait(30)
    threading.Timer(0.1, slow.go.set).start()
    assert brokers.state(REF, lambda: KafkaState(brokers=1), 3).brokers == 1
    under_way.join()


def test_brokers_that_do_not_answer_hold_no_pass_up(brokers, now, changes, monkeypatch):
    """The pass goes on with what was known, the next ones without waiting; the late answer brings another."""
    monkeypatch.setattr(module, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.01)
    slow = Slow(KafkaState(brokers=3))
    assert brokers.state(REF, slow, 1).reason == "Unknown"
    assert slow.begun.wait(30)
    monkeypatch.setattr(module, "_FIRST_WAIT_SECONDS", 0.0)
    now[0] += 60
    assert brokers.state(REF, slow, 1).reason == "Unknown"
    assert slow.asked == 1, "one question at a time"
    assert changes == []
    asking = brokers._known[REF].asking
    slow.go.set()
    asking.result(30)
    assert changes == [REF]
    assert brokers.state(REF, slow, 1).brokers == 3


def test_what_was_true_for_an_older_manifest_is_not_handed_out(brokers, now, changes, monkeypatch):
    """Brokers too slow for a pass: a new manifest is judged by nothing rather than by an answer from before it."""
    assert brokers.state(REF, lambda: KafkaState(brokers=3), 1).brokers == 3
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.01)
    slow = Slow(KafkaState(brokers=2))
    assert brokers.state(REF, slow, 2).reason == "Unknown"
    asking = brokers._known[REF].asking
    slow.go.set()
    asking.result(30)
    assert changes == [REF]
    assert brokers.state(REF, slow, 2).brokers == 2


def test_lag_alone_brings_no_pass(brokers, changes, now, monkeypatch):
    """It changes all the time; whoever is in the group is worth a look."""
    brokers.state(REF, lambda: KafkaState(lag=1), 1)
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.0)
    for state, expected in ((KafkaState(lag=2), []), (KafkaState(lag=2, group=Group("Stable")), [REF])):
        now[0] += 5
        slow = Slow(state)
        brokers.state(REF, slow, 1)
        asking = brokers._known[REF].asking
        slow.go.set()
        if asking is not None:
            asking.result(30)
        assert changes == expected


def test_failure_of_the_question_is_an_answer(brokers):
    """A mistake of ours does not end the passes."""

    def broken():
        raise ValueError

    state = brokers.state(REF, broken, 1)
    assert (state.reason, state.error) == ("Unreachable", "Asking the brokers failed: ValueError")


def test_forgotten_application_begins_anew(brokers):
    """Another of the same name is another application."""
    brokers.state(REF, lambda: KafkaState(brokers=3), 1)
    brokers.forget(REF)
    assert brokers.state(REF, lambda: KafkaState(brokers=2), 1).brokers == 2
