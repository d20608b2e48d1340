"""What changed between two topology plans, and whether the state of the running application survives it.

State is found by names (changelog and repartition topics) and by task ids (sub-topology number and partition), and is read
by kind and format. A change to any of these leaves state behind or misreads it, so it needs a reset. So does another number
of partitions for state. A plan does not contain partition counts, so any change that *may* alter them counts. Pure: nothing
is asked of brokers or disks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from millrace.plan.names import Naming, naming_of_store, naming_of_topic
from millrace.plan.renames import contents, inputs_of, renamed_stores, renamed_topics
from millrace.plan.topology_plan import (
    PlannedGlobalStore,
    PlannedOrigin,
    PlannedRepartitionTopic,
    PlannedStore,
    PlannedSubtopology,
    TopologyPlan,
    changelog_topics,
    repartition_topics,
)
from millrace.plan.window_changes import changes_of_windows

__all__ = ["PlanChange", "PlanDiff", "PlanVerdict", "diff_plans"]

_NOTHING_DEPENDS_ON_OUTPUTS = "no state depends on output topics"


class PlanVerdict(StrEnum):
    """Whether an application can continue with its existing state."""

    COMPATIBLE = "Compatible"
    NEEDS_RESET = "NeedsReset"


@dataclass(frozen=True, slots=True)
class PlanChange:
    """One change: the resource, how it changed, and the consequence."""

    resource: str
    """Kind of the resource: `application`, `sub-topology`, `store`, `global store`, `repartition topic`, …"""
    name: str
    """The resource's name; the old one if it was renamed."""
    change: str
    why: str
    needs_reset: bool
    leaves_behind: bool = False
    """Whether state is merely left behind, so nothing is lost if it was already abandoned."""

    def __str__(self) -> str:
        """Return the change as one line."""
        return f"{self.resource} {self.name} {self.change}: {self.why}"


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The difference between two plans; changes that need a reset come first."""

    application_id: str
    old_hash: str
    new_hash: str
    reasons: tuple[PlanChange, ...]

    @property
    def verdict(self) -> PlanVerdict:
        """`NEEDS_RESET` if any change needs one."""
        return PlanVerdict.NEEDS_RESET if any(item.needs_reset for item in self.reasons) else PlanVerdict.COMPATIBLE

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the JSON with camelCase names."""
        reasons = [
            {
                "resource": item.resource,
                "name": item.name,
                "change": item.change,
                "why": item.why,
                "needsReset": item.needs_reset,
            }
            for item in self.reasons
        ]
        content = {
            "verdict": self.verdict.value,
            "applicationId": self.application_id,
            "oldHash": self.old_hash,
            "newHash": self.new_hash,
            "reasons": reasons,
        }
        return json.dumps(content, indent=indent, ensure_ascii=False)


def diff_plans(old: TopologyPlan, new: TopologyPlan) -> PlanDiff:
    """Compare the plan that is running with the one that is to replace it.

    Args:
        old: The plan that made the state, topics and offsets on the cluster.
        new: The plan that is to run.
    """
    if old.application_id != new.application_id:
        why = f"state, internal topics and offsets belong to {old.application_id}; {new.application_id} would start without them"
        reasons = [PlanChange("application", old.application_id, f"is now {new.application_id}", why, needs_reset=True)]
    else:
        reasons = [
            *_moved_subtopologies(old, new),
            *_store_changes(old, new),
            *_internal_topic_changes(old, new),
            *_inputs_and_outputs(old, new),
            *_dead_letters(old, new),
            *_global_store_changes(old, new),
        ]
    reasons.sort(key=lambda item: not item.needs_reset)
    return PlanDiff(new.application_id, old.hash, new.hash, tuple(reasons))


# Sub-topologies are matched by what they hold: stores and inputs.


def _moved_subtopologies(old: TopologyPlan, new: TopologyPlan) -> Iterator[PlanChange]:
    exchanged = renamed_stores(old, new) | renamed_topics(old, new)
    elsewhere = exchanged.keys() | set(exchanged.values())  # the names of others, reported as such
    before, after = (
        {thing: item.id for item in plan.subtopologies for thing in contents(item) if thing[1] not in elsewhere}
        for plan in (old, new)
    )
    moves = Counter((home, after[thing]) for thing, home in before.items() if after.get(thing, home) != home)
    for start, end in sorted(moves):
        things = sorted(thing for thing, home in before.items() if home == start and after.get(thing) == end)
        shown = ", ".join(f"{kind} {name}" for kind, name in things)
        why = (
            f"with {shown}. Tasks {start}_* become {end}_*, but state directories and the running group know the old ids. "
            "Operators are numbered in the order in which they are added: add new ones last, or keep the order"
        )
        yield PlanChange("sub-topology", str(start), f"is now {end}", why, needs_reset=True)


