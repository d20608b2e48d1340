"""A replica's process: restarted with increasing delays when it dies, and stopped."""

from __future__ import annotations

import sys

import pytest
from tests.waiting import wait_until

from millrace.dev.local_replica import FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S, STABLE_AFTER_S, Replica, ReplicaState

STAYS = "import sys; print('up', flush=True); sys.stdin.read()"
STOPS_CLEANLY = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True)\n"
    "while True: time.sleep(0.05)"
)


class Clock:
    """A clock that only moves when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock():
    """Return a clock that does not move."""
    return Clock()


@pytest.fixture
def replica(tmp_path, clock):
    """Return a function that creates replicas, which are ended after the test."""
    made: list[Replica] = []

    def make(code: str) -> Replica:
        made.append(Replica("r-0", [sys.executable, "-c", code], tmp_path / "r-0" / "replica.log", clock=clock))
        return made[-1]

    yield make
    for item in made:
        item.stop()
        item.kill()
        poll_until(item, lambda item=item: item.pid is None)


def poll_until(replica: Replica, condition) -> None:
    """Poll until a condition holds."""
    wait_until(condition, replica.last_words, meanwhile=replica.poll, poll_s=0.01)


def test_first_poll_starts_the_process(replica):
    """A new replica is waiting; polling starts it."""
    subject = replica(STAYS)
    assert (subject.state, subject.pid) == (ReplicaState.WAITING, None)
    assert subject.poll()
    assert subject.state is ReplicaState.RUNNING
    assert subject.pid
    assert not subject.poll()


def test_dead_replica_is_started_again_later_each_time(replica, clock):
    """The delay doubles after each death, up to a limit, and restarts are counted."""
    subject = replica("raise SystemExit(1)")
    waits = []
    for restarts in range(1, 9):
        poll_until(subject, lambda expected=restarts: subject.restarts == expected)
        assert subject.state is ReplicaState.WAITING
        assert subject.exit_code == 1
        waits.append(subject.starts_in_s)
        assert not subject.poll()
        clock.now += subject.starts_in_s
    assert waits == [min(FIRST_BACK_OFF_S * 2**n, LONGEST_BACK_OFF_S) for n in range(8)]


def test_replica_that_ran_long_starts_over_with_a_short_wait(replica, clock):
    """Delays grow for a replica that cannot run, not for one that dies occasionally."""
    subject = replica(STAYS)
    for restarts in range(1, 4):
        poll_until(subject, lambda: subject.pid is not None)
        clock.now += STABLE_AFTER_S
        subject.kill()
        poll_until(subject, lambda expected=restarts: subject.restarts == expected)
        assert subject.exit_code == -9
        assert subject.starts_in_s == FIRST_BACK_OFF_S
        clock.now += FIRST_BACK_OFF_S


def test_wrong_input_is_not_tried_again(replica, clock):
    """Exit code 2 means that the user's input is wrong; the last error in the log says what."""
    subject = replica("import sys; print('Error: no such module\\nHint: none', file=sys.stderr); sys.exit(2)")
    poll_until(subject, lambda: subject.state is ReplicaState.FAILED)
    clock.now += 1000
    assert not subject.poll()
    assert subject.restarts == 0
    assert subject.last_words() == "Error: no such module"
    subject.stop()
    assert subject.state is ReplicaState.FAILED


@pytest.mark.parametrize(
    "line", ["Error: the reason", '{"level": "ERROR", "message": "Error: the reason"}'], ids=["text", "JSON"]
)
def test_last_error_is_kept_while_the_replica_runs_again(replica, clock, tmp_path, line):
    """It is the error of the run that failed, in a log of text or JSON, and none of an earlier one."""
    flag = tmp_path / "failed"
    subject = replica(
        f"import pathlib, sys\nflag = pathlib.Path({str(flag)!r})\nif flag.exists():\n"
        f"    print('up', flush=True); sys.stdin.read()\nflag.touch()\nprint({line!r})\nprint('the end')\nsys.exit(1)"
    )
    poll_until(subject, lambda: subject.restarts == 1)
    clock.now += FIRST_BACK_OFF_S
    poll_until(subject, lambda: subject.last_words() == "up")
    assert subject.last_error == "Error: the reason"
    subject.kill()
    poll_until(subject, lambda: subject.restarts == 2)
    assert subject.last_error == ""


def test_stop_lets_the_replica_end_by_itself(replica):
    """A stopped replica gets SIGTERM and is not restarted."""
    subject = replica(STOPS_CLEANLY)
    poll_until(subject, lambda: subject.last_words() == "up")
    subject.stop()
    assert subject.state is ReplicaState.STOPPING
    poll_until(subject, lambda: subject.state is ReplicaState.STOPPED)
    assert (subject.exit_code, subject.restarts) == (0, 0)


def test_stop_of_a_waiting_replica_cancels_its_start(replica):
    """A replica that is waiting to be started is not started after `stop`."""
    subject = replica(STAYS)
    subject.stop()
    assert subject.state is ReplicaState.STOPPED
    assert not subject.poll()


def test_end_of_the_host_is_seen_on_standard_input(replica):
    """The pipe to the replica closes with the host, so the replica can end too."""
    subject = replica(STAYS)
    poll_until(subject, lambda: subject.last_words() == "up")
    assert subject._process
    assert subject._process.stdin
    subject._process.stdin.close()
    poll_until(subject, lambda: subject.restarts == 1)
    assert subject.exit_code == 0


def test_last_words_of_a_silent_replica(replica):
    """Without a log there is no reason to report."""
    assert replica(STAYS).last_words() == ""
