"""The known state of brokers: the newest if they answer, the last known otherwise, and no waiting for silent ones."""

import queue
import threading

import pytest

from millrace_operator.kafka import state_cache as module
from millrace_operator.kafka.state_cache import AnswerAwaitedError, KafkaStateCache
from millrace_operator.model import ConsumerGroup, KafkaState, ResourceRef

REF = ResourceRef("StreamsApp", "shop", "orders")
DEADLINE = 120


@pytest.fixture
def changes():
    """The applications for which something new was reported."""
    return queue.Queue()


@pytest.fixture
def now():
    """A clock."""
    return [0.0]


@pytest.fixture
def brokers(changes, now):
    """Brokers with that clock."""
    told = KafkaStateCache(changes.put, lambda: now[0])
    yield told
    told.close()


@pytest.fixture
def state(brokers, changes):
    """Asks as passes do: postponed ones return when the answer arrives."""

    def state(ask, generation=1, ref=REF, cluster=""):
        while True:
            try:
                return brokers.state(ref, ask, generation, cluster)
            except AnswerAwaitedError:
                assert changes.get(timeout=DEADLINE) == ref

    return state


class Slow:
    """Answers when the test allows it."""

    def __init__(self, state):
        self.state = state
        self.begun, self.go = threading.Event(), threading.Event()
        self.asked = 0

    def __call__(self):
        self.asked += 1
        self.begun.set()
        assert self.go.wait(DEADLINE)
        return self.state


def test_pass_gets_the_newest_answer(state, now):
    """Brokers that answer in time are asked for each pass."""
    assert state(lambda: KafkaState(brokers=3)).brokers == 3
    now[0] += 5
    assert state(lambda: KafkaState(brokers=2)).brokers == 2


def test_passes_in_quick_succession_ask_once(state):
    """An answer that is a second old is new enough."""
    assert state(lambda: KafkaState(brokers=3)).brokers == 3
    assert state(lambda: KafkaState(brokers=2)).brokers == 3


def test_answer_that_took_long_is_used(brokers, state, now, changes):
    """The pass that was postponed for it does not ask again, however long the answer took."""
    slow = Slow(KafkaState(brokers=3))
    with pytest.raises(AnswerAwaitedError):
        brokers.state(REF, slow, 1)
    now[0] += 4
    slow.go.set()
    assert changes.get(timeout=DEADLINE) == REF
    assert state(slow).brokers == 3
    assert slow.asked == 1


def test_what_an_action_has_changed_is_asked_for_again(brokers, state):
    """An answer from before an action is outdated, however new it is."""
    state(lambda: KafkaState(brokers=3))
    brokers.changed(REF)
    assert state(lambda: KafkaState(brokers=2)).brokers == 2


def test_a_new_manifest_is_judged_by_what_is_true_now(brokers, state):
    """Answers for the old manifest do not count, however recent, nor does one still on its way."""
    assert state(lambda: KafkaState(brokers=3)).brokers == 3
    assert state(lambda: KafkaState(brokers=2), 2).brokers == 2
    brokers.changed(REF)
    slow = Slow(KafkaState(brokers=9))
    with pytest.raises(AnswerAwaitedError):
        brokers.state(REF, slow, 2)
    with pytest.raises(AnswerAwaitedError):
        brokers.state(REF, slow, 3)
    slow.go.set()
    assert state(lambda: KafkaState(brokers=1), 3).brokers == 1


def test_brokers_that_do_not_answer_hold_no_pass_up(brokers, now, changes):
    """The pass is postponed once; then it continues with the known state, and the late answer starts another pass."""
    slow = Slow(KafkaState(brokers=3))
    with pytest.raises(AnswerAwaitedError) as put_off:
        brokers.state(REF, slow, 1)
    assert slow.begun.wait(DEADLINE)
    now[0] += put_off.value.seconds
    assert brokers.state(REF, slow, 1).reason == "Unknown"
    now[0] += 60
    assert brokers.state(REF, slow, 1).reason == "Unknown"
    assert slow.asked == 1, "one question at a time"
    assert changes.empty()
    slow.go.set()
    assert changes.get(timeout=DEADLINE) == REF
    now[0] += module._FRESH_SECONDS / 2
    assert brokers._known[REF].state.brokers == 3


def test_brokers_that_were_late_are_not_waited_for_again(brokers, state, now, changes):
    """Passes continue at once with the previous answer, until one arrives in time."""
    state(lambda: KafkaState(brokers=3))
    now[0] += 5
    slow = Slow(KafkaState(brokers=2))
    with pytest.raises(AnswerAwaitedError) as put_off:
        brokers.state(REF, slow, 1)
    now[0] += put_off.value.seconds
    assert brokers.state(REF, slow, 1).brokers == 3
    slow.go.set()
    assert changes.get(timeout=DEADLINE) == REF
    now[0] += 5
    again = Slow(KafkaState(brokers=1))
    assert brokers.state(REF, again, 1).brokers == 2
    again.go.set()
    assert changes.get(timeout=DEADLINE) == REF


