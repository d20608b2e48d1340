"""Whether the application id is this application's alone.

Two topologies in one consumer group take each other's tasks, and share internal topics that fit only one of them. So an
application without pods does not begin while another StreamsApp has a better right to the id, or somebody unknown is in the
group. A StreamsApp that another one's `handover` names has no right; else one that runs goes before one that does not, and an
older one before a younger one. What runs is never stopped for it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace_operator.model import Member, Neighbour
from millrace_operator.reconcile import members
from millrace_operator.reconcile.reasons import Reason
from millrace_operator.reconcile.turn import Turn

_SHOWN: Final = 5


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
    turn.settle("False", *objection)
    if not _is_to_begin(turn):
        return
    turn.may_begin = False
    if not turn.spec.replicas and turn.spec.autoscaling.mode != "Auto":
        return  # it is to have no pods anyway, so nothing keeps it from going on
    turn.look_after(5)
    if objection.reason is Reason.HANDOVER_PENDING:
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
    if not _is_to_begin(turn) or not turn.brokers_answer or turn.spec.handover_is_rolling:
        return None
    told = _listed(members.foreign(turn))
    if turn.spec.handover is not None:
        message = f"Members that are still in the group: {told}. Stop them."
        return _Objection(Reason.HANDOVER_PENDING, message) if told else None
    if told:
        return _Objection(
            Reason.GROUP_IN_USE,
            f"Members of group {turn.spec.application_id} are not pods of this StreamsApp: {told}. If it is to take their place, "
            "set spec.handover.from. If it has their id by mistake, delete it. If they are gone for good, set another "
            "restartNonce.",
        )
    before = turn.condition("ApplicationIdUnique")
    # An application that restarts leaves its group empty for a moment, which is no reason to take its place.
    was_refused = before is not None and before.reason == Reason.GROUP_IN_USE
    if before is not None and was_refused and before.observed_generation == turn.desired.generation:
        return _Objection(Reason.GROUP_IN_USE, before.message)
    return None


def _listed(found: list[Member]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(sorted(map(str, found))[:_SHOWN]) + more
