"""Deletion: what `deletionPolicy` says, in an order that a crash cannot spoil, and with an end also when Kafka is away.

Pods go first, so that nothing writes any more; then the group's members, topics and offsets; then claims; and last the
ConfigMaps, which tell what topics there are, and the finalizer. Where state stays, what tells of it stays too. After a bounded
time the brokers, and pods that a lost node holds, are not waited for any longer: a Warning tells what was left behind.
"""

from __future__ import annotations

from typing import Final, Literal

from millrace_operator.children import naming
from millrace_operator.model import Action, DeleteGroup, DeleteTopics, Event, Key, Neighbour, SetFinalizer
from millrace_operator.reconcile import application_id, members, retained
from millrace_operator.reconcile.reasons import Reason
from millrace_operator.reconcile.topics import internal_topics
from millrace_operator.reconcile.turn import NOT_ASKED, Turn
from millrace_operator.reconcile.view import is_terminating, seconds

KAFKA_PATIENCE_S: Final = 60
"""How long the brokers are waited for, beyond the pods' grace period and from when they were found not to answer."""
_ASKING_PATIENCE_S: Final = 600
"""How long an operator may take to find out whether they answer."""
_POD_PATIENCE_S: Final = 120
_DEFAULT_GRACE_S: Final = 60
_FIRST: Final = ("Job", "PodDisruptionBudget", "PodMonitor", "Service", "NetworkPolicy")
_LAST: Final = ("ServiceAccount", "ConfigMap")

Policy = Literal["Retain", "Purge", "Orphan"]


def delete(turn: Turn) -> None:
    """Do the next step of the application's deletion."""
    turn.lifecycle = "Deleting"
    turn.settle("False", Reason.DELETING)
    turn.settle("True", Reason.DELETING_CHILDREN)
    turn.looks.clear()
    if policy_of(turn) == "Orphan":
        turn.events.append(
            Event("Orphaned", "The application runs on without its StreamsApp (deletionPolicy: Orphan).")
        )
        retained.hand_over(turn)
        _let_go(turn)
        return
    if not _pods_are_gone(turn) or not _kafka_is_done(turn) or not _children_are_gone(turn):
        turn.look_after(5)
        return
    _let_go(turn)


def policy_of(turn: Turn) -> Policy:
    """Return the deletion policy. Of a spec that cannot be read, only the wish to leave everything alone is heeded."""
    if turn.desired.spec is not None:
        return turn.desired.spec.deletion_policy
    return "Orphan" if turn.desired.manifest.get("deletionPolicy") == "Orphan" else "Retain"


def _let_go(turn: Turn) -> None:
    turn.actions.append(SetFinalizer(present=False))


def _pods_are_gone(turn: Turn) -> bool:
    turn.delete("StatefulSet", naming.stateful_set(turn.desired.name))
    stateful_set = turn.view.get("StatefulSet", naming.stateful_set(turn.desired.name))
    if stateful_set is None:
        for _, pod in sorted(turn.view.pods.items()):  # which a StatefulSet that was deleted as an orphan has left
            turn.delete("Pod", pod.name)
    retained.note_members(turn, members.uids(turn.desired, turn.view))
    if stateful_set is None and not turn.view.pods:
        return True
    if turn.view.stateful_set is not None or _may_still_end(turn):
        return False
    left = ", ".join(pod.name for pod in turn.view.pods.values()) or f"those of StatefulSet {turn.desired.name}"
    turn.events.append(
        Event("PodsLeftBehind", f"Pods have not ended in time and are not waited for: {left}.", "Warning")
    )
    return True


def _may_still_end(turn: Turn) -> bool:
    """Return whether pods are waited for. Those that an operator that was away has told late have their time from then."""
    over = (pod.ends is not None and turn.now >= pod.ends + _POD_PATIENCE_S for pod in turn.view.pods.values())
    return _waited(turn) < _grace(turn) + _POD_PATIENCE_S or not all(over)


def _grace(turn: Turn) -> int:
    spec = turn.desired.spec
    return _DEFAULT_GRACE_S if spec is None else spec.drain.termination_grace_period_seconds


def _waited(turn: Turn) -> float:
    since = turn.desired.deletion_time
    return 0 if since is None else turn.now - since


def _kafka_is_done(turn: Turn) -> bool:
    """Remove members, and what else is to be deleted at the brokers; return whether that is done, or given up.

    Giving up has no actions, as one that is refused again and again would keep those after it from being done.
    """
    if turn.desired.spec is None:
        return True
    if not turn.brokers_answer:
        if not _may_have_left_traces(turn):
            return True
        if _may_still_answer(turn):
            return False
        _tell_of_leftovers(turn, f"The brokers do not answer ({turn.observed.kafka.reason}).")
        return True
    actions = _kafka_actions(turn)
    if not actions:
        return _others_are_told_of(turn)
    turn.settle("True", Reason.DELETING_FROM_KAFKA)
    if _waited(turn) < _grace(turn) + _POD_PATIENCE_S + KAFKA_PATIENCE_S or not _was_tried(turn):
        turn.actions.extend(actions)
        return False
    _tell_of_leftovers(turn, "The brokers answer, but not all could be deleted in time.")
    return True


