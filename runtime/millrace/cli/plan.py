"""`millrace plan`: what a topology needs of Kafka, for people and (as JSON) for the operator and the local host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.application import (
    ApplicationIdOption,
    EntrypointArgument,
    ManifestOption,
    SettingOption,
    application,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from millrace.topology.plan import PlannedSubtopology, TopologyPlan


def plan(
    entrypoint: EntrypointArgument = None,
    file: ManifestOption = None,
    application_id: ApplicationIdOption = None,
    config: SettingOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON document.")] = False,
) -> None:
    """Show what a topology needs: sub-topologies, stores, internal topics, and the hash of it all.

    No broker is asked. For example:

    - `millrace plan -f streamsapp.yaml`
    - `millrace plan wordcount.py --application-id wordcount --json`
    """
    app = application(entrypoint, file, settings=config or (), options={"application.id": application_id})
    result = app.topology().build(app.config()).plan()
    if as_json:
        print(result.to_json(indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 240
    _show(result, console)


def _show(plan: TopologyPlan, console: Console) -> None:
    from rich.tree import Tree

    root = Tree(f"[bold]{plan.application_id}[/]  [dim]{plan.hash}[/]")
    for subtopology in plan.subtopologies:
        _grow(root.add(f"[bold]sub-topology {subtopology.id}[/]"), subtopology)
    for store in plan.global_stores:
        root.add(f"global store [cyan]{store.name}[/] ({store.kind}) of topic [green]{store.topic}[/]")
    console.print(root)


def _grow(branch: Tree, subtopology: PlannedSubtopology) -> None:
    internal = {topic.name for topic in subtopology.repartition_topics}
    for name in subtopology.source_topics:
        branch.add(f"reads [green]{name}[/]{' (repartition topic)' if name in internal else ''}")
    for pattern in subtopology.source_patterns:
        branch.add(f"reads all topics that match [green]{pattern}[/]")
    for store in subtopology.stores:
        changelog = f", changelog [green]{store.changelog_topic}[/]" if store.changelog_topic else ", not logged"
        where = "RocksDB" if store.persistent else "in memory"
        branch.add(f"keeps [cyan]{store.name}[/] ({store.kind}, {where}{changelog})")
    for name in subtopology.sink_topics:
        branch.add(f"writes [green]{name}[/]")
