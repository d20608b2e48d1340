"""Whether the application id is this application's alone.

Two topologies in one consumer group take each other's tasks, and share internal topics that fit only one of them. So an
application without pods does not begin while another StreamsApp has a better right to the id, or somebody unknown is in the
group. A StreamsApp that another one's `handover` names has no right; else one that runs goes before one that does not, and an
older one before a younger one. What runs is never stopped for it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace_operator.model import Neighbour
from millrace_operator.reconcile import members
from millrace_operator.reconcile.reasons import REASONS, Reason
from millrace_operator.reconcile.turn import NOT_ASKED, Turn
from millrace_operator.reconcile.view import seconds

_QUIET_S: Final = 300
"""How long nobody else may have been in the group before its members count as gone: they may only be restarting."""


class _Objection(NamedTuple):
    """Why the application must not begin."""

    reason: Reason
    message: str


def settle(turn: Turn) -> None:
    """Settle ApplicationIdUnique, and whether the application may begin."""
    objection = _of_others(turn) or _of_the_group(turn)
    if objection is None:
        if turn.brokers_answer:
            turn.settle("True", Reason.UNIQUE)
        else:
            turn.settle_unknown(Reason.MEMBERS_UNKNOWN)
        return
    left = objection.reason is Reason.MEMBERS_LEFT  # since when, is told by the condition's time
    turn.settle("Unknown" if left else "False", *objection)
    if not _is_to_begin(turn):
        return
    turn.may_begin = False
    if not turn.spec.replicas and turn.spec.autoscaling.mode != "Auto":
        return  # it is to have no pods anyway, so nothing keeps it from going on
    turn.look_after(5)
    if objection.reason in {Reason.HANDOVER_PENDING, Reason.MEMBERS_LEFT}:
        turn.settle("True", Reason.WAITING_FOR_HANDOVER, objection.message)
    else:
        turn.settle("True", Reason.APPLICATION_ID_IN_USE, objection.message)


def claimants(turn: Turn) -> list[Neighbour]:
    """Return the other StreamsApps with the same group and internal topics."""
    return [item for item in turn.observed.neighbours if item.same_id]


def _is_to_begin(turn: Turn) -> bool:
    return turn.spec.state == "running" and not turn.view.has_pods


def _of_others(turn: Turn) -> _Objection | None:
    app, handover = turn.desired, turn.spec.handover
    old = None if handover is None else handover.from_.name
    for item in claimants(turn):
        if item.takes_over:
            return _Objection(
                Reason.HANDED_OVER,
                f"StreamsApp {item} takes the application id {turn.spec.application_id} over (spec.handover). Delete this one, "
                "with the policy Retain or Purge; or remove that handover to keep it.",
            )
    for item in claimants(turn):
        if (item.namespace, item.name) == (app.namespace, old):
            if item.runs and not turn.spec.handover_is_rolling:
                message = f"StreamsApp {item} still has pods. Suspend it, or delete it with the policy Retain."
                return _Objection(Reason.HANDOVER_PENDING, message)
        elif item.runs or (item.created, item.uid) < (app.created, app.uid):
            return _Objection(
                Reason.DUPLICATE_APPLICATION_ID,
                f"StreamsApp {item} has the same applicationId {turn.spec.application_id} on the same brokers, and "
                f"{'runs' if item.runs else 'is older'}. Delete one of them, or let this one take over with "
                "spec.handover.from.name (in the same namespace).",
            )
    return None


def _of_the_group(turn: Turn) -> _Objection | None:
    if not _is_to_begin(turn) or turn.spec.handover_is_rolling:
        return None
    if not turn.brokers_answer:
        return _after_refusal(turn)
    told = members.listed(members.foreign(turn))
    if turn.spec.handover is not None and told:
        return _Objection(Reason.HANDOVER_PENDING, f"Members that are still in the group: {told}. Stop them.")
    if told:
        return _Objection(
            Reason.GROUP_IN_USE,
            f"Members of group {turn.spec.application_id} are not pods of this StreamsApp: {told}. If it is to take their place, "
            "set spec.handover.from. If it has their id by mistake, delete it. If they are gone for good, set another "
            "restartNonce.",
        )
    if (objection := _after_refusal(turn)) is not None:
        return objection
    if left := members.listed(members.former(turn)):
        return _Objection(
            Reason.HANDOVER_PENDING,
            f"Members of an earlier StreamsApp {turn.desired.name} are still in the group: {left}. Static ones are removed, and "
            "others leave when their session is over.",
        )
    return None


def _after_refusal(turn: Turn) -> _Objection | None:
    """Return why the application does not begin as soon as those are not seen any more who kept it from beginning.

    An application that restarts leaves its group empty for a moment, which is no reason to take its place.
    """
    before = turn.condition("ApplicationIdUnique")
    if turn.spec.handover is not None or before is None or before.observed_generation != turn.desired.generation:
        return None
    if before.reason not in {Reason.GROUP_IN_USE, Reason.MEMBERS_LEFT}:
        return None
    if not turn.brokers_answer:  # nobody knows who comes back meanwhile
        return None if turn.observed.kafka.reason == NOT_ASKED else _Objection(Reason.GROUP_IN_USE, before.message)
    has_left = before.reason == Reason.MEMBERS_LEFT
    left = _QUIET_S - (turn.now - seconds(before.last_transition_time) if has_left else 0)
    return _Objection(Reason.MEMBERS_LEFT, REASONS[Reason.MEMBERS_LEFT].meaning) if left > 0 else None
