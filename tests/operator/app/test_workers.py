"""Workers: every key is worked on, a failing key delays no other, and stuck workers are noticed."""

import threading

import pytest
from tests.waiting import wait_until

from millrace_operator.app.backoff import Backoff, FailedError, TransientError
from millrace_operator.app.metrics import OperatorMetrics
from millrace_operator.app.queue import Workers, WorkQueue
from millrace_operator.kafka.state_cache import AnswerAwaitedError
from millrace_operator.model import ResourceRef

DEADLINE = 120


def ref(name):
    """A resource."""
    return ResourceRef("StreamsApp", "shop", name)


@pytest.fixture
def queue():
    """A queue whose failed keys come back soon."""
    return WorkQueue(Backoff(0.01, 0.02, 0.0))


@pytest.fixture
def start(queue):
    """Starts workers with a pass; they stop when the test ends."""
    started = []

    def start(work, count=2):
        workers = Workers(queue, {"StreamsApp": work}, count=count, metrics=OperatorMetrics())
        workers.start()
        started.append(workers)
        return workers

    yield start
    queue.close()
    assert all(workers.join(DEADLINE) for workers in started)


@pytest.mark.parametrize("error", [TransientError("away"), FailedError("OperatorError", "bug"), RuntimeError("worse")])
def test_key_that_fails_is_tried_again_while_others_go_on(queue, start, error):
    """This holds for any kind of failure, and each pass gets the number of failures before it."""
    failures, good, enough = [], threading.Event(), threading.Event()

    def work(key, before):
        if key.name == "good":
            good.set()
            return
        failures.append(before)
        if len(failures) >= 4:
            enough.set()
        raise error.with_traceback(None)

    workers = start(work)
    queue.add(ref("poison"))
    queue.add(ref("good"))
    assert good.wait(DEADLINE)
    assert enough.wait(DEADLINE)
    assert failures[:4] == [0, 1, 2, 3]
    assert workers.problems(DEADLINE) == []


def test_key_comes_again_when_its_pass_has_asked_for_it(queue, start):
    """If the pass returns nothing, it never runs again."""
    times, enough = [], threading.Event()

    def work(key, before):
        times.append(key)
        if len(times) == 3:
            enough.set()
        return 0.0 if len(times) < 3 else None

    start(work)
    queue.add(ref("a"))
    assert enough.wait(DEADLINE)
    queue.add(ref("b"))
    assert times[:3] == [ref("a")] * 3


class SlowToReturn(WorkQueue):
    """A queue in which the thread that returns a key for the first time is suspended until another has taken the key."""

    def __init__(self, backoff):
        super().__init__(backoff)
        self.first = threading.Event()
        self.taken_again = threading.Event()

    def done(self, key, again_after=None):
        """Return it, and wait."""
        super().done(key, again_after=again_after)
        if not self.first.is_set():
            self.first.set()
            assert self.taken_again.wait(DEADLINE)


def test_two_workers_share_a_key_for_a_moment():
    """One has returned it to the queue and has not gone on yet, the other has taken it. Both go on working afterwards."""
    queue = SlowToReturn(Backoff(0.01, 0.02, 0.0))
    go, passes = threading.Event(), []

    def work(key, before):
        passes.append(key.name)
        again = 0.0 if len(passes) == 1 else None
        if again is None:
            queue.taken_again.set()
            if key.name == "a":
                assert go.wait(DEADLINE)
        return again

    workers = Workers(queue, {"StreamsApp": work}, count=2, metrics=OperatorMetrics())
    workers.start()
    queue.add(ref("a"))
    assert queue.taken_again.wait(DEADLINE)
    queue.add(ref("b"))
    wait_until(lambda: passes == ["a", "a", "b"], lambda: f"passes {passes}", DEADLINE)
    stuck = workers.problems(-1)
    go.set()
    queue.add(ref("c"))
    wait_until(lambda: passes == ["a", "a", "b", "c"], lambda: f"passes {passes}", DEADLINE)
    problems = workers.problems(DEADLINE)
    queue.close()
    assert workers.join(DEADLINE)
    assert "the pass over StreamsApp shop/a" in [item.partition(" has taken")[0] for item in stuck]
    assert problems == []
    assert passes == ["a", "a", "b", "c"]


def test_pass_that_sticks_is_a_problem(queue, start):
    """A long queue is not reported: a restart would only make it longer."""
    begun, go = threading.Event(), threading.Event()

    def work(key, before):
        begun.set()
        go.wait(DEADLINE)

    workers = start(work, count=1)
    queue.add(ref("a"))
    assert begun.wait(DEADLINE)
    queue.add(ref("b"))
    assert workers.problems(60) == []
    problems = workers.problems(-1)
    go.set()
    assert [item.partition(" has taken")[0] for item in problems] == ["the pass over StreamsApp shop/a"]


def test_pass_that_is_put_off_keeps_its_failures(queue, start):
    """A postponed pass is not a success: a key that keeps failing keeps its growing delays."""
    seen, enough = [], threading.Event()

    def work(key, before):
        seen.append(before)
        if len(seen) == 5:
            enough.set()
            return
        if len(seen) % 2:
            raise AnswerAwaitedError(0.0)
        raise TransientError("away")

    start(work)
    queue.add(ref("a"))
    assert enough.wait(DEADLINE)
    assert seen == [0, 0, 1, 1, 2]
