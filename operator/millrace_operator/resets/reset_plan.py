"""Works out what a reset discards, from what was observed; it is written into the status before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from millrace.errors import ActiveGroupError, ConfigError
from millrace.manifest import StreamsResetSpec
from millrace.manifest.streamsreset import PartitionOffset, ResetResult
from millrace.plan import reset
from millrace.plan.reset import ResetActions, Start, plan_reset
from millrace.plan.topology_plan import TopologyPlan
from millrace.records import TopicPartition
from millrace_operator.model import DesiredApp
from millrace_operator.reconcile import consumer_group
from millrace_operator.reconcile.children_view import ChildrenView

SHOWN: Final = 1000
"""How many entries a list in a status has at most."""


def merged_plan(application_id: str, plans: Iterable[TopologyPlan]) -> TopologyPlan | None:
    """Return a plan with the topics of several revisions that a reset deals with; None if there is none.

    The topics that only the old revision has are the reason for many a reset, so they go as well.
    """
    items = list(plans)
    if not items:
        return None
    return TopologyPlan(
        application_id=application_id,
        hash="",
        subtopologies=tuple(item for plan in items for item in plan.subtopologies),
        global_stores=tuple(item for plan in items for item in plan.global_stores),
    )


def plan_actions(
    spec: StreamsResetSpec, brokers: reset.ObservedApplication, plan: TopologyPlan, app: DesiredApp, view: ChildrenView
) -> ResetActions:
    """Return what is done to the brokers.

    Args:
        spec: The reset's.
        brokers: What they have of the application.
        plan: What all its revisions need.
        app: The application. Only its own members are removed from the group by `force`.
        view: Its children, which show the uid in its members' ids.

    Raises:
        ActiveGroupError: The group has members, and `force` is not set or they are not of this application.
        ConfigError: The offsets of so many partitions cannot be shifted.
    """
    known = consumer_group.known_uids(app, view)
    foreign = [
        item
        for item in brokers.members
        if not consumer_group.is_member_of(app.name, known, item.client_id, item.instance_id)
    ]
    if foreign and not spec.dry_run:
        raise ActiveGroupError(
            f"Members of group {plan.application_id} are not pods of StreamsApp {app.name}: "
            f"{consumer_group.listed(foreign)}. "
            "Stop them; force: true does not remove them."
        )
    force = spec.force or spec.dry_run
    actions = plan_reset(
        plan.application_id, brokers, plan, target=spec.target(), inputs=spec.input_topics, force=force
    )
    if spec.target().start is Start.SHIFT and len(actions.set_offsets) > SHOWN:
        raise ConfigError(
            f"toOffset: {spec.to_offset} would shift {len(actions.set_offsets)} partitions; at most {SHOWN} can be shifted, as "
            "the status has to keep their offsets meanwhile. Use timestamp:TIME"
        )
    staying = foreign if spec.force else brokers.members
    if staying:  # a dry run reports what would be waited for
        note = f"Members that have to leave the group before the reset: {consumer_group.listed(staying)}"
        leaving = tuple(item for item in actions.remove_members if item not in staying)
        actions = replace(actions, remove_members=leaving, notes=(*actions.notes, note))
    return actions


def result_of(spec: StreamsResetSpec, actions: ResetActions, view: ChildrenView) -> ResetResult:
    """Return what will be done, as the status reports it."""
    offsets = sorted(actions.set_offsets.items())[:SHOWN]
    notes = list(actions.notes)
    if len(actions.set_offsets) > SHOWN:
        notes.append(f"{len(actions.set_offsets)} partitions in all; the first {SHOWN} are listed")
    if actions.remove_members:
        notes.append(f"Members that are removed from the group: {consumer_group.listed(actions.remove_members)}")
    return ResetResult(
        offsets=tuple(PartitionOffset(topic=tp.topic, partition=tp.partition, offset=o) for tp, o in offsets),
        deleted_topics=actions.delete_topics[:SHOWN] if spec.delete_internal_topics else (),
        deleted_volumes=tuple(sorted(claim.name for claim in view.claims.values()))[:SHOWN]
        if spec.delete_volumes
        else (),
        notes=tuple(note[:1000] for note in notes),
    )


def planned_offsets(
    actions: ResetActions, planned: ResetResult, brokers: reset.ObservedApplication
) -> Mapping[TopicPartition, int]:
    """Return the offsets to set: those already planned, if any, because working out a shift twice would shift twice."""
    earliest, latest = brokers.earliest or {}, brokers.latest or {}
    kept = {TopicPartition(item.topic, item.partition): item.offset for item in planned.offsets}
    return {
        partition: min(max(kept.get(partition, offset), earliest[partition]), latest[partition])
        for partition, offset in actions.set_offsets.items()
    }
