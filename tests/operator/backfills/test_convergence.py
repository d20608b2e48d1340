"""Whatever happens, a backfill leaves no inconsistent state and ends."""

from hypothesis import example, given
from hypothesis import strategies as st
from tests.operator.backfills.world import World, phases, running, spec

from millrace_operator.backfills.reconciler import (
    CreateObject,
    reconcile_backfill,
)
from millrace_operator.children.naming import FINALIZER

EVENTS = st.one_of(
    st.sampled_from(
        [
            "start",
            "compute",
            "publish",
            "succeed",
            "fail",
            "die",
            "vanish",
            "refuse",
            "report",
            "delete",
            "change",
            "ends",
            "app",
            "unreadable",
            "readable",
            "silent",
            "heard",
            "unsubmitted",
            "rollback",
            "upgrade",
            "app unreadable",
            "app readable",
        ]
    ),
    st.tuples(st.just("pass"), st.one_of(st.none(), st.integers(0, 2))),
    st.tuples(st.just("wait"), st.sampled_from([5, 70, 700])),
)


def happen(world, event):
    """Let one thing happen."""
    match event:
        case ("pass", crash):
            world.pass_over(crash)
        case ("wait", seconds):
            world.now += seconds
        case "delete":
            world.deleted = True
        case "change":
            world.app_changes = {"image": "registry.example/words:2"}
        case "ends":
            world.executors_end()
        case "app":
            world.app_pass()
        case "unreadable" | "readable":
            world.unreadable = event == "unreadable"
        case "silent" | "heard":
            world.brokers_answer = event == "heard"
        case "rollback" | "upgrade":
            world.older = event == "rollback"
        case "app unreadable" | "app readable":
            world.app_unreadable = event == "app unreadable"
        case "unsubmitted":
            world.fail_submission()
        case _:
            world.spark(event)


PASS = ("pass", None)


CANCELLED_UNHEARD = [PASS, "app", PASS, "silent", "delete", *["unsubmitted", PASS, ("wait", 70)] * 20]


@example(events=CANCELLED_UNHEARD, attempts=1, in_one_transaction=False)
@given(st.lists(EVENTS, max_size=40), st.sampled_from([1, 2]), st.booleans())
def test_whatever_happens_there_is_no_half_state_and_it_ends(events, attempts, in_one_transaction):
    """Jobs fail and operators die at any moment: nothing or everything is published when the application runs again.

    And never do both write at the same time, which the world checks.
    """
    world = World(spec=spec(attempts=attempts), in_one_transaction=in_one_transaction)
    for event in events:
        if world.gone:
            break
        happen(world, event)
        assert not (world.half and world.pods), "the application runs on an inconsistent state"
    world.brokers_answer, world.older, world.app_unreadable = True, False, False
    if not world.gone:
        world.settle(passes=400)
    world.app_pass()
    created = {action.object["metadata"]["name"] for action in world.done if isinstance(action, CreateObject)}
    assert len(created - {"history.backfill"}) <= attempts + 1, "one that was deleted has one more attempt at most"
    if world.half or world.is_kept:  # an older operator does not ask what is left
        assert phases(world) == ("Failed", True)
        assert world.pods == 0
        world.state = "suspended"
        world.settle()
    else:
        assert world.gone or world.pods == 2
    assert world.gone or FINALIZER not in world.finalizers
    assert not world.attempts_group, "it is of no use any more"


def test_reconcile_is_pure():
    """Two calls with the same arguments return the same."""
    world = running()
    assert reconcile_backfill(*world.look()) == reconcile_backfill(*world.look())
