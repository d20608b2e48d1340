"""The work queue: each key once, never twice at a time, failures isolated."""

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_operator.app.backoff import Backoff
from millrace_operator.app.queue import WorkQueue, WorkSchedule


def test_key_waits_once_however_often_it_is_added():
    """Several reasons that arrive before a pass lead to a single pass."""
    schedule = WorkSchedule()
    for _ in range(5):
        schedule.add("a", 0.0)
    assert schedule.take(0.0) == "a"
    schedule.done("a")
    assert schedule.take(0.0) is None


def test_key_is_never_worked_on_twice_at_the_same_time():
    """A key added while it is being worked on is taken again only when that has finished."""
    schedule = WorkSchedule()
    schedule.add("a", 0.0)
    assert schedule.take(0.0) == "a"
    schedule.add("a", 0.0)
    assert schedule.take(0.0) is None
    assert schedule.next_due() is None
    schedule.done("a")
    assert schedule.take(0.0) == "a"


def test_earliest_of_several_times_counts():
    """A later reason does not delay an earlier one."""
    schedule = WorkSchedule()
    for after in (10.0, 2.0, 30.0):
        schedule.add("a", 0.0, after)
    assert schedule.take(1.9) is None
    assert schedule.take(2.0) == "a"


def test_longest_due_key_comes_first():
    """Keys are taken in the order in which they became due."""
    schedule = WorkSchedule()
    schedule.add("late", 0.0, 2.0)
    schedule.add("early", 0.0, 1.0)
    assert [schedule.take(3.0), schedule.take(3.0)] == ["early", "late"]


def failed_once(backoff, *, urgent=False):
    """A schedule whose key has failed at time 0."""
    schedule = WorkSchedule(backoff)
    schedule.add("a", 0.0)
    assert schedule.take(0.0) == "a"
    if urgent:
        schedule.add("a", 0.0, urgent=True)
    schedule.done("a")
    schedule.failed("a", 0.0, 0.0)
    return schedule


def test_failing_key_is_retried_later_each_time():
    """The delay doubles up to its limit."""
    schedule, delays, now = WorkSchedule(Backoff(1.0, 8.0, 0.0)), [], 0.0
    schedule.add("a", now)
    for _ in range(6):
        assert schedule.take(now) == "a"
        schedule.done("a")
        delays.append(schedule.failed("a", now, 0.0))
        now += delays[-1]
    assert delays == [1, 2, 4, 8, 8, 8]


def test_jitter_spreads_what_failed_together():
    """Jitter adds at most the given fraction of the delay."""
    backoff = Backoff(1.0, 8.0, 0.5)
    assert [backoff.seconds(1, 0.0), backoff.seconds(1, 1.0), backoff.seconds(99, 1.0)] == [1.0, 1.5, 12.0]


def test_event_does_not_bring_a_failed_key_forward():
    """Events caused by a failing pass must not turn it into a busy loop."""
    schedule = failed_once(Backoff(4.0, 8.0, 0.0))
    schedule.add("a", 1.0)
    assert schedule.take(3.9) is None
    assert schedule.take(4.0) == "a"


def test_user_brings_a_failed_key_forward():
    """A changed manifest is worked on at once, and its failures are counted from zero."""
    schedule = failed_once(Backoff(4.0, 8.0, 0.0))
    schedule.add("a", 1.0, urgent=True)
    assert schedule.take(1.0) == "a"
    assert schedule.failures("a") == 0


def test_change_during_a_failing_pass_is_not_delayed():
    """The pass failed for the older manifest: the newer one is worked on at once."""
    schedule = failed_once(Backoff(4.0, 8.0, 0.0), urgent=True)
    assert schedule.take(0.1) == "a"


def test_failing_key_does_not_delay_others():
    """Each key has its own back-off."""
    schedule = failed_once(Backoff(100.0, 1000.0, 0.0))
    schedule.add("good", 1.0)
    assert schedule.take(1.0) == "good"


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "later", "urgent", "take", "done", "failed", "time"]),
        st.sampled_from("abc"),
        st.integers(0, 9),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(_STEPS)
def test_no_key_is_lost_or_doubled(steps):
    """In any sequence of operations, every added key is eventually taken, and none twice at once."""
    schedule, now, running, owed = WorkSchedule(Backoff(1.0, 4.0, 0.0)), 0.0, set(), set()
    for step, key, number in steps:
        match step:
            case "add" | "later" | "urgent":
                schedule.add(key, now, number if step == "later" else 0.0, urgent=step == "urgent")
                owed.add(key)
            case "take":
                taken = schedule.take(now)
                assert taken is None or taken not in running
                if taken is not None:
                    running.add(taken)
                    owed.discard(taken)
            case "done" if key in running:
                running.discard(key)
                schedule.forget(key)
                schedule.done(key)
            case "failed" if key in running:
                running.discard(key)
                schedule.done(key)
                schedule.failed(key, now, 0.0)
                owed.add(key)
            case "time":
                now += number
    for key in running:
        schedule.done(key)
    rest = []
    while (taken := schedule.take(now + 100)) is not None:
        rest.append(taken)
    assert sorted(rest) == sorted(owed)


def test_threads_share_the_work_and_each_key_is_worked_on_alone():
    """With several workers every key is worked on, none by two at once."""
    queue, lock, active, seen, done, doubled = WorkQueue(), threading.Lock(), set(), set(), threading.Event(), []

    def work():
        while (key := queue.take()) is not None:
            with lock:
                doubled.extend({key} & active)
                active.add(key)
            queue.add(key, 0.001)
            with lock:
                active.discard(key)
                seen.add(key)
                if seen == set(range(50)):
                    done.set()
            queue.done(key, again_after=60.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for key in range(50):
        queue.add(key)
    assert done.wait(120)
    queue.close()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert doubled == []


def test_waiting_thread_wakes_when_a_key_becomes_due():
    """A delayed key is taken even if nothing else happens."""
    queue = WorkQueue()
    queue.add("a", 0.02)
    assert queue.take() == "a"


def test_closed_queue_gives_nothing():
    """Workers stop, even if keys are left."""
    queue = WorkQueue()
    queue.add("a")
    queue.close()
    assert queue.take() is None


def test_depth_counts_keys_that_are_due():
    """Keys that are scheduled for later are not a backlog."""
    now = [0.0]
    queue = WorkQueue(clock=lambda: now[0])
    queue.add("a")
    queue.add("b", 100.0)
    now[0] = 7.0
    assert queue.depth() == 1
    assert queue.take() == "a"
    assert queue.depth() == 0


def test_thousands_of_keys_are_planned_without_looking_at_all_of_them():
    """The cost of a key does not depend on how many others are waiting."""

    class Key(int):
        compared = 0

        def __hash__(self):
            Key.compared += 1
            return int.__hash__(self)

    schedule, costs = WorkSchedule(), []
    for number in range(4000):
        schedule.add(Key(number), 0.0, 10.0 + number)
    for number in range(100):
        Key.compared = 0
        assert schedule.take(10.0 + number) == number
        schedule.next_due()
        costs.append(Key.compared)
    assert max(costs) < 50