def test_what_was_true_for_an_older_manifest_is_not_handed_out(brokers, state, now, changes):
    """With slow brokers, a new manifest is judged by no answer rather than by one from before it."""
    assert state(lambda: KafkaState(brokers=3)).brokers == 3
    slow = Slow(KafkaState(brokers=2))
    with pytest.raises(AnswerAwaitedError) as put_off:
        brokers.state(REF, slow, 2)
    now[0] += put_off.value.seconds
    assert brokers.state(REF, slow, 2).reason == "Unknown"
    slow.go.set()
    assert changes.get(timeout=DEADLINE) == REF
    assert state(slow, 2).brokers == 2


@pytest.mark.parametrize(
    ("seen", "tells"), [(KafkaState(lag=2), False), (KafkaState(group=ConsumerGroup("Stable")), True)]
)
def test_lag_alone_brings_no_pass(brokers, state, changes, now, seen, tells):
    """Lag changes all the time and starts no pass; a change of the group's members does."""
    state(lambda: KafkaState(lag=1))
    now[0] += 5
    slow = Slow(seen)
    with pytest.raises(AnswerAwaitedError) as put_off:
        brokers.state(REF, slow, 1)
    now[0] += put_off.value.seconds
    assert brokers.state(REF, slow, 1).lag == 1
    assert slow.begun.wait(DEADLINE)
    slow.go.set()
    brokers.close()
    brokers._threads._pool.shutdown(wait=True)
    assert changes.empty() is not tells


def test_failure_of_the_question_is_an_answer(state):
    """A bug in the operator does not end the passes."""

    def broken():
        raise ValueError

    told = state(broken)
    assert (told.reason, told.error) == ("Unreachable", "Asking the brokers failed: ValueError")


def test_forgotten_application_starts_from_scratch(brokers, state):
    """A later application with the same name is a different one."""
    state(lambda: KafkaState(brokers=3))
    brokers.forget(REF)
    assert state(lambda: KafkaState(brokers=2)).brokers == 2


def test_answer_for_a_forgotten_application_brings_no_pass(brokers, changes):
    """The application is gone, and so is whoever asked."""
    slow = Slow(KafkaState(brokers=3))
    with pytest.raises(AnswerAwaitedError):
        brokers.state(REF, slow, 1)
    brokers.forget(REF)
    assert slow.begun.wait(DEADLINE)
    slow.go.set()
    brokers.close()
    brokers._threads._pool.shutdown(wait=True)
    assert changes.empty()


def test_many_applications_at_rest_are_asked_about_in_turn(state, now):
    """With few settled applications, each pass asks; with a thousand, only some do."""
    few, many = 10, 1000
    for count, asked in ((few, few), (many, 0)):
        refs = [ResourceRef("StreamsApp", f"space-{count}", f"app-{number}") for number in range(count)]
        for ref in refs:
            state(lambda: KafkaState(brokers=3), ref=ref)
        now[0] += 30
        seen = [state(lambda: KafkaState(brokers=2), ref=ref).brokers for ref in refs]
        assert seen.count(2) == asked
    now[0] += 2
    assert state(lambda: KafkaState(brokers=2), ref=refs[0]).brokers == 2, "something is going on there"
    now[0] += 60
    assert state(lambda: KafkaState(brokers=1), ref=refs[1]).brokers == 1


def test_cluster_that_does_not_answer_leaves_threads_for_others(brokers, state):
    """However many applications ask it, one cluster never takes all threads."""
    silent = Slow(KafkaState(error="away", reason="Unreachable"))
    for number in range(200):
        with pytest.raises(AnswerAwaitedError):
            brokers.state(ResourceRef("StreamsApp", "shop", f"app-{number}"), silent, 1, "silent:9092")
    assert state(lambda: KafkaState(brokers=3), cluster="well:9092").brokers == 3
    silent.go.set()


def test_many_clusters_that_do_not_answer_leave_threads_for_those_that_do(brokers, state, now):
    """With many silent clusters, one that has answered before is still asked at once."""
    state(lambda: KafkaState(brokers=3), cluster="well:9092")
    silent = Slow(KafkaState(error="away", reason="Unreachable"))
    for number in range(200):
        with pytest.raises(AnswerAwaitedError):
            brokers.state(ResourceRef("StreamsApp", "shop", f"app-{number}"), silent, 1, f"silent-{number}:9092")
    now[0] += 5
    assert state(lambda: KafkaState(brokers=2), cluster="well:9092").brokers == 2
    silent.go.set()


def test_clusters_are_asked_in_turn(brokers, changes):
    """A cluster's only application does not wait for another cluster's queue."""
    busy, order = Slow(KafkaState()), queue.Queue()

    def ask(cluster, number, question):
        with pytest.raises(AnswerAwaitedError):
            brokers.state(ResourceRef("StreamsApp", cluster, f"app-{number}"), question, 1, f"{cluster}:9092")

    def note(cluster):
        order.put(cluster)
        return KafkaState()

    for number in range(module._THREADS_IN_DOUBT):
        ask(f"busy-{number}", number, busy)
    for number in range(20):
        ask("large", number, lambda: note("large"))
    ask("small", 0, lambda: note("small"))
    busy.go.set()
    first = [order.get(timeout=DEADLINE) for _ in range(21)]
    assert first.index("small") < module._THREADS_OF_A_CLUSTER
