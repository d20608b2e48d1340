"""`millrace dev logs`: the logs of a manifest's replicas."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.dev_options import MANIFEST, DirectoryOption
from millrace.errors import ConfigError


def logs(
    replicas: Annotated[
        list[str] | None, typer.Argument(metavar="[REPLICA]…", help="Replicas, by name or number; by default all.")
    ] = None,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The StreamsApp manifest.")] = MANIFEST,
    directory: DirectoryOption = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Also print new lines, until `dev up` ends or Ctrl-C."),
    ] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, metavar="N", help="How many lines per replica.")] = 100,
) -> None:
    """Print the ends of the replicas' logs.

    As in kubectl, `-f` is short for `--follow` here, not for `--file`. For example:

    - `millrace dev logs`
    - `millrace dev logs -f 0`
    - `millrace dev logs --file streamsapp.yaml --follow --tail 10`
    """
    from millrace.dev.local_directory import LocalDirectory
    from millrace.dev.local_logs import print_logs
    from millrace.manifest import load

    if (manifest := next((name for name in replicas or () if name.endswith((".yaml", ".yml"))), None)) is not None:
        raise ConfigError(f"In `dev logs`, -f is short for --follow: name the manifest with --file {manifest}")
    name = load(file).metadata.name
    place = LocalDirectory.of(name, directory)
    if not place.logs():
        print(f"{name} has no logs in {place.root}: start it with `millrace dev up`", file=sys.stderr)
        return
    wanted = {f"{name}-{replica}" if replica.isdigit() else replica for replica in replicas or ()}
    if unknown := sorted(wanted - place.logs().keys()):
        there = ", ".join(place.logs()) or "none"
        raise ConfigError(f"There is no log of {unknown[0]} in {place.root}, only of: {there}")
    print_logs(place, wanted, tail=tail, follow=follow, show=lambda line: print(line, flush=follow))
