"""`millrace dev up`, `down` and `status`: a local host in the foreground with a live table, or in the background.

A host in the background is the same command in another process; `down` tells it to stop (SIGTERM) and waits. So exactly one
process owns everything, and when it ends, for whatever reason, Kafka and the replicas end with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from millrace.deadline import Deadline
from millrace.dev._process import is_running
from millrace.dev.local_directory import HostRecord, LocalDirectory, ReplicaView
from millrace.dev.local_host import STOP_TIMEOUT_S, HostOptions, LocalHost, command
from millrace.dev.source_watch import SourceWatch
from millrace.errors import LocalHostError
from millrace.manifest import load

DETACH_TIMEOUT_S = 300.0
"""The first start downloads Kafka."""
_REFRESH_S = 0.5
_POLL_S = 0.1
_KAFKA_STOP_S = 20.0
_COLOURS = {"running": "green", "failed": "bold red", "waiting": "yellow", "error": "bold red"}


class _StopRequested(BaseException):
    """SIGINT or SIGTERM arrived. Not an Exception, so that no handler mistakes it for a failure."""


def supervise(options: HostOptions, console: Console | None = None) -> None:
    """Run a manifest in the foreground until SIGINT or SIGTERM; call it in the main thread.

    Raises:
        StreamsError: A step failed, or no replica can run.
    """
    console = console or Console(highlight=False)
    with _stop_signals():
        host = LocalHost(options, report=lambda line: console.print(line, markup=False, soft_wrap=True))
        with host:
            try:
                host.ask_for_plan()
                host.check_plan()
                host.start_kafka()
                host.provide_topics()
                host.start_replicas()
                watch = None
                if options.reload:
                    watch = SourceWatch([options.manifest.absolute().parent, Path.cwd()], [options.manifest])
                _watch(host, console, watch)
            except _StopRequested:
                for number in (signal.SIGINT, signal.SIGTERM):  # a second signal kills
                    signal.signal(number, lambda *_: host.kill())


def detached(options: HostOptions, *, report: Callable[[str], None]) -> None:
    """Run a manifest in the background and return once its replicas have been started.

    Raises:
        LocalHostError: It could not be started; the message is the host's.
    """
    app = load(options.manifest)
    directory = LocalDirectory.of(app.metadata.name, options.directory)
    if (running := directory.running_host()) is not None:
        raise LocalHostError(
            f"{app.metadata.name} is already running (pid {running.pid}): stop it with `millrace dev down`"
        )
    directory.create()
    with directory.host_log.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 (the arguments are ours)
            command("dev", "up", *options.arguments()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    record = _wait_until_serving(process, directory)
    report(f"{app.metadata.name} is running in the background (pid {process.pid}), Kafka at {record.bootstrap_servers}")


def stop(manifest: Path, directory: Path | None, *, report: Callable[[str], None]) -> None:
    """Stop the host of a manifest and wait until it has ended; its data is kept.

    Raises:
        LocalHostError: It does not stop.
    """
    app = load(manifest)
    place = LocalDirectory.of(app.metadata.name, directory)
    record = place.running_host()
    if record is None:
        report(f"{app.metadata.name} is not running")
        return
    os.kill(record.pid, signal.SIGTERM)
    deadline = Deadline(STOP_TIMEOUT_S + _KAFKA_STOP_S)
    while place.running_host() is not None or is_running(record.pid, ""):
        if deadline.passed:
            raise LocalHostError(
                f"The host of {app.metadata.name} (pid {record.pid}) does not stop; see {place.host_log}"
            )
        time.sleep(_POLL_S)
    report(f"{app.metadata.name} has stopped; its data is kept in {place.root}")


def show(manifest: Path, directory: Path | None, *, as_json: bool) -> bool:
    """Print the state of a manifest's replicas, and return whether they are running."""
    app = load(manifest)
    place = LocalDirectory.of(app.metadata.name, directory)
    record = place.running_host()
    if as_json:
        replicas = [asdict(view) for view in record.replicas] if record else []
        data = {"name": app.metadata.name, "running": record is not None, "directory": str(place.root)}
        if record:
            data |= {"pid": record.pid, "bootstrapServers": record.bootstrap_servers}
        sys.stdout.write(json.dumps({**data, "replicas": replicas}, indent=2) + "\n")
    elif record:
        console = Console(highlight=False)
        console.print(f"{app.metadata.name} (pid {record.pid}), Kafka at {record.bootstrap_servers}", markup=False)
        console.print(table(record.replicas))
    else:
        sys.stdout.write(f"{app.metadata.name} is not running\n")
    return record is not None


