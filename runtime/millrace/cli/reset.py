"""`millrace reset`: makes an application start from scratch, like `kafka-streams-application-reset`.

Every action is shown before it is done. Files are deleted only in a directory that was named.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
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
    from millrace.kafka.resetter import Resetter
    from millrace.plan.reset import OffsetTarget, ResetActions
    from millrace.plan.topology_plan import TopologyPlan

ToEarliestOption = Annotated[bool, typer.Option("--to-earliest", help="Start at the first records (default).")]
ToLatestOption = Annotated[bool, typer.Option("--to-latest", help="Start at records written from now on.")]
ToDatetimeOption = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        metavar="TIME",
        help="Start at this time, such as 2026-01-31T12:00:00 (UTC).",
        show_default=False,
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Remove killed members from the group instead of waiting for their timeout."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the steps without doing them.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


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
    to_earliest: ToEarliestOption = False,
    to_latest: ToLatestOption = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="Start at this offset.", show_default=False)
    ] = None,
    to_datetime: ToDatetimeOption = None,
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
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Throw away what an application has computed, so that it starts from scratch: internal topics, offsets, local state.

    The application must be stopped: a group with active members is refused. With a manifest or an entrypoint, its topology's
    internal topics are deleted; without, all topics that are named like internal topics of this application. Output topics
    are never touched. Local state is kept unless `--state-dir` names it; delete it on every machine, or the application
    continues from it.

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
        directories = []
        if state_dir is not None:
            from millrace.instance.state_directory import StateDirectory

            named = StateDirectory(settings.model_copy(update={"state_dir": str(state_dir)}))
            directories = [named] if named.path.is_dir() else []
        if carry_out(resetter, actions, directories, dry_run=dry_run, yes=yes):
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
    """Return where to start, from the options' values by name; None for an option that is not given.

    Raises:
        ConfigError: A value is wrong, or there are several.
    """
    from millrace.plan.reset import OffsetTarget, Start

    chosen = {option: value for option, value in given.items() if value is not None}
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} contradict each other: give only one")
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


def carry_out(
    resetter: Resetter, actions: ResetActions, directories: Sequence[StateDirectory], *, dry_run: bool, yes: bool
) -> bool:
    """Show the reset and, once it is confirmed, do it; return whether it was done.

    Args:
        resetter: Does it.
        actions: The changes in the cluster.
        directories: Local state to delete, which is locked meanwhile.
        dry_run: Whether to only show it.
        yes: Whether it is already confirmed.

    Raises:
        ConfigError: It is not confirmed, and there is no terminal to ask on.
        LockError: An instance uses one of the directories.
    """
    _show_actions(actions, directories)
    idle = not (actions.set_offsets or actions.delete_topics or actions.remove_members or directories)
    if dry_run or idle:
        print("Nothing to do" if idle else "Dry run: nothing was changed")
        return False
    _confirm(actions.application_id, yes=yes)
    with ExitStack() as locked:
        for directory in directories:
            directory.lock()
            locked.callback(directory.unlock)
        resetter.execute(actions)
        for directory in directories:
            directory.delete_all()
    return True


def _show_actions(actions: ResetActions, directories: Sequence[StateDirectory]) -> None:
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


def _confirm(application_id: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            "Nothing was changed, as there is no terminal to ask for confirmation: give --yes to go ahead, or --dry-run to look"
        )
    typer.confirm(f"Go ahead? The state of {application_id} cannot be restored", abort=True)
