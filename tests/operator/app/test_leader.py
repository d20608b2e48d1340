"""Leader election over a Lease, with an API server of one object and controlled clocks."""

import copy
import threading

import pytest

from millrace_operator.app.leader import Leader
from millrace_operator.cluster.requests import ApiError


class OneLease:
    """Keeps one Lease with optimistic concurrency, as the API server does."""

    def __init__(self):
        self.lease = None
        self.version = 0
        self.down = False
        self.before_write = lambda: None

    def get(self, kind, namespace, name):
        self._answer()
        if self.lease is None:
            raise ApiError("get", 404, "NotFound", "")
        return copy.deepcopy(self.lease)

    def create(self, kind, namespace, body):
        self._answer()
        self.before_write()
        if self.lease is not None:
            raise ApiError("create", 409, "AlreadyExists", "")
        return self._keep(body)

    def update(self, kind, namespace, name, body):
        self._answer()
        self.before_write()
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError("update", 409, "Conflict", "")
        return self._keep(body)

    def _answer(self):
        if self.down:
            raise ApiError("any", 0, "NoAnswer", "")

    def _keep(self, body):
        self.version += 1
        self.lease = copy.deepcopy(dict(body))
        self.lease["metadata"] = {**body["metadata"], "resourceVersion": str(self.version)}
        return copy.deepcopy(self.lease)


@pytest.fixture
def now():
    """A clock."""
    return [1000.0]


@pytest.fixture
def api():
    """An API server."""
    return OneLease()


def candidate(api, now, name, offset=0.0):
    """A candidate whose clock is off by this much."""
    return Leader(api, namespace="ns", name="l", identity=name, seconds=15, clock=lambda: now[0] + offset)


def test_first_candidate_gets_the_lease_and_the_second_waits(api, now):
    """Only one of two may write."""
    first, second = candidate(api, now, "a"), candidate(api, now, "b")
    assert (first.step(), second.step()) == (True, False)
    assert first.may_write_seconds() > 0 >= second.may_write_seconds()
    assert api.lease["spec"]["holderIdentity"] == "a"


def test_lease_that_is_renewed_is_not_taken(api, now):
    """A holder that keeps renewing keeps the Lease, however long another waits."""
    first, second = candidate(api, now, "a"), candidate(api, now, "b")
    for _ in range(50):
        assert (first.step(), second.step()) == (True, False)
        now[0] += 2


@pytest.mark.parametrize("offset", [-1e6, 0.0, 1e6])
def test_dead_holder_may_not_write_before_another_may(api, now, offset):
    """At any moment at most one may write, however far apart the two clocks are."""
    first, second = candidate(api, now, "a"), candidate(api, now, "b", offset)
    first.step()
    second.step()
    taken = False
    for _ in range(40):
        now[0] += 0.5
        taken = second.step() or taken
        assert not (first.may_write_seconds() > 0 and second.may_write_seconds() > 0)
    assert taken


def test_holder_that_cannot_reach_the_api_server_stops_in_time(api, now):
    """Without renewals, writing stops a third of the duration before the Lease expires."""
    first = candidate(api, now, "a")
    first.step()
    api.down = True
    now[0] += 9.9
    assert first.step()
    now[0] += 0.2
    assert not first.step()
    assert first.may_write_seconds() <= 0


def test_lease_time_counts_from_before_its_renewal(api, now):
    """The duration counts from before the renewal was sent, because its answer may come late."""
    first = candidate(api, now, "a")

    def slow():
        now[0] += 8

    api.before_write = slow
    first.step()
    assert first.may_write_seconds() == pytest.approx(2.0)


def test_faster_candidate_wins(api, now):
    """If two write at once, the API server accepts one; the other gets a conflict and may not write."""
    first, second = candidate(api, now, "a"), candidate(api, now, "b")

    def overtake():
        api.before_write = lambda: None
        assert second.step()

    api.before_write = overtake
    assert not first.step()
    assert first.may_write_seconds() <= 0 < second.may_write_seconds()


def test_released_lease_is_taken_at_once(api, now):
    """After a clean shutdown nobody has to wait, and the former holder may no longer write."""
    first, second = candidate(api, now, "a"), candidate(api, now, "b")
    first.step()
    second.step()
    first.release()
    assert first.may_write_seconds() <= 0
    assert second.step()
    assert api.lease["spec"]["holderIdentity"] == "b"


def test_holder_continues_after_a_late_answer_to_its_renewal(api, now):
    """The renewal was written but its answer was lost: the next one reads the Lease and finds itself as the holder."""
    first = candidate(api, now, "a")
    first.step()
    api.lease["metadata"]["resourceVersion"] = "99"
    assert first.step()
    assert first.may_write_seconds() > 0


def test_holder_reads_the_lease_once_and_then_only_writes_it(api, now):
    """A renewal is one request."""
    first, reads = candidate(api, now, "a"), []
    first.step()
    read = api.get
    api.get = lambda *arguments: reads.append(1) or read(*arguments)
    for _ in range(5):
        now[0] += 3
        assert first.step()
    assert reads == []


def test_restarted_holder_of_the_same_name_continues_immediately(api, now):
    """A pod whose container is restarted need not wait for its own Lease to expire."""
    candidate(api, now, "a").step()
    assert candidate(api, now, "a").step()


def test_run_ends_when_another_has_the_lease(api, now):
    """`run` returns False after calling `on_held` once; a Lease that is free again by then is not taken twice."""
    begun, other = [], candidate(api, now, "b")

    def begin():
        begun.append(1)
        other.step()
        now[0] += 100
        assert other.step()
        other.release()

    leader = candidate(api, now, "a")
    leader.pause_seconds = 0.0
    assert leader.run(threading.Event(), begin) is False
    assert begun == [1]
    assert api.lease["spec"]["holderIdentity"] == ""
    assert leader.may_write_seconds() <= 0


def test_run_outlasts_a_time_without_an_api_server(api, now):
    """Nothing is written meanwhile; afterwards the holder may continue, once it has seen that it still holds the Lease."""
    stop, begun, could_write = threading.Event(), [], []
    leader = candidate(api, now, "a")
    leader.pause_seconds = 0.0

    def answer():
        if not begun or len(could_write) == 3:
            return
        now[0] += 20
        could_write.append(leader.may_write_seconds() > 0)
        raise ApiError("any", 0, "NoAnswer", "")

    def begin():
        begun.append(leader.may_write_seconds() > 0)
        if len(begun) == 2:
            stop.set()

    api._answer = answer
    assert leader.run(stop, begin) is True
    assert could_write == [False] * 3
    assert begun == [True, True]
