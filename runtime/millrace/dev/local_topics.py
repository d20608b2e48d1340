"""What the topology needs of Kafka, found out and provided as the operator does it.

The program is asked for its plan in a process of its own (`millrace plan --json`): neither this host nor the operator ever
imports user code. Internal topics come from the plan through `millrace.kafka`; the user's own topics are theirs, and are
created only where that is wanted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient

from millrace.errors import LocalHostError, MissingSourceTopicError
from millrace.kafka.admin import TopicToCreate, create_topics, topic_partitions
from millrace.plan.model import TopologyPlan, external_source_topics, repartition_topics

PLAN_TIMEOUT_S = 120.0
DEFAULT_PARTITIONS = 4


def command(*arguments: str) -> list[str]:
    """Return the command line that runs `millrace` with this process's interpreter."""
    return [sys.executable, "-m", "millrace.cli", *arguments]


def ask_for_plan(manifest: Path) -> TopologyPlan:
    """Have the program of a manifest say what it needs.

    Raises:
        LocalHostError: It cannot; the message is that of `millrace plan`.
    """
    try:
        result = subprocess.run(  # noqa: S603 (the arguments are ours)
            command("plan", "--file", str(manifest), "--json"),
            capture_output=True,
            text=True,
            timeout=PLAN_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise LocalHostError(f"The program did not return its topology within {PLAN_TIMEOUT_S:.0f} s") from None
    if result.returncode:
        told = result.stderr.strip().removeprefix("Error: ") or f"exit code {result.returncode}"
        raise LocalHostError(f"The program cannot say what it needs: {told}")
    _, brace, rest = result.stdout.partition("{")
    return TopologyPlan.from_json(brace + rest)


def outputs_of(plan: TopologyPlan) -> frozenset[str]:
    """Return the user's topics that the application writes, where they are known in advance."""
    written = {name for item in plan.subtopologies for name in item.sink_topics} - repartition_topics(plan).keys()
    return frozenset(written if plan.dead_letter_topic is None else written | {plan.dead_letter_topic})


def provide_topics(
    admin: AdminClient,
    plan: TopologyPlan,
    *,
    wanted: Mapping[str, int | None],
    create_missing: bool,
    report: Callable[[str], None],
) -> None:
    """Create the user's topics that are missing and may be created.

    Args:
        admin: The cluster.
        plan: What the application reads and writes.
        wanted: Topics to be there, with their partition counts (None for the default).
        create_missing: Whether all others that the plan names may be created as well.
        report: Gets a line for each topic created.

    Raises:
        MissingSourceTopicError: Input topics are missing and may not be created; names them.
        StreamsError: The brokers refused to create a topic.
    """
    inputs, outputs = external_source_topics(plan), outputs_of(plan)
    existing = topic_partitions(admin, {*inputs, *outputs, *wanted})
    partitions = max((existing[name] for name in inputs if name in existing), default=DEFAULT_PARTITIONS)
    missing = {name: count or partitions for name, count in wanted.items() if name not in existing}
    others = [name for name in (*sorted(inputs), *sorted(outputs - inputs)) if name not in {*existing, *wanted}]
    if create_missing:
        missing |= dict.fromkeys(others, partitions)
    else:
        _demand(others, inputs, plan.dead_letter_topic)
    if missing:
        create_topics(admin, {name: TopicToCreate(count) for name, count in missing.items()})
    for name, count in missing.items():
        report(f"Created topic {name}, partitions: {count}")


def _demand(missing: Sequence[str], inputs: Collection[str], dead_letters: str | None) -> None:
    if not missing:
        return
    kinds = {
        name: "input" if name in inputs else "dead letters" if name == dead_letters else "output" for name in missing
    }
    named = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    options = " ".join(f"--topic {name}:{DEFAULT_PARTITIONS}" for name in missing)
    raise MissingSourceTopicError(f"Topics of the application do not exist: {named}. Create them, or add `{options}`")