# Stores


def _store_changes(old: TopologyPlan, new: TopologyPlan) -> Iterator[PlanChange]:
    """Yield the changes to stores that tasks own; global stores are compared separately."""
    before, after = ({store.name: store for item in plan.subtopologies for store in item.stores} for plan in (old, new))
    renamed = renamed_stores(old, new)
    yield from _taken_over("store", renamed, before, after, "it would continue with the state of another operator")
    for name in sorted(before.keys() - after.keys()):
        if name in renamed:
            yield _renamed_store(old, before[name], after[renamed[name]])
        else:
            why = "its changelog topic and files stay, and would be used again, out of date, if it is added again"
            yield PlanChange("store", name, "was removed", why, needs_reset=True, leaves_behind=True)
    for name in sorted(after.keys() - before.keys() - set(renamed.values())):
        why = "it starts with the contents of its changelog, and empty if that topic is new"
        yield PlanChange("store", name, "was added", why, needs_reset=False)
    for name in sorted(before.keys() & after.keys()):
        yield from _changes_of_store(before[name], after[name])


def _taken_over(
    kind: str,
    renamed: Mapping[str, str],
    before: Mapping[str, PlannedStore] | Mapping[str, PlannedRepartitionTopic],
    after: Iterable[str],
    why: str,
) -> Iterator[PlanChange]:
    """Yield the names that were generated for one operator and now belong to another."""
    cause = "Generated names are numbered, and operators were exchanged, or added or removed before these. Restore their order"
    for name, other in sorted(renamed.items()):
        if other in before:
            change = f"is now what {name} was{_made(before[name].origin)}"
            yield PlanChange(kind, other, change, f"{why}. {cause}", needs_reset=True)
        elif name in after and name not in renamed.values():
            change = f"now belongs to another operator, and what it was{_made(before[name].origin)} is now {other}"
            yield PlanChange(kind, name, change, f"{why}. {cause}", needs_reset=True)


def _made(origin: PlannedOrigin | None) -> str:
    if origin is None:
        return ""
    results = f" for {', '.join(origin.results)}" if origin.results else ""
    return f" (made from {', '.join(origin.topics)}{results})"


def _renamed_store(plan: TopologyPlan, old: PlannedStore, new: PlannedStore) -> PlanChange:
    change = f"was renamed to {new.name}"
    if old.changelog_is_source and (old.changelog_topic, True) == (new.changelog_topic, new.changelog_is_source):
        why = f"{new.name} is restored from the input topic {new.changelog_topic}; files under the old name stay"
        return PlanChange("store", old.name, change, why, needs_reset=False)
    where = f"the old changelog, {old.changelog_topic}" if old.changelog_topic else "the instances' files"
    keep = _keep(naming_of_store(old.name, old.kind), "the store")
    number = next(item.id for item in plan.subtopologies if old in item.stores)
    why = f"its state stays in {where}, and {new.name} starts empty. {_again(plan, number)}. {keep}"
    return PlanChange("store", old.name, change, why, needs_reset=True, leaves_behind=True)


def _again(plan: TopologyPlan, number: int) -> str:
    inputs = inputs_of(plan, number)
    return f"A reset computes it again from {', '.join(inputs)}, as far back as records are kept"


def _keep(naming: Naming, what: str) -> str:
    """Return how to give a store or topic its old name back."""
    if naming.keeps:
        return f"To keep it, give {what} its old name: {naming.option}"
    return (
        "No option gives the old name, as it contains an operator's number: to keep it, leave the operators before it "
        f"unchanged. {naming.option} makes the name independent of them"
    )


def _changes_of_store(old: PlannedStore, new: PlannedStore) -> Iterator[PlanChange]:
    name = old.name
    if old.kind != new.kind:
        why = "the keys and values on disk and in its changelog would be misread"
        yield PlanChange("store", name, f"was {old.kind} and is {new.kind}", why, needs_reset=True)
    if old.value_format != new.value_format:
        why = "the values on disk and in its changelog would be misread"
        change = f"had the value format {old.value_format} and has {new.value_format}"
        yield PlanChange("store", name, change, why, needs_reset=True)
    if (old.changelog_topic, old.changelog_is_source) != (new.changelog_topic, new.changelog_is_source):
        why = "its state would be restored from a topic that it did not write, or could not be restored at all"
        change = f"was backed by {_backing(old)} and is now backed by {_backing(new)}"
        yield PlanChange("store", name, change, why, needs_reset=True)
    if old.persistent != new.persistent:
        where = "on disk" if new.persistent else "in memory"
        why = "it is restored from its changelog" if new.changelog_topic else "it starts empty, as it is not logged"
        yield PlanChange("store", name, f"is now kept {where}", why, needs_reset=new.changelog_topic is None)
    if old.kind == new.kind:
        for change, why, needs_reset in changes_of_windows(old, new):
            yield PlanChange("store", name, change, why, needs_reset=needs_reset)


