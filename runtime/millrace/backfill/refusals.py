"""What cannot be computed or written, as far as it can be told before anything runs, and what to do instead."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from millrace.backfill.history import Backfill
from millrace.dsl.processors.stateless import SideEffect
from millrace.errors import ConfigError, MissingSourceTopicError, UnsupportedFeatureError
from millrace.plan.topology_plan import TopologyPlan, external_source_topics
from millrace.topology.physical_topology import BuiltTopology, ProcessorNode

START_ANOTHER: Final = (
    "Start another backfill (another name, or another StreamsBackfill), which writes all outputs again"
)
"""The remedy where an earlier attempt has written outputs that this one would not fit."""


def refuse(built: BuiltTopology, plan: TopologyPlan, backfill: Backfill) -> None:
    """Raise an error that lists everything that has no meaning over history, or no history.

    Raises:
        MissingSourceTopicError: topics that the application reads do not exist.
        UnsupportedFeatureError: something has no meaning over history.
    """
    missing = external_source_topics(plan) - backfill.history.partition_counts().keys()
    if missing:
        raise MissingSourceTopicError(
            f"There is no history of {', '.join(sorted(missing))}, which the application reads: the topics do not exist"
        )
    found = list(_refused(built, plan, backfill))
    if found:
        raise UnsupportedFeatureError("\n".join(("This topology cannot be computed over history.", *found)))


def _refused(built: BuiltTopology, plan: TopologyPlan, backfill: Backfill) -> Iterator[str]:
    if not backfill.side_effects:
        for subtopology in built.subtopologies:
            for node in subtopology.nodes:
                if isinstance(node, ProcessorNode) and isinstance(node.factory, SideEffect):
                    yield (
                        f"Node {node.name} of sub-topology {subtopology.id} (peek, foreach or print) is there for its side "
                        "effects. Take it out, or allow side effects: they then happen again for every record of history"
                    )
    written = {topic: item.id for item in plan.subtopologies for topic in item.sink_topics}
    for store in plan.global_stores:
        if store.topic in written:
            yield (
                f"Global store {store.name} is filled from topic {store.topic}, which sub-topology {written[store.topic]} "
                "writes. Global stores are complete before the first record is processed, so they would lack what the backfill "
                "computes: run the part that writes the topic as an application of its own"
            )
        if store.topic in backfill.history.shuffled:
            yield (
                f"Global store {store.name} is filled from topic {store.topic}, whose history is in files. The topics of global "
                "stores are read from Kafka: leave it out of the files"
            )


def refuse_files(plan: TopologyPlan, topics: Collection[str]) -> None:
    """Refuse to hand over what was computed from files of topics from which stores are restored.

    Args:
        plan: the application's.
        topics: topics that have files.

    Raises:
        ConfigError: a store is restored from one of these, so it would lack what is only in files.
    """
    for store in (store for item in plan.subtopologies for store in item.stores):
        if store.changelog_is_source and store.changelog_topic in topics:
            raise ConfigError(
                f"Store {store.name} has no changelog of its own: it is restored from topic {store.changelog_topic} and would "
                "lack what is only in the files. Write these records to the topic first, and backfill from Kafka. If it is the "
                "store of a KTable, you can also give it a changelog: leave reuse.ktable.source.topics (or all) out of "
                "topology.optimization. Nothing has been written"
            )


def notes(plan: TopologyPlan) -> tuple[str, ...]:
    """Return what a user should know about the result."""
    return tuple(
        f"Store {store.name} of sub-topology {item.id} has no changelog: its contents are used, but not handed over"
        for item in plan.subtopologies
        for store in item.stores
        if store.changelog_topic is None
    )