def _may_still_answer(turn: Turn) -> bool:
    """Return whether brokers that do not answer are waited for. An operator that was away has yet to find out whether they do.

    It has longer for that, as it may have many to ask, but not for ever: one that ends again and again never finds out. The
    condition tells since when nobody has found out, and outlives the operator.
    """
    is_asking = turn.observed.kafka.reason == NOT_ASKED
    known = turn.condition("BrokersReachable")
    if is_asking and known is not None and known.status == "True":
        turn.settle("Unknown", Reason.BROKERS_NOT_ASKED)
    is_away = known is not None and known.status in ({"False", "Unknown"} if is_asking else {"False"})
    away = turn.now - seconds(known.last_transition_time) if known is not None and is_away else 0
    return min(_waited(turn) - _grace(turn), away) < (_ASKING_PATIENCE_S if is_asking else KAFKA_PATIENCE_S)


def _was_tried(turn: Turn) -> bool:
    """Return whether an earlier turn has deleted at the brokers, or was refused. That of an operator that was away has not."""
    reconciling, stalled = turn.condition("Reconciling"), turn.condition("Stalled")
    done = reconciling is not None and reconciling.reason == Reason.DELETING_FROM_KAFKA
    return done or (stalled is not None and stalled.status == "True")


def _may_have_left_traces(turn: Turn) -> bool:
    """Return whether there may be something at the brokers for the policy to be carried out on."""
    status = turn.status
    has_begun = status.group is not None or status.stable_revision is not None or bool(status.internal_topics)
    return has_begun or _deletes_topics(turn)


def _kafka_actions(turn: Turn) -> list[Action]:
    group = turn.observed.kafka.group
    taken = application_id.claimants(turn) or members.foreign(turn)
    topics = () if taken else _topics_to_delete(turn)
    purges_group = policy_of(turn) == "Purge" and group is not None and group.state != "Dead" and not taken
    actions: list[Action] = [*members.removal(members.own(turn))]
    if topics:
        actions.append(DeleteTopics(topics))
    if purges_group:
        actions.append(DeleteGroup())
    return actions


def _others_are_told_of(turn: Turn) -> bool:
    """Tell what is not deleted because others have it; return whether that is so for good: members may leave."""
    if not _deletes_topics(turn):
        return True
    claimants, foreign = application_id.claimants(turn), members.foreign(turn)
    group = f"group {turn.spec.application_id} and its internal topics"
    if claimants:
        named = ", ".join(map(str, claimants))
        _tell_of_others(turn, f"Not deleted: {group}, which StreamsApp {named} has as well (spec.applicationId).")
    elif foreign:
        if _waited(turn) < _grace(turn) + KAFKA_PATIENCE_S:  # those that were killed leave when their session is over
            return False
        _tell_of_others(turn, f"Not deleted: {group}, as others are in the group: {', '.join(map(str, foreign))}.")
    elif kept := [f"{topic} ({item})" for topic, item in sorted(_read_by_others(turn).items())]:
        _tell_of_others(turn, f"Not deleted: topics that other StreamsApps name: {', '.join(kept)}.")
    return True


def _tell_of_others(turn: Turn, message: str) -> None:
    turn.events.append(Event("LeftToOthers", message, "Warning"))


def _read_by_others(turn: Turn) -> dict[str, Neighbour]:
    return {topic: item for item in turn.observed.neighbours for topic in item.topics & _own_topics(turn)}


def _tell_of_leftovers(turn: Turn, why: str) -> None:
    group = f"members of group {turn.spec.application_id}"
    if policy_of(turn) == "Purge":
        group = f"group {turn.spec.application_id} with its offsets and members"
    what = [group, *(sorted(_known_topics(turn)) if _deletes_topics(turn) else ())]
    message = f"{why} At brokers {','.join(turn.spec.kafka.bootstrap_servers)} may stay behind: {', '.join(what)}."
    turn.events.append(Event("KafkaLeftBehind", message, "Warning"))


def _deletes_topics(turn: Turn) -> bool:
    return policy_of(turn) == "Purge" or turn.spec.internal_topics.deletion_policy == "Delete"


def _topics_to_delete(turn: Turn) -> tuple[str, ...]:
    """Return the internal topics that exist and are to go."""
    if not _deletes_topics(turn):
        return ()
    return tuple(sorted(_own_topics(turn) - _read_by_others(turn).keys()))


def _own_topics(turn: Turn) -> set[str]:
    """Return the internal topics that exist; names are checked once more, as nothing brings a topic back."""
    return _known_topics(turn) & turn.observed.kafka.topics.keys()


def _known_topics(turn: Turn) -> set[str]:
    names_known = {item.name for item in turn.status.internal_topics} | turn.observed.kafka.internal
    names_known |= {name for plan in turn.view.plans() for name in internal_topics(plan)}
    prefix = f"{turn.spec.application_id}-"
    return {name for name in names_known if name.startswith(prefix) and name.endswith(("-changelog", "-repartition"))}


def _children_are_gone(turn: Turn) -> bool:
    deletes_claims = policy_of(turn) == "Purge" or _claims_go_with_the_app(turn)
    deletes_topics = turn.desired.spec is not None and _deletes_topics(turn)
    kept: frozenset[Key] = frozenset()
    if not (deletes_claims and deletes_topics):
        kept = retained.retain(turn, members.uids(turn.desired, turn.view), topics=not deletes_topics)
    kinds = (*_FIRST, *(("PersistentVolumeClaim",) if deletes_claims else ()), *_LAST)
    left = [key for kind in kinds for key in sorted(turn.view.objects) if key.kind == kind and key not in kept]
    for key in left:
        turn.delete(key.kind, key.name)
    return all(is_terminating(turn.view.objects[key]) for key in left)


def _claims_go_with_the_app(turn: Turn) -> bool:
    return turn.desired.spec is not None and turn.desired.spec.storage.retention.when_deleted == "Delete"
