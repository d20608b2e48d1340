"""Options that the commands of `millrace dev` share, and the brokers to use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from millrace.errors import LocalHostError

MANIFEST: Final = Path("streamsapp.yaml")
"""The manifest if none is named."""

ManifestOption = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="The StreamsApp manifest.")]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="Where to keep data; by default in the user's data directory.", show_default=False
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,…",
        help="Use these brokers instead of the running `dev up`'s.",
        show_default=False,
    ),
]


def running_brokers(file: Path, directory: Path | None, bootstrap: str | None) -> str:
    """Return the given brokers, or else the brokers of the `dev up` that runs a manifest.

    Raises:
        LocalHostError: It is not running.
        ManifestError: The manifest is wrong.
    """
    if bootstrap is not None:
        return bootstrap
    from millrace.dev.local_directory import LocalDirectory
    from millrace.manifest import load

    name = load(file).metadata.name
    host = LocalDirectory.of(name, directory).running_host()
    if host is None:
        raise LocalHostError(
            f"{name} is not running: start it with `millrace dev up`, or name brokers with --bootstrap"
        )
    if not host.bootstrap_servers:
        raise LocalHostError(f"{name} (pid {host.pid}) is still starting Kafka: try again in a moment")
    return host.bootstrap_servers
