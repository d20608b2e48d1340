"""`millrace dev topics`, `produce` and `consume`: show an application's topics, and write to and read from them."""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.application import application, stdout_to_stderr
from millrace.cli.dev_options import MANIFEST, BootstrapOption, DirectoryOption, ManifestOption, running_brokers

if TYPE_CHECKING:
    from millrace.dev.topic_list import TopicView
    from millrace.dev.topic_serdes import TopicSerdes
    from millrace.serdes.base import AnySerde

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's full name.", show_default=False)]
KeySerdeOption = Annotated[
    str | None,
    typer.Option(
        "--key-serde",
        metavar="SERDE",
        help="A serde's name (string, long, json, bytes, …) or import path; by default the topology's.",
        show_default=False,
    ),
]
ValueSerdeOption = Annotated[
    str | None, typer.Option("--value-serde", metavar="SERDE", help="The same for values.", show_default=False)
]


def topics(
    file: ManifestOption = MANIFEST,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the topics that an application reads, writes and owns, with their records and the lag of its group.

    `records` counts from the first retained offset to the end, so it includes compacted records and the markers of transactions.
    A topic that does not exist (yet) has dashes.

    Example: `millrace dev topics -f streamsapp.yaml`
    """
    servers = running_brokers(file, directory, bootstrap)
    from millrace.dev.local_host import ask_for_plan
    from millrace.dev.topic_list import topic_views

    views = topic_views(servers, ask_for_plan(file))
    if as_json:
        print(json.dumps([asdict(view) for view in views], indent=2))
    else:
        _print_table(views)


def _print_table(views: tuple[TopicView, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(expand=False)
    table.add_column("topic", overflow="fold")
    table.add_column("is")
    for name in ("partitions", "records", "lag"):
        table.add_column(name, justify="right")
    for view in views:
        numbers = ("-" if number is None else f"{number:,}" for number in (view.partitions, view.records, view.lag))
        table.add_row(view.name, ", ".join(view.kinds), *numbers)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 240
    console.print(table)


def produce(
    topic: TopicArgument,
    records: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECORD]…", help="Records as JSON; by default lines of standard input."),
    ] = None,
    file: ManifestOption = MANIFEST,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    key_serde: KeySerdeOption = None,
    value_serde: ValueSerdeOption = None,
) -> None:
    """Write records to a topic, as the topology reads them.

    A record is a JSON object: `key`, `value`, `headers` (an object, or a list of pairs), `timestamp` (ms since the epoch)
    and `partition`; all may be left out. Keys and values are written with the serdes that the topology declares for the
    topic, and `{"$bytes": "<base64>"}` stands for these bytes, whatever the serde. The output of `consume` can be written
    again.

    For example:

    - `millrace dev produce lines '{"value": "to be or not to be"}' '{"key": "a", "value": "b"}'`
    - `millrace dev produce orders < orders.jsonl`
    - `millrace dev produce numbers --bootstrap 127.0.0.1:9092 --key-serde string --value-serde long '{"key": "a", "value": 1}'`
    """
    servers = running_brokers(file, directory, bootstrap)
    from millrace.dev.topic_records import write

    serdes = _serdes(topic, file, servers, bootstrap, key_serde, value_serde)
    count = write(servers, topic, records or _input(), serdes)
    print(f"{count} {'record' if count == 1 else 'records'} written to {topic}")


def _input() -> Iterable[str]:
    """Return the lines of standard input; none if it is closed."""
    if not isinstance(sys.stdin, io.TextIOWrapper):
        return sys.stdin or ()
    if sys.stdin.isatty():
        print('Type a record per line, such as {"value": "a"}. Ctrl-D ends.', file=sys.stderr)
    sys.stdin.reconfigure(
        encoding="utf-8", errors="surrogateescape"
    )  # other bytes are reported with the record's number
    return sys.stdin


def consume(
    topic: TopicArgument,
    file: ManifestOption = MANIFEST,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="With --follow, start with the records that are already there.")
    ] = False,
    maximum: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N records.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Print new records as they arrive, until Ctrl-C.")] = False,
    key_serde: KeySerdeOption = None,
    value_serde: ValueSerdeOption = None,
) -> None:
    """Print a topic's committed records, one line of JSON each.

    Without `--follow`, print the existing records and exit. Keys and values are read with the serdes that the topology
    declares for the topic, internal topics included. Bytes that they cannot read are shown as they are, as text or as
    `{"$bytes": "<base64>"}`, next to the error (`keyError`, `valueError`).

    For example:

    - `millrace dev consume word-counts`
    - `millrace dev consume word-counts --follow`
    - `millrace dev consume wordcount-v1-counts-changelog --max 10`
    """
    servers = running_brokers(file, directory, bootstrap)
    from millrace.dev.topic_records import as_json, read

    serdes = _serdes(topic, file, servers, bootstrap, key_serde, value_serde)
    messages = read(servers, topic, follow=follow, from_beginning=from_beginning or not follow)
    for message in itertools.islice(messages, maximum):
        print(as_json(message, serdes), flush=follow)


def _serdes(
    topic: str, file: Path, servers: str, bootstrap: str | None, key_serde: str | None, value_serde: str | None
) -> TopicSerdes:
    """Return the given serdes, or else the serdes that the topology declares.

    If brokers are given, no manifest is needed.
    """
    from millrace.dev.topic_serdes import TopicSerdes, declared_serdes

    declared = TopicSerdes()
    known = key_serde is not None and value_serde is not None
    if not known and not (bootstrap is not None and file == MANIFEST and not file.exists()):
        with stdout_to_stderr():
            app = application(None, file, bootstrap=servers)
            declared = declared_serdes(app.topology().build(app.config), app.config, topic)
    return TopicSerdes(
        _given("--key-serde", key_serde) or declared.key, _given("--value-serde", value_serde) or declared.value
    )


def _given(option: str, name: str | None) -> AnySerde | None:
    from millrace.serdes.resolve import resolve

    return None if name is None else resolve(name, key=option)
