"""`millrace run`: runs one instance of an application in this process, until a signal stops it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.application import (
    ApplicationIdOption,
    EntrypointArgument,
    ManifestOption,
    SettingOption,
    application,
)
from millrace.cli.logs import LogFormat, LogLevel, configure

_log = logging.getLogger(__name__)


def run(
    context: typer.Context,
    entrypoint: EntrypointArgument = None,
    file: ManifestOption = None,
    replica: Annotated[
        int | None,
        typer.Option("--replica", min=0, help="Which replica of the manifest this is, from 0.", show_default=False),
    ] = None,
    application_id: ApplicationIdOption = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", metavar="HOST:PORT,…", help="Addresses of brokers.", show_default=False)
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Where state stores are kept.", show_default=False)
    ] = None,
    secrets_dir: Annotated[
        Path | None,
        typer.Option(
            "--secrets-dir", metavar="DIR", help="Where the manifest's secrets are mounted.", show_default=False
        ),
    ] = None,
    config: SettingOption = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="Text or JSON; by default as in the manifest.", show_default=False),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level",
            case_sensitive=False,
            help="The lowest level that is logged; by default as in the manifest, or INFO.",
            show_default=False,
        ),
    ] = None,
    status_file: Annotated[
        Path | None,
        typer.Option(
            "--status-file", help="Write the instance's status to this file, every second.", show_default=False
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Serve /livez, /startedz, /readyz and /status here.", show_default=False
        ),
    ] = None,
    drain_file: Annotated[
        Path | None,
        typer.Option(
            "--drain-file",
            envvar="MILLRACE_DRAIN_FILE",
            help="Give up all tasks, but keep running, once this file is not empty.",
            show_default=False,
        ),
    ] = None,
    last_message_file: Annotated[
        Path | None,
        typer.Option(
            "--last-message-file",
            envvar="MILLRACE_LAST_MESSAGE_FILE",
            help="Write the ids of the instance's group members to this file, and why it failed.",
            show_default=False,
        ),
    ] = None,
    node_labels_dir: Annotated[
        Path | None,
        typer.Option(
            "--node-labels-dir",
            metavar="DIR",
            envvar="MILLRACE_NODE_LABELS_DIR",
            help="Where to find the node's labels for the manifest's racks.",
            show_default=False,
        ),
    ] = None,
    leave_on_stop: Annotated[
        bool | None,
        typer.Option(
            "--leave-on-stop",
            envvar="MILLRACE_LEAVE_ON_STOP",
            help="Leave the group when stopped, even as a static member, so that others take over at once.",
            show_default=False,
        ),
    ] = None,
    drain_endpoint: Annotated[
        bool, typer.Option("--drain-endpoint", hidden=True, help="Ignored: older operators use it.")
    ] = False,
    stop_with_parent: Annotated[
        bool, typer.Option("--stop-with-parent", hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Run one instance of an application until SIGTERM or Ctrl-C, then commit and stop.

    For example:

    - `millrace run wordcount.py --application-id wordcount --bootstrap 127.0.0.1:9092`
    - `millrace run -f streamsapp.yaml --replica 0 -c num.stream.threads=2`
    """
    options = {
        "application.id": application_id,
        "state.dir": None if state_dir is None else str(state_dir),
        "health.listener": http,
    }
    verbose = bool((context.parent or context).params.get("verbose"))
    configure(verbose=verbose, quiet=False, level=log_level, form=log_format or LogFormat.TEXT)
    if drain_endpoint:
        _log.warning(
            "--drain-endpoint is ignored: instances drain with --drain-file. Upgrade the operator, which uses the old option."
        )
    app = application(
        entrypoint,
        file,
        settings=config or (),
        options=options,
        replica=replica,
        bootstrap=bootstrap,
        secrets_dir=secrets_dir,
        node_labels_dir=node_labels_dir,
    )
    configure(verbose=verbose, quiet=False, level=log_level or app.log_level, form=log_format or app.log_format)
    app.check_settings()
    from millrace.cli.instance import run_until_stopped

    code = run_until_stopped(
        app.topology(),
        app.config,
        status_file=status_file,
        drain_file=drain_file,
        last_message_file=last_message_file,
        leave_group=leave_on_stop,
        stop_with_parent=stop_with_parent,
        verbose=verbose,
    )
    raise typer.Exit(code)
