"""`millrace dev`: Kafka and a host for manifests on the developer's machine."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, Literal

import typer

from millrace.errors import BrokerStartError, ConfigError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Develop without a cluster: run Kafka and applications on this machine.",
)

ManifestArgument = Annotated[
    Path, typer.Option("--file", "-f", metavar="FILE", help="The StreamsApp manifest.", show_default=False)
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="Where to keep data; by default in the user's data directory.", show_default=False
    ),
]


@app.command()
def kafka(
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=9, help="How many brokers.")] = 1,
    port: Annotated[
        int, typer.Option("--port", help="The port of the first broker, followed by the others; 0 chooses free ports.")
    ] = 9092,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where to keep data; by default it is not kept.", show_default=False),
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", help="The log level of the brokers.")] = "WARN",
) -> None:
    """Run Apache Kafka on 127.0.0.1 until Ctrl-C.

    The first start downloads Kafka's jars from Maven Central into the cache directory. For example:

    - `millrace dev kafka`
    - `millrace dev kafka --brokers 3 --port 19092 --dir ./kafka-data`
    """
    from millrace.dev.kafka import EmbeddedKafka

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
    file: ManifestArgument,
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
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the replicas are running; stop them with `dev down`.")
    ] = False,
) -> None:
    """Run a manifest on this machine: Kafka, topics, and replicas as processes that are restarted when they die.

    The manifest's brokers are not used: an embedded Kafka replaces them, unless `--bootstrap` names others. Ctrl-C or
    `millrace dev down` stops everything and keeps all data, and the next `dev up` resumes from it. For example:

    - `millrace dev up -f examples/wordcount/streamsapp.yaml`
    - `millrace dev up -f streamsapp.yaml --topic orders:4 --detach`
    """
    from millrace.dev.local_host import HostOptions
    from millrace.dev.local_supervisor import detached, supervise

    options = HostOptions(
        manifest=file.absolute(),
        directory=directory,
        bootstrap=bootstrap,
        topics=dict(map(_topic, topic or ())),
        create_topics=bootstrap is None if create_topics is None else create_topics,
    )
    if detach:
        detached(options, report=_say)
    else:
        supervise(options)


@app.command()
def down(file: ManifestArgument, directory: DirectoryOption = None) -> None:
    """Stop what `dev up` is running for a manifest, and keep its data.

    Example: `millrace dev down -f streamsapp.yaml`
    """
    from millrace.dev.local_supervisor import stop

    stop(file, directory, report=_say)


@app.command()
def status(
    file: ManifestArgument,
    directory: DirectoryOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the replicas that `dev up` is running for a manifest.

    The exit code is 1 if it is not running. Example: `millrace dev status -f streamsapp.yaml`
    """
    from millrace.dev.local_supervisor import show

    if not show(file, directory, as_json=as_json):
        raise typer.Exit(1)


def _topic(text: str) -> tuple[str, int | None]:
    name, colon, count = text.rpartition(":")
    if not colon:
        return text, None
    if not name or not count.isdigit() or int(count) < 1:
        raise ConfigError(f"`{text}` is not a topic: write NAME or NAME:PARTITIONS, for example orders:4")
    return name, int(count)


def _say(text: str) -> None:
    print(text, flush=True)
