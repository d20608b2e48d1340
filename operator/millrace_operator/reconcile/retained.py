"""What outlives an application in addition to its state: the records that show whether the next one of its name can use it.

`deletionPolicy: Retain` keeps volumes and topics, so it also keeps the plans of the revisions that may have written to them, and
one ConfigMap with the revision that last ran well, the ids of the internal topics, and the uid in the ids of its members, which
may still be in the group. These objects carry no uid label, so the next `StreamsApp` of the name, however it was created, has
them from its first pass and is compared with them as with its own past. The ConfigMap is deleted once a revision of the new
application has run well, as its status then has the same information; plans are deleted as usual. `Orphan` leaves the same
objects behind. A running application has the ConfigMap while somebody has deleted its StatefulSet, which held that uid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from millrace_operator.children import naming
from millrace_operator.children.config_maps import RETAINED_KEY, retained_config_map
from millrace_operator.children.naming import APP_UID_LABEL, RETAINED_LABEL, STARTED_ANNOTATION
from millrace_operator.model import Apply, Delete, Key, Object, Release, labels_of
from millrace_operator.reconcile.children_view import ChildrenView, is_terminating
from millrace_operator.reconcile.context import ReconcileContext
from millrace_operator.reconcile.drift import needs_apply, stamped

_STABLE: Final = "stableRevision"
_TOPICS: Final = "topicIds"
_MEMBERS: Final = "memberUids"
_MOST_MEMBERS: Final = 8


def topic_ids(context: ReconcileContext) -> Mapping[str, str]:
    """Return the known ids of internal topics, by name: from the status, or else from an earlier application."""
    known = {item.name: item.topic_id for item in context.status.internal_topics if item.topic_id is not None}
    earlier = _record(context.view).get(_TOPICS)
    return {**earlier, **known} if isinstance(earlier, dict) else known


def stable_revision(context: ReconcileContext) -> str | None:
    """Return the revision that last ran well, even if it was an earlier application's."""
    if context.stable is not None:
        return context.stable
    earlier = _record(context.view).get(_STABLE)
    return earlier if isinstance(earlier, str) else None


def member_uids(view: ChildrenView) -> tuple[str, ...]:
    """Return the uid prefixes in the member ids of earlier applications, whose pods have ended or are ending."""
    known = _record(view).get(_MEMBERS)
    return tuple(uid for uid in known if isinstance(uid, str)) if isinstance(known, list) else ()


def note_members(context: ReconcileContext, uids: Sequence[str]) -> None:
    """Record the uid prefix in member ids, for when the StatefulSet and pods that show it are gone."""
    if not set(uids) <= {context.desired.uid.partition("-")[0], *member_uids(context.view)}:
        _keep_record(context, topic_ids(context), uids)


def retain(context: ReconcileContext, uids: Sequence[str], *, topics: bool) -> frozenset[Key]:
    """Keep what the next application of this name is compared with, and return those ConfigMaps.

    Args:
        context: What this pass works on, of a deletion.
        uids: What members without an application have in their ids.
        topics: Whether the internal topics stay.
    """
    plans = [key for key in sorted(context.view.objects) if _describes_state(context.view, key)]
    for key in plans:
        _release(context, key, retained=True)
    ids = topic_ids(context) if topics else {}
    if not plans and not ids:
        return frozenset()
    # Members without a uid may belong to any application of the name, even in another namespace.
    return frozenset({*plans, _keep_record(context, ids, [uid for uid in uids if uid])})


def hand_over(context: ReconcileContext) -> None:
    """Remove the application's uid from all its children, so that the next application of this name may adopt them."""
    retain(context, member_uids(context.view), topics=True)
    for key in sorted(context.view.objects):
        if not _describes_state(context.view, key):
            _release(context, key)


def forget(context: ReconcileContext, stable: str | None) -> None:
    """Delete an earlier application's ConfigMap once the status and the StatefulSet contain the same information.

    Args:
        context: What this pass works on.
        stable: The revision that last ran well.
    """
    # The status of this pass may still get lost: only what the one before has recorded counts.
    if context.status.stable_revision is not None and stable is not None and context.view.stateful_set is not None:
        key = _key(context.view)
        context.delete(key.kind, key.name)


def forgotten(view: ChildrenView) -> list[Delete]:
    """Return the action that deletes an earlier application's ConfigMap, for a reset that has discarded the state."""
    key = _key(view)
    found = view.objects.get(key)
    return [] if found is None or is_terminating(found) else [Delete(key, found["metadata"]["uid"])]


def remedy(context: ReconcileContext) -> str:
    """Return what to do if an earlier application's plans block a topology and nothing else of that application is left."""
    plans = [key for key in sorted(context.view.objects) if _describes_state(context.view, key)]
    uid = context.desired.uid
    earlier = [key.name for key in plans if labels_of(context.view.objects[key]).get(APP_UID_LABEL) != uid]
    if not earlier:
        return ""
    record = _key(context.view)
    listed = " ".join([*earlier, *((record.name,) if record in context.view.objects else ())])
    return (
        f"\nIt is compared with what an earlier StreamsApp {context.desired.name} has left. If you have deleted its volumes and "
        f"internal topics, or do not need them, have that forgotten: kubectl delete configmap {listed}"
    )


def _release(context: ReconcileContext, key: Key, *, retained: bool = False) -> None:
    item = context.view.objects[key]
    labels = labels_of(item)
    owned = any(reference["uid"] == context.desired.uid for reference in item["metadata"].get("ownerReferences") or ())
    if not is_terminating(item) and (APP_UID_LABEL in labels or owned or (retained and RETAINED_LABEL not in labels)):
        context.actions.append(Release(key, item["metadata"]["uid"], retained))


def _describes_state(view: ChildrenView, key: Key) -> bool:
    annotations = view.objects[key]["metadata"].get("annotations") or {}
    return key.kind == "ConfigMap" and STARTED_ANNOTATION in annotations and not is_terminating(view.objects[key])


def _keep_record(context: ReconcileContext, ids: Mapping[str, str], uids: Sequence[str]) -> Key:
    content = {
        _STABLE: stable_revision(context),
        _TOPICS: dict(sorted(ids.items())),
        _MEMBERS: list(uids[-_MOST_MEMBERS:]),
    }
    text = json.dumps(content, indent=2)
    item = stamped(retained_config_map(context.desired.namespace, context.desired.name, text), None)
    key = _key(context.view)
    seen = context.view.objects.get(key)
    if key not in context.observed.taken and needs_apply(item, seen):
        context.actions.append(Apply(item, None if seen is None else seen["metadata"]["uid"]))
    return key


def _record(view: ChildrenView) -> Object:
    """Return the record of an earlier application; empty if it cannot be read."""
    found = view.objects.get(_key(view))
    try:
        content = {} if found is None else json.loads(found["data"][RETAINED_KEY])
    except (KeyError, TypeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _key(view: ChildrenView) -> Key:
    return Key("ConfigMap", naming.retained_config_map(view.app))
