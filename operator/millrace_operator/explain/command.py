"""The command line of `millrace explain`; the kubernetes client is imported when it runs, so that `millrace --help` is fast."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from millrace.errors import ConfigError

__all__ = ["explain"]


def explain(
    name: Annotated[
        str | None,
        typer.Argument(help="The StreamsApp's name. Default: all StreamsApps in the namespace.", show_default=False),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="The namespace. Default: kubectl's current namespace.", show_default=False
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option("--context", help="The kubectl context. Default: the current context.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list with one entry per application.")] = False,  # noqa: FBT002
) -> None:
    """Why isn't my app processing? Find the causes on Kubernetes, and what to do about each.

    Reads the StreamsApp, its pods, volumes, Jobs and events with your own permissions. Changes nothing.

    For example:

    - `millrace explain wordcount -n shop`
    - `millrace explain --json`
    """
    try:
        from millrace_operator.cluster.kubectl import KubectlApi  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`millrace explain` needs the package {error.name}: install it with `pip install 'millrace-streams[operator]'`"
        ) from None
    from millrace_operator.explain.explanation import explain as explained  # noqa: PLC0415
    from millrace_operator.explain.loading import load_facts  # noqa: PLC0415

    api = KubectlApi(context)
    namespace = namespace or api.namespace
    names = api.streams_apps(namespace) if name is None else [name]
    explanations = [explained(load_facts(api, namespace, each)) for each in names]
    if as_json:
        typer.echo(json.dumps([explanation.to_dict() for explanation in explanations], indent=2))
        return
    from rich.console import Console  # noqa: PLC0415

    from millrace_operator.explain.explanation import rendered  # noqa: PLC0415

    console = Console(highlight=False)
    if not explanations:
        console.print(f"There are no StreamsApps in namespace {namespace}.")
    for number, explanation in enumerate(explanations):
        if number:
            console.print()
        console.print(rendered(explanation))
