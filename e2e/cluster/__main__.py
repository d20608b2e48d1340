"""A cluster to work with by hand: `python -m e2e.cluster up`, `… kubectl get pods`, `… down`."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from e2e.cluster.cluster import Cluster, prepare
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import phase, say

app = typer.Typer(help="A real Kubernetes on this machine.", no_args_is_help=True, add_completion=False)
Directory = Annotated[
    Path, typer.Option("--dir", help="Where the cluster's data are; a second cluster takes another directory.")
]
_DEFAULT = Path(tempfile.gettempdir()) / "millrace-cluster"
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command()
def build() -> None:
    """Install the packages and build the programs, if necessary."""
    prepare()


@app.command()
def up(
    directory: Directory = _DEFAULT,
    control_plane_only: Annotated[bool, typer.Option(help="No node: the API and its controllers.")] = False,  # noqa: FBT002
) -> None:
    """Start a cluster that runs until `down`."""
    prepare()
    with phase("The cluster"):
        cluster = Cluster.start(directory, with_node=not control_plane_only, owned=False)
    say(f"export KUBECONFIG={cluster.kubeconfig}")
    say(f"Servers on the host are at {cluster.host_address} for pods; logs are in {cluster.directory / 'logs'}")


@app.command()
def down(directory: Directory = _DEFAULT) -> None:
    """Stop a cluster and remove its data."""
    _running(directory).stop()


@app.command(context_settings=_PASS_THROUGH)
def kubectl(context: typer.Context, directory: Directory = _DEFAULT) -> None:
    """Run kubectl on a cluster."""
    command = [*_running(directory).kubectl_command, *context.args]
    os.execv(command[0], command)


@app.command("import")
def import_image(archive: Path, directory: Directory = _DEFAULT) -> None:
    """Load a Docker archive into a cluster's node."""
    _running(directory).import_image(archive)


def _running(directory: Path) -> Cluster:
    cluster = Cluster.find(directory)
    if cluster is None:
        raise ClusterError(f"No cluster runs in {directory}: `python -m e2e.cluster up --dir {directory}` starts one")
    return cluster


def main() -> None:
    """Run a command; an error is one line on standard error."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app()
    except ClusterError as error:
        say(f"Error: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
