"""How far tasks are, as they tell the driver."""

import socket

import pytest
from tests.waiting import wait_until

from millrace.backfill.progress import Progress, StageProgress, Teller
from millrace.backfill.stages import Stage
from millrace.records import TaskId


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        """Return the time."""
        return self.now


def stage(subtopology, tasks):
    """Return a stage of one sub-topology."""
    ids = tuple(TaskId(subtopology, number) for number in range(tasks))
    return Stage(ids, frozenset({"in"}), frozenset(), frozenset())


@pytest.fixture
def clock():
    """Time that does not pass by itself."""
    return Clock()


@pytest.fixture
def progress(clock):
    """What a driver hears of a stage that reads 1 000 records from Kafka, and of one that reads what it sends."""
    with Progress(clock=clock) as progress:
        progress.expect(0, stage(0, 2), 1_000)
        progress.expect(1, stage(1, 4), None)
        yield progress


def tell(progress, number, task, records, size=0, *, pass_number=0, done=False):
    """Tell as a task does, and wait until the driver has heard it."""
    before = progress.stages()[number]
    teller = Teller(progress.address, number, pass_number, task)
    teller.tell(records, size, done=done)
    teller.close()
    wait_until(lambda: progress.stages()[number] != before, "it is heard", 30)


def test_rate_and_time_left_are_those_of_the_last_half_minute(progress, clock):
    """With the number of offsets to be read the rest is known from the start; the rate is level, not that of a moment."""
    tell(progress, 0, "0_0", 100, 1_000)
    clock.now += 5
    tell(progress, 0, "0_1", 50, 600)
    clock.now += 5
    tell(progress, 0, "0_0", 200, 2_000)
    assert progress.stages()[0] == StageProgress("sub-topology 0", 2, 0, 250, 2_600, 15, 50)
    clock.now += 31
    tell(progress, 0, "0_0", 300, 3_000)
    clock.now += 10
    tell(progress, 0, "0_0", 400, 4_000)
    assert progress.stages()[0] == StageProgress("sub-topology 0", 2, 0, 450, 4_600, 10, 55)
    tell(progress, 0, "0_0", 600, done=True)
    tell(progress, 0, "0_1", 400, done=True)
    assert progress.stages()[0] == StageProgress("sub-topology 0", 2, 2, 1_000, 0, None, None)


def test_what_comes_from_other_stages_is_estimated_from_the_tasks_that_are_done(progress, clock):
    """Until then nobody knows how much it is."""
    tell(progress, 1, "1_0", 10)
    clock.now += 10
    tell(progress, 1, "1_0", 110)
    assert progress.stages()[1].eta_seconds is None
    tell(progress, 1, "1_0", 110, done=True)
    assert progress.stages()[1] == StageProgress("sub-topology 1", 4, 1, 110, 0, 10, 33)


def test_a_pass_begins_again(progress):
    """Of a stage that is run in passes the latest counts, whatever a late datagram of an earlier one says."""
    tell(progress, 1, "1_0", 10, done=True)
    tell(progress, 1, "1_0", 3, pass_number=1)
    assert (progress.stages()[1].records, progress.stages()[1].done) == (3, 0)
    late = Teller(progress.address, 1, 0, "1_1")
    late.tell(100, 0)
    late.close()
    tell(progress, 1, "1_1", 4, pass_number=1)
    assert progress.stages()[1].records == 7


def test_strangers_are_not_heard(progress):
    """A datagram without the token changes nothing, whatever it says, and does not end the listener."""
    before = progress.stages()
    strangers = [b"", b"x", b"[]", b'{"stage": 0}', b'{"token": "guess", "stage": 0, "task": "0_0", "records": 9}']
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        for said in strangers:
            other.sendto(said, progress.address[:2])
    tell(progress, 1, "1_0", 1)
    assert progress.stages()[0] == before[0]


def test_once_computed_all_tasks_are_done(progress):
    """Datagrams may be lost, so the driver says it in the end."""
    tell(progress, 0, "0_0", 600)
    progress.finish()
    assert [(found.done, found.records) for found in progress.stages()] == [(2, 600), (4, 0)]


def test_a_driver_that_is_gone_does_not_disturb():
    """Nothing depends on it."""
    progress = Progress()
    with progress:
        address = progress.address
    teller = Teller(address, 0, 0, "0_0")
    for records in range(10):
        teller.tell(records, 0, done=True)
    teller.close()
    assert progress.stages() == []
