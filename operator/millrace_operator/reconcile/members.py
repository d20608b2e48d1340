"""Whose a member of the consumer group is.

The name of a group says nothing about who is in it: a successor under another name, a Java application that is being replaced, or
the same manifest in another cluster. Our pods carry a part of their StreamsApp's uid in their client and instance ids, which the
brokers show with every member, and only those are ours. All others are left alone, and are a reason not to begin in their group
unasked.

Pods that run keep the ids that they were given, by an operator that gave other ones or by a StreamsApp that has left them behind:
with new ones each would come back as a stranger to its tasks. When none is left, and none in the group, new pods get the ids of
this StreamsApp.

Members of earlier StreamsApps of the name, of which a ConfigMap tells, are ours as well: their pods have ended. They are removed,
and nothing begins beside them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from millrace_operator.children import naming
from millrace_operator.model import Desired, Key, Member, RemoveMembers
from millrace_operator.reconcile import retained
from millrace_operator.reconcile.turn import Turn
from millrace_operator.reconcile.view import View

_NAMED: Final = 5
"""How many members a message names."""
_GIVEN: Final = f"client.id={naming.member('$(POD_NAME)', '')}"


def is_of(app: str, uid: str, client_id: str, static_id: str | None) -> bool:
    """Return whether a member is a stream thread of a pod of this StreamsApp.

    Args:
        app: The StreamsApp's name.
        uid: The uid in its members' ids; empty if they have none.
        client_id: The member's client id.
        static_id: The member's instance id, which alone counts if it has one; see `names.member`.
    """
    pod = re.escape(naming.member("POD", uid) if uid else "POD").replace("POD", rf"{re.escape(app)}-\d+")
    if static_id is not None:
        return re.fullmatch(rf"{pod}-\d+", static_id) is not None
    return re.fullmatch(rf"{pod}-StreamThread-\d+-consumer", client_id) is not None


def uids(app: Desired, view: View) -> tuple[str, ...]:
    """Return the first parts of the uids that this application's members may have in their ids, its own last.

    Args:
        app: The application.
        view: Its children, by which its pods may have other ids than its own, and which tell of earlier StreamsApps.
    """
    given = _given(view)
    found = (*retained.member_uids(view), *(() if given is None else (given,)), app.uid)
    return tuple(reversed(dict.fromkeys(uid.partition("-")[0] for uid in reversed(found))))


def uid_of(turn: Turn) -> str:
    """Return the uid, or its part, in the ids of pods' members: this StreamsApp's, or that with which running pods were made."""
    given = _given(turn.view)
    if given is None:
        return turn.desired.uid
    # Static members outlive their pods in the group: those of pods that have just ended are no strangers.
    is_left = any(is_of(turn.desired.name, given, item.client_id, item.static_id) for item in _all(turn))
    return given if turn.view.has_pods or is_left or not turn.brokers_answer else turn.desired.uid


def own(turn: Turn) -> list[Member]:
    """Return the group's members that are pods of this application, or were."""
    known = uids(turn.desired, turn.view)
    return [item for item in _all(turn) if _is_of_any(turn, known, item)]


def former(turn: Turn) -> list[Member]:
    """Return those of the application's own members that pods of earlier StreamsApps of the name have left in the group."""
    present = {turn.desired.uid, uid_of(turn)}
    return [item for item in own(turn) if not _is_of_any(turn, present, item)]


def foreign(turn: Turn) -> list[Member]:
    """Return the group's members that are somebody else's."""
    known = uids(turn.desired, turn.view)
    return [item for item in _all(turn) if not _is_of_any(turn, known, item)]


def _is_of_any(turn: Turn, known: Iterable[str], item: Member) -> bool:
    return any(is_of(turn.desired.name, uid, item.client_id, item.static_id) for uid in known)


def _given(view: View) -> str | None:
    """Return the part of a uid that pods are told to have in their ids, empty if none; None if nothing tells of pods."""
    if view.stateful_set is not None:
        spec = view.stateful_set["spec"]["template"]["spec"]
    elif view.pods:
        spec = view.objects[Key("Pod", min(pod.name for pod in view.pods.values()))]["spec"]
    else:
        return None
    arguments = [argument for container in spec["containers"] for argument in container.get("args") or ()]
    return next((argument.removeprefix(_GIVEN) for argument in arguments if argument.startswith(_GIVEN)), "")


def listed(found: Collection[object]) -> str:
    """Return members for a message, which names the first of many."""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(sorted(map(str, found))[:_NAMED]) + more


def removal(members: Iterable[Member]) -> list[RemoveMembers]:
    """Return what removes those of the members that are static; nothing if none is."""
    static = [(item.instance_id, item.member_id) for item in members if item.instance_id is not None]
    if not static:
        return []
    pods, ids = {pod for pod, _ in static}, {member_id for _, member_id in static}
    return [RemoveMembers(tuple(sorted(pods)), tuple(sorted(ids)))]


def _all(turn: Turn) -> tuple[Member, ...]:
    group = turn.observed.kafka.group
    return () if group is None else group.members
