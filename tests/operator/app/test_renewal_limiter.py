"""Permits to renew pods: how many at a time, in which order, and how they end."""

import pytest

from millrace_operator.app.renewal_limiter import RenewalLimiter
from millrace_operator.cluster.kinds import APPS
from millrace_operator.model import Renewal, ResourceRef

BEGIN = Renewal(left=3, coming=False)
HOUR = 3600


class Clock:
    """A clock that only the test advances."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def app(name):
    """Return the name of an application."""
    return ResourceRef(APPS.kind, "shop", name)


@pytest.fixture
def clock():
    """Give a clock."""
    return Clock()


@pytest.fixture
def woken():
    """Give the applications that were woken."""
    return []


@pytest.fixture
def two(clock, woken):
    """Give permits to two applications at a time; `a` and `b` have theirs, `c` and `d` wait."""
    renewals = RenewalLimiter(2, woken.append, clock)
    for name in "abcd":
        renewals.report(app(name), BEGIN)
    return renewals


def turns(renewals, names="abcd"):
    """Return which applications have a permit."""
    return "".join(name for name in names if renewals.permit_of(app(name)) == "Now")


def test_so_many_have_their_turn_as_may_and_the_others_wait(two, woken):
    """First come, first served; each application is woken when it gets its permit."""
    assert turns(two) == "ab"
    assert two.permit_of(app("c")) == "Waits"
    assert woken == [app("a"), app("b")]


def test_the_next_one_follows_who_is_done(two, woken):
    """An application that no longer needs its permit passes it to the one that has waited longest."""
    two.report(app("a"), None)
    assert turns(two) == "bc"
    assert woken[2:] == [app("c")]


def test_who_does_not_need_a_turn_any_more_does_not_wait(two):
    """It may have been paused or deleted."""
    two.report(app("c"), None)
    two.report(app("a"), None)
    assert turns(two) == "bd"


def test_a_permit_that_leads_nowhere_ends(two, clock):
    """An application whose gate stays closed goes to the end of the queue; one that makes progress keeps its permit."""
    two.report(app("b"), BEGIN)
    clock.now = 0.1 * HOUR
    two.report(app("b"), Renewal(left=2, coming=False))
    clock.now = 0.2 * HOUR
    two.report(app("a"), BEGIN)
    assert turns(two) == "bc"
    two.report(app("a"), BEGIN)
    two.report(app("b"), None)
    assert turns(two) == "cd"
    two.report(app("c"), None)
    assert turns(two) == "ad"


def test_a_turn_is_kept_for_longer_while_a_pod_is_down(two, clock):
    """The template may be at fault: the others start later, but they do start."""
    down = Renewal(left=2, coming=True)
    for name in "ab":
        two.report(app(name), down)
    clock.now = 0.9 * HOUR
    two.report(app("c"), BEGIN)
    assert turns(two) == "ab"
    clock.now = 1.1 * HOUR
    two.report(app("c"), BEGIN)
    assert turns(two) == "cd"


def test_flapping_pod_does_not_prolong_a_permit(two, clock):
    """Only fewer pods left to replace count as progress."""
    for part in range(12):
        clock.now = part * 0.1 * HOUR
        two.report(app("a"), Renewal(left=2, coming=part % 2 == 0))
    assert "a" not in turns(two)


def test_unused_permit_expires(clock):
    """The passes of the application that got the permit fail, so it never reports anything."""
    renewals = RenewalLimiter(1, lambda _: None, clock)
    for name in "abc":
        renewals.report(app(name), BEGIN)
    renewals.report(app("a"), None)
    assert turns(renewals) == "b"
    clock.now = HOUR
    renewals.report(app("c"), BEGIN)
    assert turns(renewals) == "c"


def test_next_operator_resumes_unfinished_renewals(woken):
    """The permit is recorded in the status; nobody else gets one before it ends."""
    renewals = RenewalLimiter(1, woken.append)
    renewals.resume([resource("b", "RenewalUnderWay"), resource("c", "TemplateOutdated"), resource("d", None)])
    renewals.report(app("a"), BEGIN)
    assert turns(renewals) == "b"
    renewals.report(app("b"), None)
    assert turns(renewals) == "a"


def resource(name, reason):
    """Return a resource whose pods are up to date, or outdated for the given reason."""
    conditions = [{"type": "PodsCurrent", "status": "False", "reason": reason}] if reason else []
    return {"metadata": {"namespace": "shop", "name": name}, "status": {"conditions": conditions}}


def test_no_turn_is_ever_given_where_none_is_to_be(woken):
    """With 0, pods are replaced only when something else replaces them."""
    renewals = RenewalLimiter(0, woken.append)
    renewals.resume([resource("a", "RenewalUnderWay")])
    renewals.report(app("a"), BEGIN)
    assert renewals.permit_of(app("a")) == "Never"
    assert woken == []
