"""The application that a command works on, given as an entrypoint with options or as a manifest."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli.logs import LogFormat, LogLevel
from millrace.cli.node_labels import node_labels
from millrace.errors import ConfigError, StreamsError

if TYPE_CHECKING:
    from millrace.config import StreamsConfig
    from millrace.manifest.observability import Logs
    from millrace.topology import Topology

EntrypointArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ENTRYPOINT", help="`package.module:callable`, or a file, `app.py[:callable]`.", show_default=False
    ),
]
ManifestOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="A StreamsApp manifest, with the entrypoint and settings.",
        show_default=False,
    ),
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting, by Kafka's dotted name; may be repeated."),
]
ApplicationIdOption = Annotated[
    str | None, typer.Option("--application-id", metavar="ID", help="Kafka's `application.id`.", show_default=False)
]


def show(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    if output is None:
        typer.echo(text, nl=not text.endswith("\n"))
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise ConfigError(f"Cannot write {output}: {error.strerror}") from error


_SECURITY_FIELDS: Final[dict[str, str]] = {
    "security.protocol": "spec.kafka.tls and spec.kafka.auth",
    "sasl.mechanism": "spec.kafka.auth.type",
    "sasl.username": "spec.kafka.auth.secretRef",
    "sasl.password": "spec.kafka.auth.secretRef",
    "ssl.ca.location": "spec.kafka.tls.caSecretRef",
    "ssl.certificate.location": "spec.kafka.tls.clientCertSecretRef",
    "ssl.key.location": "spec.kafka.tls.clientCertSecretRef",
}
"""Settings made from several fields of a manifest or from Secrets, and the fields to look at."""


@dataclass(frozen=True)
class Application:
    """What to run: where the topology is, and the settings of Kafka Streams."""

    entrypoint: str
    settings: Mapping[str, object]
    app_config: Mapping[str, object]
    args: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    """Where to look for the program, in addition to the working directory."""
    manifest: Path | None = None
    """The file that the settings come from."""
    manifest_config: Mapping[str, object] = field(default_factory=dict)
    """Its `spec.kafka.config`."""
    group_settings: Mapping[str, str] = field(default_factory=dict)
    """The group's settings in the brokers."""
    log_level: LogLevel | None = None
    """The manifest's log level, like `log_format`."""
    log_format: LogFormat = LogFormat.TEXT

    @functools.cached_property
    def config(self) -> StreamsConfig:
        """The validated settings.

        Raises:
            ConfigError: A setting is missing or wrong.
        """
        from millrace.config import StreamsConfig

        with self.naming_fields():
            return StreamsConfig.of(self.settings)

    def check_settings(self) -> None:
        """Check everything about the settings that can be checked without brokers and secrets.

        Raises:
            ConfigError: A client does not accept a setting, or two contradict each other.
            UnsupportedFeatureError: One is valid but not supported by this version.
        """
        from millrace.instance.preflight import check_settings

        config = self.config
        with self.naming_fields():
            check_settings(config)

    @contextlib.contextmanager
    def naming_fields(self) -> Iterator[None]:
        """If an error in this block names a setting, add the field of the manifest that the setting comes from."""
        try:
            yield
        except StreamsError as error:
            if self.manifest is not None and not getattr(error, "__notes__", ()):
                from millrace.manifest.kafka import OWNED_SETTINGS

                fields = {key: field for key, field in OWNED_SETTINGS.items() if field.startswith("spec.")}
                fields |= _SECURITY_FIELDS
                fields |= {key: f"spec.kafka.config[{key}]" for key in self.manifest_config}
                named = [(found.start(), key) for key in self.settings if (found := _find(key, str(error))) is not None]
                field = next((fields[key] for _, key in sorted(named) if key in fields), None)
                if field is not None:
                    error.add_note(f"In {self.manifest} this is {field}.")
            raise

    def topology(self) -> Topology:
        """Import the user's program and return its topology.

        Raises:
            EntrypointError: It cannot be imported or called, or returned something else.
        """
        from millrace.cli.entrypoint import load_topology

        return load_topology(
            self.entrypoint,
            streams_config=self.config,
            app_config=self.app_config,
            args=self.args,
            folders=self.folders,
        )


