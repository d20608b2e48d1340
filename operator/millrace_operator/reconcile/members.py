"""Whose a member of the consumer group is.

The name of a group says nothing about who is in it: a successor under another name, a Java application that is being replaced, or
the same manifest in another cluster. Our pods carry a part of their StreamsApp's uid in their client ids, which the brokers show
with every member, and only those are ours. All others are left alone, and are a reason not to begin in their group unasked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from millrace_operator.children import names
from millrace_operator.model import Member, RemoveMembers
from millrace_operator.reconcile.turn import Turn


def is_of(app: str, uid: str, client_id: str) -> bool:
    """Return whether a member with this client id is a stream thread of a pod of this StreamsApp."""
    pod = re.escape(names.client_id("POD", uid)).replace("POD", rf"{re.escape(app)}-\d+")
    return re.fullmatch(rf"{pod}-StreamThread-\d+-consumer", client_id) is not None


def own(turn: Turn) -> list[Member]:
    """Return the group's members that are pods of this application, or were."""
    return [item for item in _all(turn) if is_of(turn.desired.name, turn.desired.uid, item.client_id)]


def foreign(turn: Turn) -> list[Member]:
    """Return the group's members that are somebody else's."""
    return [item for item in _all(turn) if not is_of(turn.desired.name, turn.desired.uid, item.client_id)]


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
