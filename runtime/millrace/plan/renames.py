"""Finds stores and repartition topics that have another name than in an older plan.

A plan knows resources only by their names. One that is gone and a new one count as the same if they have the same place: the
same sub-topology, the same kind, and the same position among these. Sub-topologies are matched by what they hold.

Generated names are numbered, so a name in both plans may belong to different operators. Generated names are first matched by
origin, which exchanged operators keep. If that fails, because earlier steps have changed too or a plan is from an earlier
version, they are matched by position. If operators have the same origin, the topics that their results go to decide;
exchanging only these topics looks the same as exchanging the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from millrace.plan.names import is_generated, stem, without_numbers
from millrace.plan.topology_plan import PlannedOrigin, PlannedSubtopology, TopologyPlan, repartition_topics


def contents(item: PlannedSubtopology) -> set[tuple[str, str]]:
    """Return what identifies a sub-topology: its stores and inputs."""
    return {
        *(("store", store.name) for store in item.stores),
        *(("topic", topic) for topic in item.source_topics),
        *(("pattern", pattern) for pattern in item.source_patterns),
    }


class _Known(NamedTuple):
    """What identifies a resource apart from its name."""

    place: tuple[Hashable, ...]
    """Its kind, among the resources of its sub-topology."""
    origin: PlannedOrigin | None


def renamed_stores(old: TopologyPlan, new: TopologyPlan) -> dict[str, str]:
    """Return old name → new name of the stores that tasks own."""
    return _renamed(
        old,
        new,
        lambda item: {store.name: _Known((store.kind, store.value_format), store.origin) for store in item.stores},
    )


def renamed_topics(old: TopologyPlan, new: TopologyPlan) -> dict[str, str]:
    """Return old name → new name of the repartition topics."""
    return _renamed(old, new, lambda item: {topic.name: _Known((), topic.origin) for topic in item.repartition_topics})


def _renamed(
    old: TopologyPlan, new: TopologyPlan, names_of: Callable[[PlannedSubtopology], Mapping[str, _Known]]
) -> dict[str, str]:
    known, wanted = (
        {name: it for item in plan.subtopologies for name, it in names_of(item).items()} for plan in (old, new)
    )
    found = _same_origins(known, wanted)
    recognised = set(found.values())
    result = {name: other for name, other in found.items() if name != other}
    partners = _partners(old, new)
    names_after = {item.id: names_of(item) for item in new.subtopologies}
    for item in old.subtopologies:
        if item.id not in partners:
            continue
        before = {name: it.place for name, it in names_of(item).items() if name not in found}
        after = {name: it.place for name, it in names_after[partners[item.id]].items() if name not in recognised}
        numbered = _pairs(_generated(before), _generated(after), lambda name, place: (*place, stem(name)))
        result |= {name: other for name, other in numbered.items() if name != other}
        taken = set(result.values())
        gone = {name: place for name, place in before.items() if name not in wanted and name not in result}
        come = {name: place for name, place in after.items() if name not in known and name not in taken}
        for key in (lambda name, place: (*place, stem(name)), lambda _, place: place):
            pairs = _pairs(gone, come, key)
            result |= pairs
            gone = {name: place for name, place in gone.items() if name not in pairs}
            come = {name: place for name, place in come.items() if name not in pairs.values()}
    return result


def _same_origins(old: Mapping[str, _Known], new: Mapping[str, _Known]) -> dict[str, str]:
    """Return old name → new name of the resources with the same origin: if possible with the same results, too."""
    result: dict[str, str] = {}
    for with_results in (True, False):
        before, after = (
            {
                name: (
                    without_numbers(name),
                    it.origin.topics,
                    it.origin.steps,
                    it.origin.results if with_results else (),
                )
                for name, it in sorted(names.items())
                if it.origin is not None and name not in done
            }
            for names, done in ((old, result.keys()), (new, set(result.values())))
        )
        same = {name: name for name, origin in before.items() if after.get(name) == origin}
        waiting: dict[Hashable, list[str]] = {}
        for name, origin in after.items():
            if name not in same:
                waiting.setdefault(origin, []).append(name)
        moved = {
            name: waiting[origin].pop(0) for name, origin in before.items() if name not in same and waiting.get(origin)
        }
        result |= same | moved
    return result


def _generated(names: Mapping[str, tuple[Hashable, ...]]) -> dict[str, tuple[Hashable, ...]]:
    return {name: names[name] for name in sorted(names) if is_generated(name)}


def _pairs(
    gone: Mapping[str, tuple[Hashable, ...]],
    come: Mapping[str, tuple[Hashable, ...]],
    key: Callable[[str, tuple[Hashable, ...]], Hashable],
) -> dict[str, str]:
    """Pair gone and new names with the same key, in order, where there are as many of both."""

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
    """Return the new number of each sub-topology: the one that holds some of the same, or else has the same feeders."""
    home = {thing: item.id for item in new.subtopologies for thing in contents(item)}
    feeding_before, feeding_after = _feeding(old), _feeding(new)
    result: dict[int, int] = {}
    for item in old.subtopologies:
        things = sorted(contents(item), key=lambda thing: (is_generated(thing[1]), thing))
        found = [home[thing] for thing in things if thing in home]
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