def application(
    entrypoint: str | None,
    manifest: Path | None,
    *,
    settings: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    replica: int | None = None,
    bootstrap: str | None = None,
    secrets_dir: Path | None = None,
    node_labels_dir: Path | None = None,
) -> Application:
    """Return the application that a command's options describe.

    Args:
        entrypoint: From the command line; takes precedence over the manifest's.
        manifest: A StreamsApp.
        settings: Texts `key=value`, which take precedence over the manifest's settings.
        options: Settings that have their own options, which take precedence over everything else; None is left out.
        replica: Which replica of the manifest this process is.
        bootstrap: Brokers to use instead of the manifest's, without its security settings.
        secrets_dir: Where the manifest's secrets are; None for a pod's directory.
        node_labels_dir: Where the node's labels are; None if they are not known.

    Raises:
        ConfigError: Neither entrypoint nor manifest is given, or a setting is not `key=value`.
        ManifestError: The manifest is wrong.
    """
    merged: dict[str, object] = {}
    app_config: Mapping[str, object] = {}
    args: tuple[str, ...] = ()
    kafka_config: Mapping[str, object] = {}
    group_settings: Mapping[str, str] = {}
    logs: Logs | None = None
    if manifest is not None:
        from millrace.manifest import load, to_group_settings, to_streams_config

        app = load(manifest)
        racks = app.spec.racks
        merged |= to_streams_config(
            app,
            replica,
            bootstrap_servers=None if bootstrap is None else [bootstrap],
            secrets_dir=secrets_dir,
            node_labels=None
            if racks is None or node_labels_dir is None
            else node_labels(node_labels_dir, racks.labels_by_tag.values()),
        )
        group_settings = {name: value for name, value in to_group_settings(app.spec).items() if value is not None}
        app_config, args = app.spec.app.config, app.spec.app.args
        kafka_config, logs = app.spec.kafka.config, app.spec.observability.logs
        entrypoint = entrypoint or app.spec.app.entrypoint
    elif secrets_dir is not None:
        raise ConfigError("--secrets-dir is for the secrets of a manifest: give it with -f FILE")
    elif replica is not None:
        raise ConfigError("--replica is the number of a replica of a manifest: give it with -f FILE")
    if entrypoint is None:
        raise ConfigError(
            "Say what to run: give an entrypoint (`package.module:callable` or app.py) or a manifest (-f FILE)"
        )
    if manifest is None and entrypoint.endswith((".yaml", ".yml")):
        raise ConfigError(f"{entrypoint} is a manifest, not a program: give it with -f {entrypoint}")
    if bootstrap is not None:
        merged["bootstrap.servers"] = bootstrap
    merged |= dict(map(setting, settings))
    merged |= {key: value for key, value in (options or {}).items() if value is not None}
    if "application.id" not in merged:
        raise ConfigError("The application has no id: give --application-id ID, or a manifest with -f FILE")
    if manifest is None:
        return Application(entrypoint, merged, app_config, args)
    return Application(
        entrypoint,
        merged,
        app_config,
        args,
        folders=(manifest.absolute().parent,),
        manifest=manifest,
        manifest_config=kafka_config,
        group_settings=group_settings,
        log_level=None if logs is None else LogLevel(logs.level),
        log_format=LogFormat.TEXT if logs is None else LogFormat(logs.format),
    )


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect this block's standard output, even of C code and child processes, to standard error.

    Standard output is only for the command's result, which programs read.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


def setting(text: str) -> tuple[str, str]:
    """Return the key and value of a text `KEY=VALUE`.

    Raises:
        ConfigError: It does not have that form.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"`{text}` is not a setting: write KEY=VALUE, for example num.stream.threads=2")
    return key.strip(), value.strip()


def _find(key: str, message: str) -> re.Match[str] | None:
    short = key
    for prefix in ("main.", "restore.", "global.", "consumer.", "producer.", "admin."):
        short = short.removeprefix(prefix)
    names = "|".join(map(re.escape, {key, short}))
    return re.search(rf"(?<![\w.])(?:{names})(?![\w.]*\w)", message)
