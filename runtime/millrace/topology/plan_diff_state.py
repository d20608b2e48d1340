"""What changed of stores and internal topics between two plans, each with what follows for the state in them.

A store is found again by the name of its changelog and read by kind and format; a repartition topic is known by its name, and how
many partitions it has decides which task has which key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from millrace.topology.plan import (
    PlannedChangelogTopic,
    PlannedGlobalStore,
    PlannedRepartitionTopic,
    PlannedStore,
    TopologyPlan,
)

__all__ = [
    "Reason",
    "changelog_config_reasons",
    "global_store_reasons",
    "repartition_topic_reasons",
    "repartition_topics_of",
    "store_reasons",
]


@dataclass(frozen=True, slots=True)
class Reason:
    """One change: of what, what it is, and what follows from it."""

    resource: str
    """Kind of the resource: `application`, `sub-topology`, `store`, `global store`, `repartition topic`, …"""
    name: str
    """The resource's name, the old one when it was renamed."""
    change: str
    why: str
    needs_reset: bool
    leaves_behind: bool = False
    """Whether something is only left behind: nothing to lose where that was given up before."""

    def __str__(self) -> str:
        """Return it as a line for people."""
        return f"{self.resource} {self.name} {self.change}: {self.why}"


# Stores


def store_reasons(old: TopologyPlan, new: TopologyPlan) -> Iterator[Reason]:
    """Yield what changed of stores, those of every instance (global ones) left out."""
    before, after = _stores_of(old), _stores_of(new)
    renamed = _renamed(old, new, before.keys() - after.keys(), after.keys() - before.keys())
    for name in sorted(before.keys() - after.keys()):
        if name in renamed:
            why = (
                f"its state stays in the old changelog, and {renamed[name]} begins empty. Give the store a fixed name "
                f"(Materialized.as_({name!r}))"
            )
            yield Reason("store", name, f"was renamed to {renamed[name]}", why, needs_reset=True, leaves_behind=True)
        else:
            why = (
                "its changelog topic and its files are left behind, and come back, out of date, when it is added again"
            )
            yield Reason("store", name, "was removed", why, needs_reset=True, leaves_behind=True)
    for name in sorted(after.keys() - before.keys() - set(renamed.values())):
        why = "it begins with what its changelog holds, which is nothing if the topic is new"
        yield Reason("store", name, "was added", why, needs_reset=False)
    for name in sorted(before.keys() & after.keys()):
        yield from _store_changes(before[name], after[name])


def _stores_of(plan: TopologyPlan) -> dict[str, PlannedStore]:
    return {store.name: store for item in plan.subtopologies for store in item.stores}


def _renamed(old: TopologyPlan, new: TopologyPlan, gone: Iterable[str], come: Iterable[str]) -> dict[str, str]:
    """Return old name → new name where one sub-topology lost and gained just one store of a kind and format."""

    def single(plan: TopologyPlan, names: Iterable[str]) -> dict[tuple[int, str, str], str]:
        wanted = set(names)
        found = [
            ((item.id, store.kind, store.value_format), store.name)
            for item in plan.subtopologies
            for store in item.stores
            if store.name in wanted
        ]
        counts = Counter(place for place, _ in found)
        return {place: name for place, name in found if counts[place] == 1}

    before, after = single(old, gone), single(new, come)
    return {before[place]: after[place] for place in before.keys() & after.keys()}


def _store_changes(old: PlannedStore, new: PlannedStore) -> Iterator[Reason]:
    name = old.name
    if old.kind != new.kind:
        why = "the keys and values on disk and in its changelog would be misread"
        yield Reason("store", name, f"was {old.kind} and is {new.kind}", why, needs_reset=True)
    if old.value_format != new.value_format:
        why = "the values on disk and in its changelog would be misread"
        change = f"had the value format {old.value_format} and has {new.value_format}"
        yield Reason("store", name, change, why, needs_reset=True)
    if (old.changelog_topic, old.changelog_is_source) != (new.changelog_topic, new.changelog_is_source):
        why = "its state would be restored from a topic that was not written by it, or could not be restored at all"
        change = f"was backed by {_backing(old)} and is by {_backing(new)}"
        yield Reason("store", name, change, why, needs_reset=True)
    if old.persistent != new.persistent:
        where = "on disk" if new.persistent else "in memory"
        why = "it is restored from its changelog" if new.changelog_topic else "it begins empty, as it is not logged"
        yield Reason("store", name, f"is now kept {where}", why, needs_reset=new.changelog_topic is None)


