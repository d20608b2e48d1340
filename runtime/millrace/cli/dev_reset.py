"""`millrace dev reset`: makes the application of a manifest start from scratch on this machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.dev_options import MANIFEST, DirectoryOption, ManifestOption
from millrace.cli.reset import (
    DryRunOption,
    ForceOption,
    ToDatetimeOption,
    ToEarliestOption,
    ToLatestOption,
    YesOption,
    carry_out,
    offset_target,
)
from millrace.errors import ConfigError, LocalHostError

if TYPE_CHECKING:
    from millrace.dev.local_host import LocalHost
    from millrace.plan.reset import ActiveMember, OffsetTarget


def reset(
    file: ManifestOption = MANIFEST,
    directory: DirectoryOption = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            metavar="HOST:PORT,…",
            help="The brokers, if `dev up` was given some.",
            show_default=False,
        ),
    ] = None,
    to_earliest: ToEarliestOption = False,
    to_latest: ToLatestOption = False,
    to_datetime: ToDatetimeOption = None,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Throw away what `dev up` has computed: internal topics, offsets, and the replicas' local state.

    Stop it first. All topics that are named like internal topics of the application are deleted, including those from
    earlier versions of its topology. Input and output topics keep their records. The Kafka of the last `dev up` is started
    for this.

    For example:

    - `millrace dev reset --dry-run`
    - `millrace dev reset -f streamsapp.yaml --to-latest --yes`
    """
    target = offset_target(
        {"--to-earliest": to_earliest or None, "--to-latest": to_latest or None, "--to-datetime": to_datetime}
    )
    from millrace.dev.local_host import HostOptions, LocalHost

    host = LocalHost(HostOptions(file.absolute(), directory, bootstrap), report=lambda line: print(line, flush=True))
    name, place = host.app.metadata.name, host.directory
    if (running := place.running_host()) is not None:
        raise LocalHostError(f"{name} is running (pid {running.pid}): stop it with `millrace dev down`, then reset it")
    if bootstrap is None and not place.kafka.is_dir():
        if place.states(host.app.spec.application_id):
            raise ConfigError(f"{name} has run with your own brokers: name them with --bootstrap")
        print(f"Nothing to do: {name} has not run in {place.root}")
        return
    with host:
        host.start_kafka()
        _reset(host, target, force=force, own_kafka=bootstrap is None, dry_run=dry_run, yes=yes)


def _reset(host: LocalHost, target: OffsetTarget, *, force: bool, own_kafka: bool, dry_run: bool, yes: bool) -> None:
    from millrace.config import StreamsConfig
    from millrace.instance.state_directory import StateDirectory
    from millrace.kafka.resetter import Resetter
    from millrace.plan.topology_plan import external_source_topics

    config = StreamsConfig.of(host.settings())
    application_id, place = config.application_id, host.directory
    replica = re.compile(rf"{re.escape(host.app.metadata.name)}-\d+-StreamThread-\d+-consumer")

    def has_ended(member: ActiveMember) -> bool:
        """Return whether a member was a replica on the folder's own Kafka, which this process now hosts."""
        return own_kafka and replica.fullmatch(member.client_id) is not None

    plan = place.plan(application_id)
    inputs = () if plan is None else external_source_topics(plan) - {store.topic for store in plan.global_stores}
    states = [
        StateDirectory(config.model_copy(update={"state_dir": str(path)})) for path in place.states(application_id)
    ]
    with Resetter(config) as resetter:
        actions = resetter.plan(target=target, inputs=inputs, force=force, has_ended=has_ended)
        if carry_out(resetter, actions, states, dry_run=dry_run, yes=yes):
            place.plan_file(application_id).unlink(missing_ok=True)
            print(f"{application_id} is reset")
