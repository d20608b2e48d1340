"""The command line of `millrace top`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from millrace.errors import ConfigError, StreamsError
from millrace_operator.top.snapshot import Snapshot

__all__ = ["top"]

_MANIFEST: Final = Path("streamsapp.yaml")


def top(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A StreamsApp in Kubernetes. Default: what `millrace dev up` is running.", show_default=False
        ),
    ] = None,
    file: Annotated[
        Path,
        typer.Option("--file", "-f", metavar="FILE", help="The manifest that `millrace dev up` is running."),
    ] = _MANIFEST,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="The folder that was given to `millrace dev up`.", show_default=False
        ),
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
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what all instances report as JSON, once.")] = False,  # noqa: FBT002
) -> None:
    """Watch an application: instances, threads, tasks, lag, rates, restoration, and what was dropped.

    Until Ctrl-C; once, after an interval, if the output is no terminal. In Kubernetes pods are asked through the API
    server, with your own permissions (`get` on `pods/proxy`).

    For example:

    - `millrace top`
    - `millrace top wordcount -n shop`
    - `millrace top wordcount --json | jq .totals`
    """
    look = _source(name, file, directory, namespace, context)
    if as_json:
        typer.echo(json.dumps(look().to_dict(), indent=2))
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from millrace_operator.top.view import TopView  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        view = TopView()
        view.draw(look())
        time.sleep(interval)  # rates take two looks
        console.print(view.draw(look()))
        return
    first = look()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        view = TopView(console.height)
        live.update(view.draw(first), refresh=True)
        while True:
            time.sleep(interval)
            try:
                live.update(view.draw(look()), refresh=True)
            except StreamsError as error:  # a moment without the API server or the local host
                live.update(Text(f"{error}\n\nTrying again. Ctrl-C ends.", style="yellow"), refresh=True)


def _source(
    name: str | None, file: Path, directory: Path | None, namespace: str | None, context: str | None
) -> Callable[[], Snapshot]:
    if name is None:
        if namespace is not None or context is not None:
            raise ConfigError("--namespace and --context are for Kubernetes: give the StreamsApp's name, too")
        from millrace_operator.top.sources import local_source  # noqa: PLC0415

        return local_source(file, directory)
    try:
        from millrace_operator.top.sources import cluster_source  # noqa: PLC0415

        return cluster_source(namespace, name, context)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`millrace top NAME` needs the package {error.name}: install it with `pip install 'millrace-streams[operator]'`"
        ) from None
