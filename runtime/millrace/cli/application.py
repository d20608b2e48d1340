"""The application a command is about, however it is named: an entrypoint with options, or a manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.errors import ConfigError

if TYPE_CHECKING:
    from millrace.config import StreamsConfig
    from millrace.topology import Topology

EntrypointArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ENTRYPOINT", help="`package.module:callable`, or a file `app.py[:callable]`.", show_default=False
    ),
]
ManifestOption = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="A StreamsApp manifest; gives entrypoint and settings.", show_default=False
    ),
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting under Kafka's dotted name; may be repeated."),
]
ApplicationIdOption = Annotated[
    str | None, typer.Option("--application-id", metavar="ID", help="Kafka's `application.id`.", show_default=False)
]


@dataclass(frozen=True, slots=True)
class Application:
    """What to run: where the topology is, and the settings of Kafka Streams."""

    entrypoint: str
    settings: Mapping[str, Any]
    app_config: Mapping[str, Any]
    args: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    """Where the program is looked for, besides the working directory."""

    def config(self) -> StreamsConfig:
        """Return the validated settings.

        Raises:
            ConfigError: A setting is missing or wrong.
        """
        from millrace.config import StreamsConfig

        return StreamsConfig.of(self.settings)

    def topology(self) -> Topology:
        """Import the user's program and return its topology.

        Raises:
            EntrypointError: It cannot be imported, called, or returned something else.
        """
        from millrace.cli.entrypoint import load_topology

        return load_topology(
            self.entrypoint,
            streams_config=self.config(),
            app_config=self.app_config,
            args=self.args,
            folders=self.folders,
        )


def application(
    entrypoint: str | None,
    manifest: Path | None,
    *,
    settings: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    replica: int | None = None,
    bootstrap: str | None = None,
) -> Application:
    """Return the application that the options of a command name.

    Args:
        entrypoint: On the command line; goes before the manifest's.
        manifest: A StreamsApp.
        settings: `key=value` texts, which go before the manifest's settings.
        options: Settings from options of their own; None values are left out. They go before everything else.
        replica: Which replica of the manifest's this process is.
        bootstrap: Brokers to use in place of the manifest's and of its security settings.

    Raises:
        ConfigError: Neither entrypoint nor manifest is given, or a setting is not `key=value`.
        ManifestError: The manifest is wrong.
    """
    merged: dict[str, Any] = {}
    app_config: Mapping[str, Any] = {}
    args: tuple[str, ...] = ()
    if manifest is not None:
        from millrace.manifest import load, to_streams_config

        app = load(manifest)
        merged |= to_streams_config(app, replica, bootstrap_servers=None if bootstrap is None else [bootstrap])
        app_config, args = app.spec.app.config, app.spec.app.args
        entrypoint = entrypoint or app.spec.app.entrypoint
    elif replica is not None:
        raise ConfigError("--replica counts the replicas of a manifest: name it with -f FILE")
    if entrypoint is None:
        raise ConfigError(
            "Name what to run: an entrypoint (`package.module:callable` or app.py) or a manifest (-f FILE)"
        )
    if bootstrap is not None:
        merged["bootstrap.servers"] = bootstrap
    merged |= dict(map(setting, settings))
    merged |= {key: value for key, value in (options or {}).items() if value is not None}
    if "application.id" not in merged:
        raise ConfigError("The application has no id: give --application-id ID, or a manifest with -f FILE")
    return Application(entrypoint, merged, app_config, args, (manifest.absolute().parent,) if manifest else ())


def setting(text: str) -> tuple[str, str]:
    """Return key and value of a `KEY=VALUE` text.

    Raises:
        ConfigError: It is none.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"`{text}` is not a setting: write KEY=VALUE, for example num.stream.threads=2")
    return key.strip(), value.strip()