def _backing(store: PlannedStore) -> str:
    if store.changelog_topic is None:
        return "no topic"
    return f"{'the input topic' if store.changelog_is_source else 'the changelog'} {store.changelog_topic}"


# Internal topics


def _internal_topic_changes(old: TopologyPlan, new: TopologyPlan) -> Iterator[PlanChange]:
    before, after = repartition_topics(old), repartition_topics(new)
    renamed = renamed_topics(old, new)
    lost = "its unprocessed records would be lost, and its offsets do not apply to another topic"
    yield from _taken_over("repartition topic", renamed, before, after, "its records belong to another operator")
    for name in sorted(before.keys() - after.keys()):
        if name not in renamed:
            yield PlanChange("repartition topic", name, "was removed", lost, needs_reset=True, leaves_behind=True)
            continue
        keep = _keep(naming_of_topic(name.removeprefix(f"{old.application_id}-")), "the topic")
        change, why = f"was renamed to {renamed[name]}", f"{lost}. The old topic stays. {keep}"
        yield PlanChange("repartition topic", name, change, why, needs_reset=True, leaves_behind=True)
    for name in sorted(after.keys() - before.keys() - set(renamed.values())):
        yield PlanChange("repartition topic", name, "was added", "it is created, empty", needs_reset=False)
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        if (was.partitions, was.enforced) != (now.partitions, now.enforced):
            why = "keys would go to other partitions, and so to tasks that do not have their state"
            change = f"had {_count(was)} and has {_count(now)}"
            yield PlanChange("repartition topic", name, change, why, needs_reset=True)
        yield from _config_change("repartition topic", name, was.config, now.config)
    changelogs_before, changelogs_after = changelog_topics(old), changelog_topics(new)
    untold = {
        store.changelog_topic for item in old.subtopologies for store in item.stores if store.retention_ms is None
    }
    for name in sorted(changelogs_before.keys() & changelogs_after.keys()):
        configs = changelogs_before[name].config, changelogs_after[name].config
        hint = ""
        if name in untold and len({config.get("retention.ms") for config in configs}) > 1:
            hint = ". The older plan does not contain the windows: if their size has changed, old ones would be misread"
        yield from _config_change("changelog topic", name, *configs, hint)


def _count(topic: PlannedRepartitionTopic) -> str:
    if topic.partitions is None:
        return f"as many partitions as its writers' inputs{' (enforced)' if topic.enforced else ''}"
    return f"{topic.partitions} partitions{' (enforced)' if topic.enforced else ''}"


def _config_change(
    resource: str, name: str, old: Mapping[str, str], new: Mapping[str, str], hint: str = ""
) -> Iterator[PlanChange]:
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if keys:
        why = f"an existing topic keeps its settings until you alter them (kafka-configs --alter){hint}"
        change = "is configured differently (" + ", ".join(f"{k}: {old.get(k)} → {new.get(k)}" for k in keys) + ")"
        yield PlanChange(resource, name, change, why, needs_reset=False)


def _global_store_changes(old: TopologyPlan, new: TopologyPlan) -> Iterator[PlanChange]:
    before: dict[str, PlannedGlobalStore] = {store.name: store for store in old.global_stores}
    after: dict[str, PlannedGlobalStore] = {store.name: store for store in new.global_stores}
    for name in sorted(before.keys() - after.keys()):
        yield PlanChange(
            "global store", name, "was removed", "its topic belongs to the user and stays", needs_reset=False
        )
    for name in sorted(after.keys() - before.keys()):
        yield PlanChange("global store", name, "was added", "every instance fills it from its topic", needs_reset=False)
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        for what, a, b in (
            ("topic", was.topic, now.topic),
            ("kind", was.kind, now.kind),
            ("value format", was.value_format, now.value_format),
        ):
            if a != b:
                why = f"the instances' files have the old {what}'s records, which would be misread"
                yield PlanChange("global store", name, f"had the {what} {a} and has {b}", why, needs_reset=True)
        if was.persistent != now.persistent:
            where = "on disk" if now.persistent else "in memory"
            yield PlanChange(
                "global store", name, f"is now kept {where}", "it is filled from its topic", needs_reset=False
            )


