"""`millrace plan`: what a topology needs from Kafka, for people and (as JSON) for the operator and the local host."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.application import (
    ApplicationIdOption,
    EntrypointArgument,
    ManifestOption,
    SettingOption,
    application,
    stdout_to_stderr,
)
from millrace.cli.errors import report
from millrace.errors import ConfigError, StreamsError

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.plan.diff import PlanDiff
    from millrace.plan.topology_plan import TopologyPlan
    from millrace.topology.physical_topology import GeneratedName

NEEDS_RESET = 3
"""Exit code of `--diff` if existing state does not fit the new plan."""


def plan(
    context: typer.Context,
    entrypoint: EntrypointArgument = None,
    file: ManifestOption = None,
    application_id: ApplicationIdOption = None,
    config: SettingOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    diff: Annotated[
        Path | None,
        typer.Option(
            "--diff", metavar="OLD.json", help="Compare with an older plan, written by `--json`.", show_default=False
        ),
    ] = None,
) -> None:
    """Show what a topology needs: sub-topologies, stores, internal topics, and a hash of all of it.

    With `--diff`, show the changes since an older plan instead, and whether existing state can be kept. The exit code is
    then 0 if it can, and 3 if the application needs a reset first (`millrace reset`).

    Either way, it then lists unnamed stores and repartition topics, each with the call that needs it and the option that
    names it. A generated name changes with the operators before it, and then the state is left behind.

    It needs no brokers or secrets. The settings are checked as far as possible without them. With `--json`, standard output
    contains only the document (on one line, unless it is a terminal). All that the program prints goes to standard error,
    and so do errors, with the kind of error on the last line: `Reason: UnsupportedFeature`. For example:

    - `millrace plan -f streamsapp.yaml`
    - `millrace plan wordcount.py --application-id wordcount --json`
    - `millrace plan -f streamsapp.yaml --diff running.json`
    """
    verbose = bool((context.parent or context).params.get("verbose"))
    try:
        with stdout_to_stderr():
            app = application(entrypoint, file, settings=config or (), options={"application.id": application_id})
            old = None if diff is None else _read(diff)
            app.check_settings()
            built = app.topology().build(app.config)
            result = built.plan()
    except StreamsError as error:
        raise typer.Exit(report(error, verbose=verbose, with_reason=as_json)) from None
    indent = 2 if sys.stdout.isatty() else None
    if old is None:
        if as_json:
            print(result.to_json(indent=indent))
        else:
            console = _console()
            _show(result, app.group_settings, console)
            _show_generated_names(built.generated_names, console)
        return
    from millrace.plan.diff import PlanVerdict, diff_plans

    difference = diff_plans(old, result)
    if as_json:
        names = [{"resource": name.resource, "name": name.name, **_advice(name)} for name in built.generated_names]
        content = json.loads(difference.to_json()) | {"generatedNames": names}
        print(json.dumps(content, indent=indent, ensure_ascii=False))
    else:
        console = _console()
        _show_diff(difference, console)
        _show_generated_names(built.generated_names, console)
    if difference.verdict is PlanVerdict.NEEDS_RESET:
        raise typer.Exit(NEEDS_RESET)


def _read(path: Path) -> TopologyPlan:
    from pydantic import ValidationError

    from millrace.plan.topology_plan import TopologyPlan

    try:
        plan = TopologyPlan.from_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read the old plan {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise ConfigError(
            f"{path} is not a topology plan: {where}: {first['msg']}. Write one with `millrace plan … --json > {path.name}`"
        ) from None
    if plan.version != 1:
        raise ConfigError(
            f"{path} is a plan of version {plan.version}, but this Millrace reads version 1: update Millrace"
        )
    return plan


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 240
    return console


def _show_diff(difference: PlanDiff, console: Console) -> None:
    for reason in difference.reasons:
        mark, style = ("✗", "red") if reason.needs_reset else ("✓", "green")
        console.print(f"{mark} {reason}", style=style, markup=False, soft_wrap=True)
    style = "bold red" if any(reason.needs_reset for reason in difference.reasons) else "bold green"
    said = {
        "Compatible": "the running state fits" if difference.reasons else "nothing has changed",
        "NeedsReset": "stop the application and run `millrace reset`, or give it another application.id",
    }
    console.print(f"{difference.verdict}: {said[difference.verdict]}", style=style, markup=False, soft_wrap=True)


def _advice(name: GeneratedName) -> dict[str, Any]:
    """Return where a name is generated, which option sets one, and whether that can keep the present name."""
    from millrace.plan.names import naming_of_store, naming_of_topic

    naming = naming_of_store(name.name, name.kind) if name.kind else naming_of_topic(name.name)
    place, here = name.call.place, f"{Path.cwd()}/"
    return {
        "call": name.call.function,
        "at": place.removeprefix(here),
        "option": naming.option,
        "keepsName": naming.keeps,
    }


def _show_generated_names(names: Sequence[GeneratedName], console: Console) -> None:
    if not names:
        return
    console.print(
        "These names contain an operator's number, and a change before that operator renames them. Name them, all in one "
        "change, since each name that is given renumbers those after it:",
        markup=False,
        soft_wrap=True,
    )
    for name in names:
        told = _advice(name)
        result = "keeps its name" if told["keepsName"] else "gives it another name: do it before there is state to keep"
        line = f"  {name.resource} {name.name} ({told['call']} at {told['at']}): {told['option']} {result}"
        console.print(line, markup=False, soft_wrap=True)


def _show(plan: TopologyPlan, group_settings: Mapping[str, str], console: Console) -> None:
    from rich.tree import Tree

    root = Tree(f"[bold]{plan.application_id}[/]  [dim]{plan.hash}[/]")
    for subtopology in plan.subtopologies:
        branch = root.add(f"[bold]sub-topology {subtopology.id}[/]")
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
    for shared in plan.global_stores:
        root.add(f"global store [cyan]{shared.name}[/] ({shared.kind}) of topic [green]{shared.topic}[/]")
    if plan.dead_letter_topic is not None:
        root.add(f"sends dead letters to [green]{plan.dead_letter_topic}[/]")
    for name, value in group_settings.items():
        root.add(f"sets [green]{name}={value}[/] for the group in the brokers")
    console.print(root)
