"""Whose a member of the consumer group is.

The name of a group says nothing about who is in it: a successor under another name, a Java application that is being replaced, or
the same manifest in another cluster. Our pods carry a part of their StreamsApp's uid in their client and instance ids, which the
brokers show with every member, and only those are ours. All others are left alone, and are a reason not to begin in their group
unasked.

Pods that run keep the ids that they were given, by an operator that gave other ones or by a StreamsApp that has left them behind:
with new ones each would come back as a stranger to its tasks. When none is left, and none in the group, new pods get the ids of
this StreamsApp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from millrace_operator.children import names
from millrace_operator.model import Key, Member, RemoveMembers
from millrace_operator.reconcile.turn import Turn

_GIVEN: Final = f"client.id={names.member('$(POD_NAME)', '')}"


def is_of(app: str, uid: str, client_id: str, static_id: str | None) -> bool:
    """Return whether a member is a stream thread of a pod of this StreamsApp.

    Args:
        app: The StreamsApp's name.
        uid: The uid in its members' ids; empty if they have none.
        client_id: The member's client id.
        static_id: The member's instance id, which alone counts if it has one; see `names.member`.
    """
    pod = re.escape(names.member("POD", uid) if uid else "POD").replace("POD", rf"{re.escape(app)}-\d+")
    if static_id is not None:
        return re.fullmatch(rf"{pod}-\d+", static_id) is not None
    return re.fullmatch(rf"{pod}-StreamThread-\d+-consumer", client_id) is not None


def uid_of(turn: Turn) -> str:
    """Return the uid, or its part, that the members' ids have: this StreamsApp's, or that with which running pods were made."""
    stateful_set = turn.view.stateful_set
    if stateful_set is None and not turn.view.pods:
        return turn.desired.uid
    if stateful_set is not None:
        spec = stateful_set["spec"]["template"]["spec"]
    else:
        spec = turn.view.objects[Key("Pod", min(pod.name for pod in turn.view.pods.values()))]["spec"]
    arguments = [argument for container in spec["containers"] for argument in container.get("args") or ()]
    given = next((argument.removeprefix(_GIVEN) for argument in arguments if argument.startswith(_GIVEN)), "")
    # Static members outlive their pods in the group: those of pods that have just ended are no strangers.
    is_known = any(is_of(turn.desired.name, given, item.client_id, item.static_id) for item in _all(turn))
    return given if turn.view.has_pods or is_known else turn.desired.uid


def own(turn: Turn) -> list[Member]:
    """Return the group's members that are pods of this application, or were."""
    return [item for item in _all(turn) if _is_own(turn, item)]


def foreign(turn: Turn) -> list[Member]:
    """Return the group's members that are somebody else's."""
    return [item for item in _all(turn) if not _is_own(turn, item)]


def _is_own(turn: Turn, item: Member) -> bool:
    return is_of(turn.desired.name, uid_of(turn), item.client_id, item.static_id)


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
