"""`millrace dev logs`: the logs of a manifest's replicas."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.dev_options import MANIFEST, DirectoryOption
from millrace.errors import ConfigError

if TYPE_CHECKING:
    from millrace.dev.local_directory import LocalDirectory

_POLL_S = 0.2


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
    _print_logs(place, wanted, tail=tail, follow=follow)


class _Log:
    """A log file that is read in whole lines."""

    def __init__(self, path: Path, *, at_start: bool) -> None:
        self._path = path
        self._rest = b""
        self._position = 0
        self.at_start = at_start

    def lines(self) -> list[str]:
        """Return the lines that have been completed since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            *lines, self._rest = (self._rest + file.read()).split(b"\n")
            self._position = file.tell()
        return [line.decode(errors="replace") for line in lines]


def _print_logs(directory: LocalDirectory, replicas: Collection[str], *, tail: int, follow: bool) -> None:
    """Print the ends of logs, each line under its replica's name if there are several; follow them until the host ends.

    If no replicas are named, all are printed, even replicas that start later.
    """
    logs: dict[str, _Log] = {}
    first = True
    while True:
        running = follow and directory.running_host() is not None  # before reading: what is logged last is printed too
        found = {name: path for name, path in directory.logs().items() if not replicas or name in replicas}
        for name, path in found.items():
            log = logs.setdefault(name, _Log(path, at_start=first))
            lines = log.lines()
            if log.at_start:
                lines, log.at_start = list(deque(lines, tail)), False
            for line in lines:
                print(f"{name} | {line}" if len(found) > 1 else line, flush=follow)
        if not running:
            return
        first = False
        time.sleep(_POLL_S)