def table(views: Sequence[ReplicaView]) -> Table:
    """Return the replicas as a table."""
    result = Table(expand=False)
    for name in ("replica", "pid", "state"):
        result.add_column(name)
    for name in ("tasks", "lag", "records/s", "dropped", "restarts"):
        result.add_column(name, justify="right")
    result.add_column("", overflow="fold")
    for view in views:
        colour = _COLOURS.get(view.state.lower(), "cyan")
        result.add_row(
            view.name,
            _number(view.pid, plain=True),
            f"[{colour}]{view.state}[/]",
            _number(view.tasks),
            _number(view.lag),
            _number(view.records_per_s),
            _number(view.dropped),
            str(view.restarts),
            escape(view.note),  # it may quote an error's message
        )
    return result


def _watch(host: LocalHost, console: Console, sources: SourceWatch | None) -> NoReturn:
    show_views, here = _live_table if console.is_terminal else _lines, Path.cwd()  # which may be deleted, too
    with show_views(console) as update:
        while True:
            host.poll()
            update(host.publish())
            if sources and (changes := sources.changes()):
                console.print(
                    f"Changed: {', '.join(_short(path, here) for path in changes)}", markup=False, soft_wrap=True
                )
                host.reload()
            time.sleep(_REFRESH_S)


def _short(path: Path, here: Path) -> str:
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@contextmanager
def _live_table(console: Console) -> Iterator[Callable[[Sequence[ReplicaView]], None]]:
    with Live(console=console, auto_refresh=False) as live:
        yield lambda views: live.update(table(views), refresh=True)


@contextmanager
def _lines(console: Console) -> Iterator[Callable[[Sequence[ReplicaView]], None]]:
    """Print a line when something other than numbers of records has changed."""
    before: dict[str, object] = {}

    def update(views: Sequence[ReplicaView]) -> None:
        for view in views:
            shape = (view.pid, view.state, view.tasks, view.restarts, bool(view.dropped))
            if before.get(view.name) != shape:
                before[view.name] = shape
                tasks = "" if view.tasks is None else f", tasks: {view.tasks}"
                note = f" ({view.note})" if view.note else ""
                console.print(
                    f"{view.name}: {view.state}, pid {view.pid or '-'}{tasks}, restarts: {view.restarts}{note}",
                    markup=False,
                    soft_wrap=True,
                )

    yield update


@contextmanager
def _stop_signals() -> Iterator[None]:
    def request(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _StopRequested

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, request) for number in numbers}
    try:
        yield
    except _StopRequested:
        pass
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait_until_serving(process: subprocess.Popen[bytes], directory: LocalDirectory) -> HostRecord:
    deadline = Deadline(DETACH_TIMEOUT_S)
    while True:
        record = directory.running_host()
        if record and record.pid == process.pid and record.serving:
            return record
        if process.poll() is not None:
            lines = directory.host_log.read_text(errors="replace").splitlines()
            told = [line for line in lines if line.startswith("Error:")] or lines[-1:] or ["it said nothing"]
            raise LocalHostError(f"It did not start: {told[-1].removeprefix('Error: ')} (see {directory.host_log})")
        if deadline.passed:
            process.terminate()
            raise LocalHostError(f"It did not start within {DETACH_TIMEOUT_S:.0f} s; see {directory.host_log}")
        time.sleep(_POLL_S)


def _number(value: float | None, *, plain: bool = False) -> str:
    if value is None:
        return "-"
    return str(value) if plain else f"{value:,.0f}"
