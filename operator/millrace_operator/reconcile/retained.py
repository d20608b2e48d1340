"""What outlives an application beside its state: what tells whether the next application of its name can go on from that state.

`deletionPolicy: Retain` keeps volumes and topics, so it keeps as well the plans of the revisions that may have written to them,
and one ConfigMap with the revision that ran well last, the ids of the internal topics, and what its members are known by in the
group, where they may be left. They carry no uid, so the next
`StreamsApp` of the name, however it came to be, has them from its first pass, and is compared with them as with its own past.
The ConfigMap goes once a revision of the new application has run well, as its status then knows what the ConfigMap says; plans
go as they always do. `Orphan` leaves the same behind. A running application has the ConfigMap while its StatefulSet, which
somebody has deleted, does not tell what its members are known by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace_operator.children import naming
from millrace_operator.children.config_maps import RETAINED_KEY, retained_config_map
from millrace_operator.children.naming import APP_UID_LABEL, RETAINED_LABEL, STARTED_ANNOTATION
from millrace_operator.model import Apply, Delete, Key, Release
from millrace_operator.reconcile.applying import needs_apply, stamped
from millrace_operator.reconcile.turn import Turn
from millrace_operator.reconcile.view import View, is_terminating

_STABLE: Final = "stableRevision"
_TOPICS: Final = "topicIds"
_MEMBERS: Final = "memberUids"
_MOST_MEMBERS: Final = 8


def topic_ids(turn: Turn) -> Mapping[str, str]:
    """Return the ids of internal topics that are known, by name: from the status, and else from an earlier application."""
    known = {item.name: item.topic_id for item in turn.status.internal_topics if item.topic_id is not None}
    earlier = _record(turn.view).get(_TOPICS)
    return {**earlier, **known} if isinstance(earlier, dict) else known


def stable_revision(turn: Turn) -> str | None:
    """Return the revision that ran well last, also if that was an earlier application's."""
    if turn.stable is not None:
        return turn.stable
    earlier = _record(turn.view).get(_STABLE)
    return earlier if isinstance(earlier, str) else None


def member_uids(view: View) -> tuple[str, ...]:
    """Return what members of earlier applications have in their ids, whose pods have ended or are ending."""
    known = _record(view).get(_MEMBERS)
    return tuple(uid for uid in known if isinstance(uid, str)) if isinstance(known, list) else ()


def note_members(turn: Turn, uids: Sequence[str]) -> None:
    """Have written down what members have in their ids, for when the StatefulSet and its pods, which tell it, are gone."""
    if not set(uids) <= {turn.desired.uid.partition("-")[0], *member_uids(turn.view)}:
        _keep_record(turn, topic_ids(turn), uids)


def retain(turn: Turn, uids: Sequence[str], *, topics: bool) -> frozenset[Key]:
    """Have kept what the next application of the name is compared with, and return which ConfigMaps these are.

    Args:
        turn: The turn, of a deletion.
        uids: What members have in their ids that are nobody's any more.
        topics: Whether the internal topics stay.
    """
    plans = [key for key in sorted(turn.view.objects) if _tells_of_state(turn.view, key)]
    for key in plans:
        _release(turn, key, retained=True)
    ids = topic_ids(turn) if topics else {}
    if not plans and not ids:
        return frozenset()
    # Members without a uid may be those of any application of the name, also in another namespace.
    return frozenset({*plans, _keep_record(turn, ids, [uid for uid in uids if uid])})


def hand_over(turn: Turn) -> None:
    """Take the application's uid off all of its children, so that the next application of the name may take them over."""
    retain(turn, member_uids(turn.view), topics=True)
    for key in sorted(turn.view.objects):
        if not _tells_of_state(turn.view, key):
            _release(turn, key)


def forget(turn: Turn) -> None:
    """Delete the ConfigMap of an earlier application once the status and the StatefulSet know what it says."""
    if turn.status.stable_revision is not None and turn.stable is not None and turn.view.stateful_set is not None:
        key = _key(turn.view)
        turn.delete(key.kind, key.name)


def forgotten(view: View) -> list[Delete]:
    """Return what has the ConfigMap of an earlier application forgotten, for a reset that has thrown the state away."""
    key = _key(view)
    found = view.objects.get(key)
    return [] if found is None or is_terminating(found) else [Delete(key, found["metadata"]["uid"])]


def remedy(turn: Turn) -> str:
    """Return what to do if a topology is held back by the plans of an earlier application of which nothing else is left."""
    plans = [key for key in sorted(turn.view.objects) if _tells_of_state(turn.view, key)]
    earlier = [key.name for key in plans if _labels(turn.view, key).get(APP_UID_LABEL) != turn.desired.uid]
    if not earlier:
        return ""
    record = _key(turn.view)
    listed = " ".join([*earlier, *((record.name,) if record in turn.view.objects else ())])
    return (
        f"\nIt is compared with what an earlier StreamsApp {turn.desired.name} has left. If you have deleted its volumes and "
        f"internal topics, or do not need them, have that forgotten: kubectl delete configmap {listed}"
    )


def _release(turn: Turn, key: Key, *, retained: bool = False) -> None:
    item = turn.view.objects[key]
    labels = _labels(turn.view, key)
    owned = any(reference["uid"] == turn.desired.uid for reference in item["metadata"].get("ownerReferences") or ())
    if not is_terminating(item) and (APP_UID_LABEL in labels or owned or (retained and RETAINED_LABEL not in labels)):
        turn.actions.append(Release(key, item["metadata"]["uid"], retained))


def _tells_of_state(view: View, key: Key) -> bool:
    annotations = view.objects[key]["metadata"].get("annotations") or {}
    return key.kind == "ConfigMap" and STARTED_ANNOTATION in annotations and not is_terminating(view.objects[key])


def _keep_record(turn: Turn, ids: Mapping[str, str], uids: Sequence[str]) -> Key:
    content = {
        _STABLE: stable_revision(turn),
        _TOPICS: dict(sorted(ids.items())),
        _MEMBERS: list(uids[-_MOST_MEMBERS:]),
    }
    text = json.dumps(content, indent=2)
    item = stamped(retained_config_map(turn.desired.namespace, turn.desired.name, text), None)
    key = _key(turn.view)
    seen = turn.view.objects.get(key)
    if key not in turn.observed.taken and needs_apply(item, seen):
        turn.actions.append(Apply(item, None if seen is None else seen["metadata"]["uid"]))
    return key


def _record(view: View) -> Mapping[str, Any]:
    """Return what an earlier application has left; nothing if it cannot be read."""
    found = view.objects.get(_key(view))
    try:
        content = {} if found is None else json.loads(found["data"][RETAINED_KEY])
    except (KeyError, TypeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _key(view: View) -> Key:
    return Key("ConfigMap", naming.retained_config_map(view.app))


def _labels(view: View, key: Key) -> Mapping[str, str]:
    return view.objects[key]["metadata"].get("labels") or {}
