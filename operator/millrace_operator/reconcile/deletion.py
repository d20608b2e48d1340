"""Deletion: carries out `deletionPolicy`, in an order that survives crashes, and ends even if Kafka is unavailable.

Pods go first, so that nothing writes any more; then the group's members, topics and offsets; then claims; and last the
ConfigMaps, which say what topics there are, and the finalizer. Where state stays, its description stays too. After a bounded
time the operator stops waiting for the brokers and for pods on lost nodes: a Warning says what was left behind.
"""

from __future__ import annotations

from typing import Final, Literal

from millrace_operator.children.auxiliary_objects import disruption_budget
from millrace_operator.model import Action, AppRevision, DeleteGroup, DeleteTopics, Event, Key, Neighbour, SetFinalizer
from millrace_operator.reconcile import consumer_group, group_protocol, retained
from millrace_operator.reconcile.children_view import is_terminating
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import NOT_ASKED, ReconcileContext
from millrace_operator.reconcile.revisions import revision_of
from millrace_operator.reconcile.timestamps import seconds
from millrace_operator.reconcile.topics import internal_topics

KAFKA_PATIENCE_S: Final = 60
"""How long to wait for the brokers, after the pods' grace period and since they were found not to answer."""
_ASKING_PATIENCE_S: Final = 600
"""How long the operator may take to find out whether they answer."""
_POD_PATIENCE_S: Final = 120
_DEFAULT_GRACE_S: Final = 60
_FIRST: Final = ("Job", "PodDisruptionBudget", "PodMonitor", "Service", "NetworkPolicy")
_LAST: Final = ("ServiceAccount", "ConfigMap")

Policy = Literal["Retain", "Purge", "Orphan"]


def delete(context: ReconcileContext) -> None:
    """Take the next step of the application's deletion."""
    context.set_condition("False", ConditionReason.DELETING)
    context.set_condition("True", ConditionReason.DELETING_CHILDREN)
    context.recheck_delays.clear()
    if policy_of(context) == "Orphan":
        context.events.append(
            Event("Orphaned", "The application keeps running without its StreamsApp (deletionPolicy: Orphan).")
        )
        _allow_evictions(context)
        retained.hand_over(context)
    elif not _pods_are_gone(context) or not _kafka_is_done(context) or not _children_are_gone(context):
        context.recheck_after(5)
        return
    context.actions.append(SetFinalizer(present=False))


def _allow_evictions(context: ReconcileContext) -> None:
    """Undo what keeps pods from being evicted for now: nobody else would."""
    name, spec = context.desired.name, context.desired.spec
    seen = context.view.get("PodDisruptionBudget", name)
    if spec is None or seen is None:
        return
    wanted = disruption_budget(AppRevision(context.desired.namespace, name, revision_of(spec), spec))
    if wanted is not None and wanted["spec"]["maxUnavailable"] != seen["spec"].get("maxUnavailable") == 0:
        context.apply(wanted)


def policy_of(context: ReconcileContext) -> Policy:
    """Return the deletion policy. In an invalid spec, only Orphan is respected."""
    if context.desired.spec is not None:
        return context.desired.spec.deletion_policy
    return "Orphan" if context.desired.manifest.get("deletionPolicy") == "Orphan" else "Retain"


def _overdue(context: ReconcileContext) -> float:
    """Return for how many seconds pods should have ended: since their grace period was over; negative before that."""
    spec, since = context.desired.spec, context.desired.deletion_time
    grace = _DEFAULT_GRACE_S if spec is None else spec.drain.termination_grace_period_seconds
    return (0 if since is None else context.now - since) - grace


def _pods_are_gone(context: ReconcileContext) -> bool:
    name, pods = context.desired.name, context.view.pods
    context.delete("StatefulSet", name)
    stateful_set = context.view.get("StatefulSet", name)
    if stateful_set is None:
        for _, pod in sorted(pods.items()):  # left behind when the StatefulSet was deleted with --cascade=orphan
            context.delete("Pod", pod.name)
    retained.note_members(context, consumer_group.known_uids(context.desired, context.view))
    if stateful_set is None and not pods:
        return True
    # If the operator was away and told pods late, their grace period starts then.
    are_late = all(pod.ends is not None and context.now >= pod.ends + _POD_PATIENCE_S for pod in pods.values())
    if context.view.stateful_set is not None or _overdue(context) < _POD_PATIENCE_S or not are_late:
        return False
    left = ", ".join(pod.name for pod in pods.values()) or f"those of StatefulSet {name}"
    context.events.append(
        Event("PodsLeftBehind", f"Pods have not ended in time and are not waited for: {left}.", "Warning")
    )
    return True


def _kafka_is_done(context: ReconcileContext) -> bool:
    """Remove members and whatever else the policy covers from Kafka; return whether that is done, or given up.

    Giving up adds no actions, as one that is refused again and again would block those after it.
    """
    if context.desired.spec is None:
        return True
    if not context.brokers_answer:
        status = context.status
        has_begun = status.group is not None or status.stable_revision is not None or bool(status.internal_topics)
        if not has_begun and not _deletes_topics(context):  # nothing that the policy covers can be in Kafka
            return True
        if _may_still_answer(context):
            return False
        _report_leftovers(context, f"The brokers do not answer ({context.observed.kafka.reason}).")
        return True
    actions = _kafka_actions(context)
    if not actions:
        return _report_others(context)
    # Has an earlier pass tried to? An operator that was away has not.
    reconciling, stalled = context.condition("Reconciling"), context.condition("Stalled")
    was_tried = (reconciling is not None and reconciling.reason == ConditionReason.DELETING_FROM_KAFKA) or (
        stalled is not None and stalled.status == "True"
    )
    context.set_condition("True", ConditionReason.DELETING_FROM_KAFKA)
    if _overdue(context) < _POD_PATIENCE_S + KAFKA_PATIENCE_S or not was_tried:
        context.actions.extend(actions)
        return False
    _report_leftovers(context, "The brokers answer, but not everything could be deleted in time.")
    return True


