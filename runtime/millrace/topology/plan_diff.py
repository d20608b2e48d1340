"""What changed between two topology plans, and whether the state of the running application survives it.

State is found again by names (changelog and repartition topics) and by task ids (sub-topology number and partition), and is read
by kind and format. A change to any of these leaves state behind or misreads it, so it needs a reset; so does a change to what
may decide partition counts that state was laid out by. A plan has no counts of its own, so a change that *may* alter them counts
as one that does. Pure: nothing is asked of brokers or disks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from millrace.topology.plan import PlannedSubtopology, TopologyPlan
from millrace.topology.plan_diff_state import (
    Reason,
    changelog_config_reasons,
    global_store_reasons,
    repartition_topic_reasons,
    repartition_topics_of,
    store_reasons,
)

_NOTHING_DEPENDS_ON_OUTPUTS = "no state depends on output topics"

__all__ = ["PlanDiff", "Reason", "Verdict", "diff_plans"]


class Verdict(StrEnum):
    """Whether an application may go on with the state it has."""

    COMPATIBLE = "Compatible"
    NEEDS_RESET = "NeedsReset"


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The difference between two plans; those reasons that need a reset come first."""

    application_id: str
    old_hash: str
    new_hash: str
    reasons: tuple[Reason, ...]

    @property
    def verdict(self) -> Verdict:
        """`NEEDS_RESET` if any reason does."""
        return Verdict.NEEDS_RESET if any(item.needs_reset for item in self.reasons) else Verdict.COMPATIBLE

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
    """Compare the plan that runs with the one that is to replace it.

    Args:
        old: What state, topics and offsets on the cluster were made by.
        new: What is to run.
    """
    if old.application_id != new.application_id:
        why = (
            f"state, internal topics and offsets belong to {old.application_id}; {new.application_id} would begin "
            "with none of them"
        )
        reasons = [Reason("application", old.application_id, f"is now {new.application_id}", why, needs_reset=True)]
    else:
        reasons = [
            *_moved_subtopologies(old, new),
            *store_reasons(old, new),
            *repartition_topic_reasons(old, new),
            *changelog_config_reasons(old, new),
            *_inputs_and_outputs(old, new),
            *_dead_letters(old, new),
            *global_store_reasons(old, new),
        ]
    reasons.sort(key=lambda item: not item.needs_reset)
    return PlanDiff(new.application_id, old.hash, new.hash, tuple(reasons))


# Sub-topologies are matched by what they hold: stores and inputs.


def _contents(item: PlannedSubtopology) -> set[tuple[str, str]]:
    return {
        *(("store", store.name) for store in item.stores),
        *(("topic", topic) for topic in item.source_topics),
        *(("pattern", pattern) for pattern in item.source_patterns),
    }


def _homes(plan: TopologyPlan) -> dict[tuple[str, str], int]:
    return {thing: item.id for item in plan.subtopologies for thing in _contents(item)}


def _moved_subtopologies(old: TopologyPlan, new: TopologyPlan) -> Iterator[Reason]:
    before, after = _homes(old), _homes(new)
    moves = Counter((home, after[thing]) for thing, home in before.items() if after.get(thing, home) != home)
    for start, end in sorted(moves):
        things = sorted(thing for thing, home in before.items() if home == start and after.get(thing) == end)
        shown = ", ".join(f"{kind} {name}" for kind, name in things)
        why = (
            f"with {shown}. Tasks {start}_* become {end}_*, but state directories and the running group know the old ids. "
            "New operators are numbered in the order in which they are added: add them last, or keep the order"
        )
        yield Reason("sub-topology", str(start), f"is now {end}", why, needs_reset=True)


# The user's topics


