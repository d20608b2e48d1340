"""Which store or repartition topic of a plan is one of an older plan under another name.

A plan knows resources only by their names. One that is gone and one that has come count as the same if they have the same place:
the same sub-topology, the same kind, and the same position among those. Sub-topologies are matched by what they hold. Generated
names are numbered, so a name that is in both plans may be that of another operator: these are matched by position alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from millrace.plan.model import PlannedStore, PlannedSubtopology, TopologyPlan, repartition_topics
from millrace.plan.names import stem


def contents(item: PlannedSubtopology) -> set[tuple[str, str]]:
    """Return what a sub-topology is known by: its stores and inputs."""
    return {
        *(("store", store.name) for store in item.stores),
        *(("topic", topic) for topic in item.source_topics),
        *(("pattern", pattern) for pattern in item.source_patterns),
    }


def renamed_stores(old: TopologyPlan, new: TopologyPlan) -> dict[str, str]:
    """Return old name → new name of the stores that tasks own."""

    def place(store: PlannedStore) -> tuple[Hashable, ...]:
        return store.kind, store.value_format

    return _renamed(old, new, lambda item: {store.name: place(store) for store in item.stores})


def renamed_topics(old: TopologyPlan, new: TopologyPlan) -> dict[str, str]:
    """Return old name → new name of the repartition topics."""
    return _renamed(old, new, lambda item: {topic.name: () for topic in item.repartition_topics})


def _renamed(
    old: TopologyPlan,
    new: TopologyPlan,
    names_of: Callable[[PlannedSubtopology], Mapping[str, tuple[Hashable, ...]]],
) -> dict[str, str]:
    known, wanted = ({name for item in plan.subtopologies for name in names_of(item)} for plan in (old, new))
    partners = _partners(old, new)
    names_after = {item.id: names_of(item) for item in new.subtopologies}
    result: dict[str, str] = {}
    for item in old.subtopologies:
        if item.id not in partners:
            continue
        before, after = names_of(item), names_after[partners[item.id]]
        numbered = _pairs(_generated(before), _generated(after), lambda name, place: (*place, stem(name)))
        result |= {name: other for name, other in numbered.items() if name != other}
        taken = set(result.values())
        gone = {name: place for name, place in before.items() if name not in wanted and name not in result}
        come = {name: place for name, place in after.items() if name not in known and name not in taken}
        for key in (lambda name, place: (*place, stem(name)), lambda _, place: place):
            found = _pairs(gone, come, key)
            result |= found
            gone = {name: place for name, place in gone.items() if name not in found}
            come = {name: place for name, place in come.items() if name not in found.values()}
    return result


def _generated(names: Mapping[str, tuple[Hashable, ...]]) -> dict[str, tuple[Hashable, ...]]:
    return {name: names[name] for name in sorted(names) if "#" in stem(name)}


def _pairs(
    gone: Mapping[str, tuple[Hashable, ...]],
    come: Mapping[str, tuple[Hashable, ...]],
    key: Callable[[str, tuple[Hashable, ...]], Hashable],
) -> dict[str, str]:
    """Return the names with the same key in order, where as many are gone as have come."""

    def by_key(names: Mapping[str, tuple[Hashable, ...]]) -> dict[Hashable, list[str]]:
        found: dict[Hashable, list[str]] = {}
        for name, place in names.items():
            found.setdefault(key(name, place), []).append(name)
        return found

    before, after = by_key(gone), by_key(come)
    return {
        name: other
        for place, names in before.items()
        if len(names) == len(after.get(place, ()))
        for name, other in zip(names, after[place], strict=True)
    }


def _partners(old: TopologyPlan, new: TopologyPlan) -> dict[int, int]:
    """Return the new number of each sub-topology: of one that holds some of the same, or else is fed by the same ones."""
    home = {thing: item.id for item in new.subtopologies for thing in contents(item)}
    feeding_before, feeding_after = _feeding(old), _feeding(new)
    result: dict[int, int] = {}
    for item in old.subtopologies:
        found = [home[thing] for thing in sorted(contents(item)) if thing in home]
        if found and found[0] not in result.values():
            result[item.id] = found[0]
    for item in old.subtopologies:  # what feeds others mostly comes before them
        if item.id in result:
            continue
        fed_by = {result.get(number) for number in feeding_before[item.id]}
        free = [number for number in feeding_after if number not in result.values()]
        same = [number for number in free if fed_by and feeding_after[number] == fed_by]
        if same or item.id in free:
            result[item.id] = [*same, item.id][0]
    return result


def _feeding(plan: TopologyPlan) -> dict[int, set[int]]:
    """Return which sub-topologies send records to each one through repartition topics."""
    internal = repartition_topics(plan).keys()
    return {
        item.id: {
            other.id for other in plan.subtopologies if internal & set(item.source_topics) & set(other.sink_topics)
        }
        for item in plan.subtopologies
    }


def inputs_of(plan: TopologyPlan, number: int) -> tuple[str, ...]:
    """Return the user's topics, and patterns of topics, that a sub-topology's records come from, through other sub-topologies."""
    internal, feeding = repartition_topics(plan), _feeding(plan)
    waiting, seen = [number], set[int]()
    while waiting:
        current = waiting.pop()
        seen.add(current)
        waiting += feeding[current] - seen
    items = [item for item in plan.subtopologies if item.id in seen]
    topics = {topic for item in items for topic in item.source_topics if topic not in internal}
    return tuple(sorted(topics.union(*(item.source_patterns for item in items))))
