"""`millrace dev`: Kafka and a host for manifests on the developer's machine."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, Final, Literal

import typer

from millrace.cli import dev_logs, dev_reset, dev_topics
from millrace.cli.dev_options import MANIFEST, DirectoryOption, ManifestOption
from millrace.errors import BrokerStartError, ConfigError

LAST_PORT: Final = 65_535

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Develop without a cluster: run Kafka and applications on this machine.",
)


class BrokerLogLevel(StrEnum):
    """The lowest level that brokers log."""

    ERROR = "ERROR"
    WARN = "WARN"
    INFO = "INFO"
    DEBUG = "DEBUG"


class TopologyPolicy(StrEnum):
    """What to do if the program does not fit the existing state."""

    ENFORCE = "Enforce"
    WARN = "Warn"


@app.command()
def kafka(
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=9, help="How many brokers.")] = 1,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=LAST_PORT,
            help="The port of the first broker, followed by the others; 0 chooses free ports.",
        ),
    ] = 9092,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where to keep data; by default it is not kept.", show_default=False),
    ] = None,
    log_level: Annotated[
        BrokerLogLevel, typer.Option("--log-level", case_sensitive=False, help="The log level of the brokers.")
    ] = BrokerLogLevel.WARN,
) -> None:
    """Run Apache Kafka on 127.0.0.1 until Ctrl-C.

    The first start downloads Kafka's jars from Maven Central into the cache directory. For example:

    - `millrace dev kafka`
    - `millrace dev kafka --brokers 3 --port 19092 --dir ./kafka-data`
    """
    from millrace.dev.kafka import EmbeddedKafka

    if port + brokers - 1 > LAST_PORT:
        raise ConfigError(f"{brokers} brokers from port {port} would need ports above {LAST_PORT}: choose a lower one")
    signals: SimpleQueue[int] = SimpleQueue()  # an Event's lock may be held by the thread that its setter interrupts
    previous = {
        number: signal.signal(number, lambda got, _: signals.put(got)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    ports: Literal["free"] | Sequence[int] = range(port, port + brokers) if port else "free"
    try:
        with EmbeddedKafka(brokers, directory=directory, ports=ports, log_level=log_level) as running:
            _say(f"Kafka serves at {running.bootstrap_servers}")
            while True:
                with contextlib.suppress(Empty):
                    signals.get(timeout=0.5)
                    break
                if len(running.pids) < brokers:
                    message = f"A broker has ended unexpectedly. {running.log_tails()}"
                    raise BrokerStartError(message)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@app.command()
def up(
    file: ManifestOption = MANIFEST,
    directory: DirectoryOption = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            metavar="HOST:PORT,…",
            help="Use these brokers instead of an embedded Kafka.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME[:PARTITIONS]", help="Create this topic if it is missing; may be repeated."
        ),
    ] = None,
    create_topics: Annotated[
        bool | None,
        typer.Option(
            "--create-topics/--no-create-topics",
            help="Create all missing input and output topics; by default only in the embedded Kafka.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=LAST_PORT,
            help="The embedded Kafka's port, kept for the next `dev up`; by default chosen the first time.",
            show_default=False,
        ),
    ] = None,
    topology_policy: Annotated[
        TopologyPolicy | None,
        typer.Option(
            "--topology-policy",
            case_sensitive=False,
            help="Refuse a program that does not fit the existing state, or only warn; by default as in the manifest.",
            show_default=False,
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="Restart the replicas when a Python file next to the manifest, or the manifest, changes."
        ),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the replicas are running; stop them with `dev down`.")
    ] = False,
) -> None:
    """Run a manifest on this machine: Kafka, topics, and replicas as processes that are restarted when they die.

    The manifest's brokers are not used: an embedded Kafka replaces them, unless `--bootstrap` names others. Ctrl-C or
    `millrace dev down` stops everything and keeps all data, and the next `dev up` resumes from it, on the same port. If the
    program has changed and no longer fits the state, `dev up` says why and stops. For example:

    - `millrace dev up -f examples/wordcount/streamsapp.yaml`
    - `millrace dev up --reload`
    - `millrace dev up -f streamsapp.yaml --topic orders:4 --port 9092 --detach`
    """
    from millrace.dev.local_host import HostOptions
    from millrace.dev.local_supervisor import detached, supervise

    if port is not None and bootstrap is not None:
        raise ConfigError("--port is for the embedded Kafka, which --bootstrap replaces: give only one of them")
    options = HostOptions(
        manifest=file.absolute(),
        directory=directory,
        bootstrap=bootstrap,
        topics=dict(map(_topic, topic or ())),
        create_topics=bootstrap is None if create_topics is None else create_topics,
        port=port,
        topology_policy=topology_policy,
        reload=reload,
    )
    if detach:
        detached(options, report=_say)
    else:
        supervise(options)


@app.command()
def down(file: ManifestOption = MANIFEST, directory: DirectoryOption = None) -> None:
    """Stop what `dev up` is running for a manifest, and keep its data.

    Example: `millrace dev down -f streamsapp.yaml`
    """
    from millrace.dev.local_supervisor import stop

    stop(file, directory, report=_say)


@app.command()
def status(
    file: ManifestOption = MANIFEST,
    directory: DirectoryOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the replicas that `dev up` is running for a manifest.

    The exit code is 1 if it is not running. Example: `millrace dev status -f streamsapp.yaml`
    """
    from millrace.dev.local_supervisor import show

    if not show(file, directory, as_json=as_json):
        raise typer.Exit(1)


app.command()(dev_logs.logs)
app.command()(dev_topics.topics)
app.command()(dev_topics.produce)
app.command()(dev_topics.consume)
app.command()(dev_reset.reset)


def _topic(text: str) -> tuple[str, int | None]:
    name, colon, count = text.rpartition(":")
    if not colon:
        return text, None
    if not name or not count.isdigit() or int(count) < 1:
        raise ConfigError(f"`{text}` is not a topic: write NAME or NAME:PARTITIONS, for example orders:4")
    return name, int(count)


def _say(text: str) -> None:
    print(text, flush=True)
