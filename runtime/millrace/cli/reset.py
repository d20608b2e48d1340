"""`millrace reset`: makes an application start from scratch, like `kafka-streams-application-reset`.

Every action is shown before it is done. Files are deleted only in a directory that was named.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.application import (
    ApplicationIdOption,
    EntrypointArgument,
    ManifestOption,
    SettingOption,
    application,
    setting,
)
from millrace.errors import ConfigError

if TYPE_CHECKING:
    from millrace.config import StreamsConfig
    from millrace.instance.state_directory import StateDirectory
    from millrace.plan.model import TopologyPlan
    from millrace.plan.reset import OffsetTarget, ResetActions


def reset(
    entrypoint: EntrypointArgument = None,
    file: ManifestOption = None,
    application_id: ApplicationIdOption = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers",
            "--bootstrap",
            metavar="HOST:PORT,…",
            help="Addresses of brokers.",
            show_default=False,
        ),
    ] = None,
    config: SettingOption = None,
    input_topics: Annotated[
        list[str] | None,
        typer.Option(
            "--input-topics",
            metavar="TOPIC,…",
            help="Also reset the offsets of these topics; may be repeated.",
            show_default=False,
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Start at the first records (default).")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Start at what is written from now on.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="Start at this offset.", show_default=False)
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="Start at this time, such as 2026-01-31T12:00:00 (UTC).",
            show_default=False,
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="PT…", help="Start this long ago, such as P1DT12H.", show_default=False),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", metavar="N", help="Move the offsets by N records, back if negative.", show_default=False
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir", help="Also delete the application's local state in this directory.", show_default=False
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Remove members that were killed from the group instead of waiting for their timeout."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Throw away what an application has computed, so that it starts from scratch: internal topics, offsets, local state.

    The application must be stopped: a group with active members is refused. With a manifest or an entrypoint, the internal topics
    of its topology are deleted; without, all topics that are named like internal topics of this application. Output topics are
    never touched. Local state is kept unless `--state-dir` names it; delete it on every machine, or the application continues
    from it.

    Exit codes: 0 done (or nothing to do) · 1 failed, or refused because it is running · 2 wrong command line. For example:

    - `millrace reset -f streamsapp.yaml --dry-run`
    - `millrace reset --application-id wordcount --bootstrap-servers 127.0.0.1:9092 --input-topics lines --yes`
    - `millrace reset -f streamsapp.yaml --to-datetime 2026-01-31T12:00:00 --state-dir /var/lib/millrace`
    """
    target = offset_target(
        {
            "--to-earliest": to_earliest or None,
            "--to-latest": to_latest or None,
            "--to-offset": to_offset,
            "--to-datetime": to_datetime,
            "--by-duration": by_duration,
            "--shift-by": shift_by,
        }
    )
    inputs = [name.strip() for text in input_topics or () for name in text.split(",") if name.strip()]
    settings, plan = _subject(entrypoint, file, application_id, bootstrap, config or [])
    from millrace.kafka.resetter import Resetter

    with Resetter(settings) as resetter:
        actions = resetter.plan(plan, target=target, inputs=inputs, force=force)
        directory = None
        if state_dir is not None:
            from millrace.instance.state_directory import StateDirectory

            named = StateDirectory(settings.model_copy(update={"state_dir": str(state_dir)}))
            directory = named if named.path.is_dir() else None
        show_actions(actions, [directory] if directory else [])
        idle = not (actions.set_offsets or actions.delete_topics or actions.remove_members or directory)
        if dry_run or idle:
            print("Nothing to do" if idle else "Dry run: nothing was changed")
            return
        confirm(actions.application_id, yes=yes)
        if directory is not None:
            directory.lock()
        try:
            resetter.execute(actions)
            if directory is not None:
                directory.delete_all()
        finally:
            if directory is not None:
                directory.unlock()
    print(f"{actions.application_id} is reset")


def _subject(
    entrypoint: str | None, file: Path | None, application_id: str | None, bootstrap: str | None, config: list[str]
) -> tuple[StreamsConfig, TopologyPlan | None]:
    options: dict[str, object] = {"application.id": application_id, "bootstrap.servers": bootstrap}
    if entrypoint is not None or file is not None:
        app = application(entrypoint, file, settings=config, options=options, bootstrap=bootstrap)
        return app.config, app.topology().build(app.config).plan()
    from millrace.config import StreamsConfig

    given = dict(map(setting, config)) | {key: value for key, value in options.items() if value is not None}
    if "application.id" not in given:
        raise ConfigError("Say which application to reset: a manifest (-f FILE), or --application-id ID")
    return StreamsConfig.of(given), None


def offset_target(given: dict[str, Any]) -> OffsetTarget:
    """Return where to start, from the values of options by their names; None for one that is not given.

    Raises:
        ConfigError: A value is wrong, or there are several.
    """
    from millrace.plan.reset import OffsetTarget, Start

    chosen = {option: value for option, value in given.items() if value is not None}
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} contradict each other: give only one of them")
    for option, value in chosen.items():
        match option:
            case "--to-latest":
                return OffsetTarget(Start.LATEST)
            case "--to-offset":
                return OffsetTarget(Start.OFFSET, value)
            case "--shift-by":
                return OffsetTarget(Start.SHIFT, value)
            case "--to-datetime":
                return OffsetTarget(Start.TIMESTAMP_MS, _milliseconds(value))
            case "--by-duration":
                return OffsetTarget(Start.TIMESTAMP_MS, _milliseconds_before_now(value))
    return OffsetTarget()


def _milliseconds(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"`{text}` is not a time: write it like 2026-01-31T12:00:00, or with an offset, 2026-01-31T12:00:00+01:00"
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _milliseconds_before_now(duration: str) -> int:
    from millrace.instance.starting_offsets import parse_duration_ms

    try:
        length_ms = parse_duration_ms(duration)
    except ConfigError:
        raise ConfigError(
            f"`{duration}` is not a duration: write it in ISO 8601, for example PT12H or P1DT12H"
        ) from None
    return max(0, int(datetime.now(UTC).timestamp() * 1000) - length_ms)


def show_actions(actions: ResetActions, directories: Sequence[StateDirectory]) -> None:
    """Print what a reset does."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Reset of {actions.application_id}:", style="bold", markup=False)
    for member in actions.remove_members:
        console.print(f"  remove member {member}", style="red", markup=False)
    for partition, offset in sorted(actions.set_offsets.items()):
        console.print(f"  set offset of {partition} to {offset}", markup=False)
    for topic in actions.delete_topics:
        console.print(f"  delete topic {topic}", style="red", markup=False)
    for directory in directories:
        console.print(f"  delete state in {directory.path}", style="red", markup=False)
    for note in actions.notes:
        console.print(f"  {note}", style="yellow", markup=False)


def confirm(application_id: str, *, yes: bool) -> None:
    """Ask whether to go ahead, unless that has been answered.

    Raises:
        ConfigError: There is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            "Nothing was changed, as there is no terminal to ask for confirmation: give --yes to go ahead, or --dry-run to look"
        )
    typer.confirm(f"Go ahead? The state of {application_id} cannot be restored", abort=True)