def _backing(store: PlannedStore) -> str:
    if store.changelog_topic is None:
        return "no topic"
    return f"{'the input topic' if store.changelog_is_source else 'the changelog'} {store.changelog_topic}"


# Internal topics


def repartition_topic_reasons(old: TopologyPlan, new: TopologyPlan) -> Iterator[Reason]:
    """Yield what changed of repartition topics."""
    before, after = repartition_topics_of(old), repartition_topics_of(new)
    gone, come = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    renamed = {gone[0]: come[0]} if len(gone) == len(come) == 1 else {}
    for name in gone:
        why = "records in it that are not yet processed would be lost, and its offsets do not apply to another topic"
        change = f"was renamed to {renamed[name]}" if name in renamed else "was removed"
        yield Reason("repartition topic", name, change, why, needs_reset=True, leaves_behind=True)
    for name in come:
        if name not in renamed.values():
            yield Reason("repartition topic", name, "was added", "it is created, empty", needs_reset=False)
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        if (was.partitions, was.enforced) != (now.partitions, now.enforced):
            why = "keys would go to other partitions, so to other tasks than those that have their state"
            change = f"had {_count(was)} and has {_count(now)}"
            yield Reason("repartition topic", name, change, why, needs_reset=True)
        yield from _config_change("repartition topic", name, was.config, now.config)


def repartition_topics_of(plan: TopologyPlan) -> dict[str, PlannedRepartitionTopic]:
    """Return the repartition topics of a plan by name."""
    return {topic.name: topic for item in plan.subtopologies for topic in item.repartition_topics}


def _count(topic: PlannedRepartitionTopic) -> str:
    if topic.partitions is None:
        return f"as many partitions as its writers' inputs{' (enforced)' if topic.enforced else ''}"
    return f"{topic.partitions} partitions{' (enforced)' if topic.enforced else ''}"


def changelog_config_reasons(old: TopologyPlan, new: TopologyPlan) -> Iterator[Reason]:
    """Yield what changed of the settings of changelog topics."""
    before, after = _changelogs_of(old), _changelogs_of(new)
    for name in sorted(before.keys() & after.keys()):
        yield from _config_change("changelog topic", name, before[name].config, after[name].config)


def _changelogs_of(plan: TopologyPlan) -> dict[str, PlannedChangelogTopic]:
    return {topic.name: topic for item in plan.subtopologies for topic in item.changelog_topics}


def _config_change(resource: str, name: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Reason]:
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if keys:
        why = "a topic that exists keeps its settings until they are altered (kafka-configs --alter)"
        change = "is configured otherwise (" + ", ".join(f"{k}: {old.get(k)} → {new.get(k)}" for k in keys) + ")"
        yield Reason(resource, name, change, why, needs_reset=False)


def global_store_reasons(old: TopologyPlan, new: TopologyPlan) -> Iterator[Reason]:
    """Yield what changed of global stores."""
    before: dict[str, PlannedGlobalStore] = {store.name: store for store in old.global_stores}
    after: dict[str, PlannedGlobalStore] = {store.name: store for store in new.global_stores}
    for name in sorted(before.keys() - after.keys()):
        yield Reason("global store", name, "was removed", "its topic is the user's, and stays", needs_reset=False)
    for name in sorted(after.keys() - before.keys()):
        yield Reason("global store", name, "was added", "every instance fills it from its topic", needs_reset=False)
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        for what, a, b in (
            ("topic", was.topic, now.topic),
            ("kind", was.kind, now.kind),
            ("value format", was.value_format, now.value_format),
        ):
            if a != b:
                why = "the instances' files hold the old one's records, and would be taken for its own"
                yield Reason("global store", name, f"had the {what} {a} and has {b}", why, needs_reset=True)
        if was.persistent != now.persistent:
            where = "on disk" if now.persistent else "in memory"
            yield Reason("global store", name, f"is now kept {where}", "it is filled from its topic", needs_reset=False)