def _inputs_and_outputs(old: TopologyPlan, new: TopologyPlan) -> Iterator[Reason]:
    internal = frozenset(repartition_topics_of(old).keys() | repartition_topics_of(new).keys())
    before, after = _read_topics(old, internal), _read_topics(new, internal)
    kept = _layout(old, internal) & _layout(new, internal)
    for item in old.subtopologies:
        gone = [thing for thing in before[item.id] if not _contains(after, thing)]
        yield from _inputs(item, gone, "is no longer read", "state keeps what came from it", kept, internal)
    for item in new.subtopologies:
        come = [thing for thing in after[item.id] if not _contains(before, thing)]
        consequence = "a larger one would not fit the topics that exist"
        yield from _inputs(item, come, "is newly read", consequence, kept, internal)
    pairs_before, pairs_after = _by_id(old), _by_id(new)
    for number in sorted(pairs_before.keys() | pairs_after.keys()):
        was, now = pairs_before.get(number), pairs_after.get(number)
        yield from _outputs(number, was, now, internal)
        if was and now:
            yield from _copartitioning(was, now)


def _by_id(plan: TopologyPlan) -> dict[int, PlannedSubtopology]:
    return {item.id: item for item in plan.subtopologies}


def _read_topics(plan: TopologyPlan, internal: frozenset[str]) -> dict[int, list[tuple[str, str]]]:
    return {
        item.id: sorted(thing for thing in _contents(item) if thing[0] != "store" and thing[1] not in internal)
        for item in plan.subtopologies
    }


def _contains(things: Mapping[int, list[tuple[str, str]]], wanted: tuple[str, str]) -> bool:
    return any(wanted in owned for owned in things.values())


def _layout(plan: TopologyPlan, internal: frozenset[str]) -> set[str]:
    """Return the stores and repartition topics, whose partitions follow from the inputs."""
    return {name for item in plan.subtopologies for name in _laid_out(item, internal)}


def _laid_out(item: PlannedSubtopology, internal: frozenset[str]) -> set[str]:
    return {f"store {store.name}" for store in item.stores} | {f"topic {n}" for n in internal & set(item.sink_topics)}


def _inputs(
    item: PlannedSubtopology,
    things: Iterable[tuple[str, str]],
    change: str,
    consequence: str,
    kept: set[str],
    internal: frozenset[str],
) -> Iterator[Reason]:
    """Yield reasons for inputs that came or went; those that another sub-topology has taken over are told as a move."""
    stateful = not kept.isdisjoint(_laid_out(item, internal))
    follows = "tasks, changelog and repartition topics are as many as the partitions of the largest input; "
    why = follows + consequence if stateful else "nothing that is kept depends on how many partitions it has"
    for kind, name in things:
        yield Reason(f"source {kind}", name, f"{change} by sub-topology {item.id}", why, needs_reset=stateful)


def _copartitioning(old: PlannedSubtopology, new: PlannedSubtopology) -> Iterator[Reason]:
    if set(map(frozenset, old.copartition_groups)) == set(map(frozenset, new.copartition_groups)):
        return
    shared = {topic.name for topic in old.repartition_topics} & {topic.name for topic in new.repartition_topics}
    agreed = sorted(name for name in shared if _partners(old, name) != _partners(new, name))
    why = (
        f"{', '.join(agreed)} may have to get another number of partitions, to agree with its partners"
        if agreed
        else "no topic that exists is affected; equal partition counts are checked when the application starts"
    )
    change = "has other topics that must be co-partitioned"
    yield Reason("sub-topology", str(new.id), change, why, needs_reset=bool(agreed))


def _partners(item: PlannedSubtopology, topic: str) -> frozenset[str]:
    return frozenset(name for group in item.copartition_groups if topic in group for name in group)


def _dead_letters(old: TopologyPlan, new: TopologyPlan) -> Iterator[Reason]:
    was, now = old.dead_letter_topic, new.dead_letter_topic
    if was == now:
        return
    for name, change in ((was, "is no longer written"), (now, "is newly written")):
        if name is not None:
            yield Reason("dead-letter topic", name, change, _NOTHING_DEPENDS_ON_OUTPUTS, needs_reset=False)


def _outputs(
    number: int, old: PlannedSubtopology | None, new: PlannedSubtopology | None, internal: frozenset[str]
) -> Iterator[Reason]:
    was = set(old.sink_topics if old else ()) - internal
    now = set(new.sink_topics if new else ()) - internal
    for names, change in ((was - now, "is no longer written"), (now - was, "is newly written")):
        for name in sorted(names):
            done = f"{change} by sub-topology {number}"
            yield Reason("sink topic", name, done, _NOTHING_DEPENDS_ON_OUTPUTS, needs_reset=False)
