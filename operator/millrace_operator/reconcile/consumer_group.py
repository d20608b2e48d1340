"""The consumer group: whether the application id belongs to this application alone, and which members are its own.

Two topologies in one consumer group take each other's tasks, and share internal topics that fit only one of them. So an
application without pods does not start while another StreamsApp has a better claim to the id, or somebody unknown is in the
group. A StreamsApp that is named in another one's `handover` has no claim; otherwise a running one takes precedence over one that
is not running, and an older one over a younger one. A running application is never stopped for this.

A group's name does not say who its members are: they may be a successor under another name, a Java application that is being
replaced, or the same manifest in another cluster. Our pods carry part of their StreamsApp's uid in their client and instance ids,
which the brokers show for every member, and only those members are ours. All others are left alone, and are a reason not to start
in their group without being told to.

Running pods keep the ids that they were given, even if by an older operator that chose others or by a StreamsApp that left them
behind: with new ids each would come back as a stranger to its tasks. When none of them is left, nor in the group, new pods get
the ids of this StreamsApp.

Members of earlier StreamsApps of this name, which a ConfigMap records, are ours as well: their pods have ended. They are removed,
and nothing starts while they are there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from millrace_operator.children import naming
from millrace_operator.model import ConsumerGroupMember, DesiredApp, Key, Neighbour, RemoveMembers
from millrace_operator.reconcile import retained
from millrace_operator.reconcile.children_view import ChildrenView
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import NOT_ASKED, ReconcileContext
from millrace_operator.reconcile.timestamps import seconds

_QUIET_S: Final = 300
"""How long the group must have had no foreign members before they count as gone: they may only be restarting."""


_Objection = tuple[ConditionReason, str]
"""Why the application must not start."""


def check_application_id(context: ReconcileContext) -> bool:
    """Set ApplicationIdUnique, and return whether the application may start."""
    is_to_begin = context.spec.state == "running" and context.observed.backfill is None and not context.view.has_pods
    objection = _of_others(context)
    if objection is None and is_to_begin and not context.spec.handover_is_rolling:
        objection = _of_the_group(context)
    if objection is None:
        if context.brokers_answer:
            context.set_condition("True", ConditionReason.UNIQUE)
        else:
            context.set_unknown(ConditionReason.MEMBERS_UNKNOWN)
        return True
    reason, message = objection
    left = reason is ConditionReason.MEMBERS_LEFT  # the condition's time records since when
    context.set_condition("Unknown" if left else "False", reason, message)
    if not is_to_begin:
        return True
    if not context.spec.replicas and context.spec.autoscaling.mode != "Auto":
        return False  # it should have no pods anyway, so this does not block it
    context.recheck_after(5)
    waits = reason in {ConditionReason.HANDOVER_PENDING, ConditionReason.MEMBERS_LEFT}
    context.set_condition(
        "True", ConditionReason.WAITING_FOR_HANDOVER if waits else ConditionReason.APPLICATION_ID_IN_USE, message
    )
    return False


def _of_others(context: ReconcileContext) -> _Objection | None:
    app, handover = context.desired, context.spec.handover
    old = None if handover is None else handover.from_.name
    for item in context.observed.claimants:
        if item.takes_over:
            return (
                ConditionReason.HANDED_OVER,
                (
                    f"StreamsApp {item} takes over the application id {context.spec.application_id} (spec.handover). Delete this "
                    "one, with the policy Retain or Purge; or remove that handover to keep it."
                ),
            )
    for item in context.observed.claimants:
        if (item.namespace, item.name) == (app.namespace, old):
            if item.backfill is not None:
                message = (
                    f"StreamsBackfill {item.backfill} keeps StreamsApp {item} stopped, and computes what this one would restore, "
                    "or has left half of it. Wait until it has ended, or see its message."
                )
                return ConditionReason.HANDOVER_PENDING, message
            if item.runs and not context.spec.handover_is_rolling:
                message = f"StreamsApp {item} still has pods. Suspend it, or delete it with the policy Retain."
                return ConditionReason.HANDOVER_PENDING, message
        elif item.runs or item.backfill is not None or (item.created, item.uid) < (app.created, app.uid):
            return (
                ConditionReason.DUPLICATE_APPLICATION_ID,
                (
                    f"StreamsApp {item} has the same applicationId {context.spec.application_id} on the same brokers, and "
                    f"{_claim_of(item)}. Delete one of them, or let this one take over with "
                    "spec.handover.from.name (in the same namespace)."
                ),
            )
    return None


def _claim_of(item: Neighbour) -> str:
    if item.runs:
        return "runs"
    return "is older" if item.backfill is None else f"is stopped for StreamsBackfill {item.backfill}"


def _of_the_group(context: ReconcileContext) -> _Objection | None:
    if not context.brokers_answer:
        return _after_refusal(context)
    _, foreign = members(context)
    named = listed(foreign)
    if context.spec.handover is not None and foreign:
        return ConditionReason.HANDOVER_PENDING, f"Members that are still in the group: {named}. Stop them."
    if foreign:
        return (
            ConditionReason.GROUP_IN_USE,
            (
                f"Members of group {context.spec.application_id} are not pods of this StreamsApp: {named}. If it is to take "
                "their place, set spec.handover.from. If it has their id by mistake, delete it. If they are gone for good, "
                "change restartNonce."
            ),
        )
    if (objection := _after_refusal(context)) is not None:
        return objection
    if left := listed(former_members(context)):
        return (
            ConditionReason.HANDOVER_PENDING,
            (
                f"Members of an earlier StreamsApp {context.desired.name} are still in the group: {left}. Static ones are "
                "removed, and others leave when their session is over."
            ),
        )
    return None


def _after_refusal(context: ReconcileContext) -> _Objection | None:
    """Return why the application does not start yet although the members that kept it from starting are gone.

    An application that restarts leaves its group empty for a moment, and must not lose its place for that.
    """
    before = context.condition("ApplicationIdUnique")
    if context.spec.handover is not None or before is None or before.observed_generation != context.desired.generation:
        return None
    if before.reason not in {ConditionReason.GROUP_IN_USE, ConditionReason.MEMBERS_LEFT}:
        return None
    if not context.brokers_answer:  # nobody knows who comes back in the meantime
        is_asking = context.observed.kafka.reason == NOT_ASKED
        return None if is_asking else (ConditionReason.GROUP_IN_USE, before.message)
    has_left = before.reason == ConditionReason.MEMBERS_LEFT
    left = _QUIET_S - (context.now - seconds(before.last_transition_time) if has_left else 0)
    return (ConditionReason.MEMBERS_LEFT, ConditionReason.MEMBERS_LEFT.meaning) if left > 0 else None


_NAMED: Final = 5
"""How many members a message lists."""
_GIVEN: Final = f"client.id={naming.member('$(POD_NAME)', '')}"


def is_member_of(app: str, uids: Iterable[str], client_id: str, static_id: str | None) -> bool:
    """Return whether a member is a stream thread of a pod of this StreamsApp.

    Args:
        app: The StreamsApp's name.
        uids: The uids that may be in its members' ids, at least one; an empty one if ids may have none.
        client_id: The member's client id.
        static_id: The member's instance id, which alone counts if it has one; see `naming.member`.
    """
    suffixes = "|".join(re.escape(naming.member("", uid)) if uid else "" for uid in uids)
    pod = rf"{re.escape(app)}-\d+({suffixes})"
    if static_id is not None:
        return re.fullmatch(rf"{pod}-\d+", static_id) is not None
    return re.fullmatch(rf"{pod}-StreamThread-\d+-consumer", client_id) is not None


def known_uids(app: DesiredApp, view: ChildrenView) -> tuple[str, ...]:
    """Return the uid prefixes that this application's members may have in their ids, its own last.

    Args:
        app: The application.
        view: Its children, which show the ids that its pods were given, and record earlier StreamsApps.
    """
    given = _given(view)
    found = (*retained.member_uids(view), *(() if given is None else (given,)), app.uid)
    return tuple(reversed(dict.fromkeys(uid.partition("-")[0] for uid in reversed(found))))


def uid_in_member_ids(context: ReconcileContext) -> str:
    """Return the uid, or its prefix, for pods' member ids: this StreamsApp's, or the one that running pods were given."""
    given = _given(context.view)
    if given is None:
        return context.desired.uid
    # Static members outlive their pods in the group: the members of pods that have just ended are not foreign.
    is_left = any(
        is_member_of(context.desired.name, (given,), item.client_id, item.static_id)
        for item in context.observed.kafka.members
    )
    return given if context.view.has_pods or is_left or not context.brokers_answer else context.desired.uid


def members(context: ReconcileContext) -> tuple[list[ConsumerGroupMember], list[ConsumerGroupMember]]:
    """Return the group's members that are pods of this application, or were; and those that are somebody else's."""
    known = known_uids(context.desired, context.view)
    own: list[ConsumerGroupMember] = []
    foreign: list[ConsumerGroupMember] = []
    for item in context.observed.kafka.members:
        (own if is_member_of(context.desired.name, known, item.client_id, item.static_id) else foreign).append(item)
    return own, foreign


def former_members(context: ReconcileContext) -> list[ConsumerGroupMember]:
    """Return the members that pods of earlier StreamsApps of this name have left in the group."""
    app, present = context.desired.name, {context.desired.uid, uid_in_member_ids(context)}
    return [item for item in members(context)[0] if not is_member_of(app, present, item.client_id, item.static_id)]


def _given(view: ChildrenView) -> str | None:
    """Return the uid prefix that pods were given for their member ids, empty if none; None if there are no pods."""
    if view.stateful_set is not None:
        spec = view.stateful_set["spec"]["template"]["spec"]
    elif view.pods:
        spec = view.objects[Key("Pod", min(pod.name for pod in view.pods.values()))]["spec"]
    else:
        return None
    arguments = [argument for container in spec["containers"] for argument in container.get("args") or ()]
    return next((argument.removeprefix(_GIVEN) for argument in arguments if argument.startswith(_GIVEN)), "")


def listed(found: Collection[object]) -> str:
    """Return names or members as text for a message; of many, only the first are listed."""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(sorted(map(str, found))[:_NAMED]) + more


def removal_of(members: Iterable[ConsumerGroupMember]) -> list[RemoveMembers]:
    """Return the action that removes these members; none if there are none."""
    ids = {item.member_id: item.instance_id or item.client_id for item in members}
    return [RemoveMembers(tuple(sorted(set(ids.values()))), tuple(sorted(ids)))] if ids else []