def _may_still_answer(context: ReconcileContext) -> bool:
    """Return whether to wait for brokers that do not answer. An operator that was away has yet to find out whether they do.

    It gets more time for that, as it may have many to ask, but not forever: one that keeps restarting never finds out. The
    condition records since when nobody has found out, and outlives the operator.
    """
    is_asking = context.observed.kafka.reason == NOT_ASKED
    known = context.condition("BrokersReachable")
    if is_asking and known is not None and known.status == "True":
        context.set_condition("Unknown", ConditionReason.BROKERS_NOT_ASKED)
    is_away = known is not None and known.status in ({"False", "Unknown"} if is_asking else {"False"})
    away = context.now - seconds(known.last_transition_time) if known is not None and is_away else 0
    return min(_overdue(context), away) < (_ASKING_PATIENCE_S if is_asking else KAFKA_PATIENCE_S)


def _kafka_actions(context: ReconcileContext) -> list[Action]:
    group = context.observed.kafka.group
    own, foreign = consumer_group.members(context)
    actions: list[Action] = [*consumer_group.removal_of(own)]
    if context.observed.claimants or foreign:
        return actions
    topics, read_by_others = _topics(context)
    if _deletes_topics(context) and topics - read_by_others.keys():
        actions.append(DeleteTopics(tuple(sorted(topics - read_by_others.keys()))))
    if policy_of(context) == "Purge" and group is not None and group.state != "Dead":
        actions += [*group_protocol.settings_to_remove(context), DeleteGroup()]
    return actions


def _report_others(context: ReconcileContext) -> bool:
    """Report what is not deleted because others use it; return whether that is final, as members may still leave."""
    if not _deletes_topics(context):
        return True
    (_, foreign), (_, read_by_others) = consumer_group.members(context), _topics(context)
    group = f"group {context.spec.application_id} and its internal topics"
    if context.observed.claimants:
        named = ", ".join(map(str, context.observed.claimants))
        message = f"Not deleted: {group}, which StreamsApp {named} has as well (spec.applicationId)."
    elif foreign:
        if _overdue(context) < KAFKA_PATIENCE_S:  # killed members leave when their session expires
            return False
        message = f"Not deleted: {group}, as others are in the group: {', '.join(map(str, foreign))}."
    elif read_by_others:
        kept = [f"{topic} ({item})" for topic, item in sorted(read_by_others.items())]
        message = f"Not deleted: topics that other StreamsApps name: {', '.join(kept)}."
    else:
        return True
    context.events.append(Event("LeftToOthers", message, "Warning"))
    return True


def _report_leftovers(context: ReconcileContext, why: str) -> None:
    group = f"members of group {context.spec.application_id}"
    if policy_of(context) == "Purge":
        group = f"group {context.spec.application_id} with its offsets and members"
    what = [group, *(sorted(_known_topics(context)) if _deletes_topics(context) else ())]
    message = f"{why} At brokers {','.join(context.spec.kafka.bootstrap_servers)} may stay behind: {', '.join(what)}."
    context.events.append(Event("KafkaLeftBehind", message, "Warning"))


def _deletes_topics(context: ReconcileContext) -> bool:
    return policy_of(context) == "Purge" or context.spec.internal_topics.deletion_policy == "Delete"


def _topics(context: ReconcileContext) -> tuple[set[str], dict[str, Neighbour]]:
    """Return the internal topics that exist, and which other StreamsApp reads one."""
    existing = _known_topics(context) & context.observed.kafka.topics.keys()
    return existing, {topic: item for item in context.observed.neighbours for topic in item.topics & existing}


def _known_topics(context: ReconcileContext) -> set[str]:
    """Return the names of internal topics; they are checked again, because a deleted topic cannot be restored."""
    known = {item.name for item in context.status.internal_topics} | context.observed.kafka.internal
    known |= {name for plan in context.view.plans() for name in internal_topics(plan)}
    prefix = f"{context.spec.application_id}-"
    return {name for name in known if name.startswith(prefix) and name.endswith(("-changelog", "-repartition"))}


def _children_are_gone(context: ReconcileContext) -> bool:
    spec = context.desired.spec
    deletes_claims = policy_of(context) == "Purge" or (
        spec is not None and spec.storage.retention.when_deleted == "Delete"
    )
    deletes_topics = spec is not None and _deletes_topics(context)
    kept: frozenset[Key] = frozenset()
    if not (deletes_claims and deletes_topics):
        kept = retained.retain(
            context, consumer_group.known_uids(context.desired, context.view), topics=not deletes_topics
        )
    kinds = (*_FIRST, *(("PersistentVolumeClaim",) if deletes_claims else ()), *_LAST)
    left = [key for kind in kinds for key in sorted(context.view.objects) if key.kind == kind and key not in kept]
    for key in left:
        context.delete(key.kind, key.name)
    return all(is_terminating(context.view.objects[key]) for key in left)