# The user's topics


def _inputs_and_outputs(old: TopologyPlan, new: TopologyPlan) -> Iterator[PlanChange]:
    internal = frozenset(repartition_topics(old).keys() | repartition_topics(new).keys())
    before, after = (
        {thing for item in plan.subtopologies for thing in _inputs_of(item, internal)} for plan in (old, new)
    )
    layouts = ({name for item in plan.subtopologies for name in _laid_out(item, internal)} for plan in (old, new))
    kept = set.intersection(*layouts)
    for item in old.subtopologies:
        gone = sorted(_inputs_of(item, internal) - after)
        yield from _inputs(item, gone, "is no longer read", "state keeps the results of its records", kept, internal)
    for item in new.subtopologies:
        come = sorted(_inputs_of(item, internal) - before)
        consequence = "an input with more partitions would not fit the existing topics"
        yield from _inputs(item, come, "is newly read", consequence, kept, internal)
    by_id_before, by_id_after = ({item.id: item for item in plan.subtopologies} for plan in (old, new))
    for number in sorted(by_id_before.keys() | by_id_after.keys()):
        was, now = by_id_before.get(number), by_id_after.get(number)
        yield from _outputs(number, was, now, internal)
        if was and now:
            yield from _copartitioning(was, now)


def _inputs_of(item: PlannedSubtopology, internal: frozenset[str]) -> set[tuple[str, str]]:
    return {(kind, name) for kind, name in contents(item) if kind != "store" and name not in internal}


def _laid_out(item: PlannedSubtopology, internal: frozenset[str]) -> set[str]:
    """Return the stores and repartition topics whose number of partitions depends on the sub-topology's inputs."""
    return {f"store {store.name}" for store in item.stores} | {f"topic {n}" for n in internal & set(item.sink_topics)}


def _inputs(
    item: PlannedSubtopology,
    things: Iterable[tuple[str, str]],
    change: str,
    consequence: str,
    kept: set[str],
    internal: frozenset[str],
) -> Iterator[PlanChange]:
    """Yield changes for inputs that came or went; inputs that moved to another sub-topology are reported separately."""
    stateful = not kept.isdisjoint(_laid_out(item, internal))
    follows = "the largest input sets the number of tasks, and of partitions of changelog and repartition topics; "
    why = follows + consequence if stateful else "no stored state depends on its number of partitions"
    for kind, name in things:
        yield PlanChange(f"source {kind}", name, f"{change} by sub-topology {item.id}", why, needs_reset=stateful)


def _copartitioning(old: PlannedSubtopology, new: PlannedSubtopology) -> Iterator[PlanChange]:
    if set(map(frozenset, old.copartition_groups)) == set(map(frozenset, new.copartition_groups)):
        return
    shared = {topic.name for topic in old.repartition_topics} & {topic.name for topic in new.repartition_topics}
    before, after = (
        {name: {other for group in item.copartition_groups if name in group for other in group} for name in shared}
        for item in (old, new)
    )
    agreed = sorted(name for name in shared if before[name] != after[name])
    why = (
        f"{', '.join(agreed)} may need a different number of partitions, to match its partners"
        if agreed
        else "no existing topic is affected; partition counts are compared when the application starts"
    )
    change = "has other topics that must be co-partitioned"
    yield PlanChange("sub-topology", str(new.id), change, why, needs_reset=bool(agreed))


def _dead_letters(old: TopologyPlan, new: TopologyPlan) -> Iterator[PlanChange]:
    was, now = old.dead_letter_topic, new.dead_letter_topic
    if was == now:
        return
    for name, change in ((was, "is no longer written"), (now, "is newly written")):
        if name is not None:
            yield PlanChange("dead-letter topic", name, change, _NOTHING_DEPENDS_ON_OUTPUTS, needs_reset=False)


def _outputs(
    number: int, old: PlannedSubtopology | None, new: PlannedSubtopology | None, internal: frozenset[str]
) -> Iterator[PlanChange]:
    was = set(old.sink_topics if old else ()) - internal
    now = set(new.sink_topics if new else ()) - internal
    for names, change in ((was - now, "is no longer written"), (now - was, "is newly written")):
        for name in sorted(names):
            done = f"{change} by sub-topology {number}"
            yield PlanChange("sink topic", name, done, _NOTHING_DEPENDS_ON_OUTPUTS, needs_reset=False)
