"""A cluster that exists as long as it is used, and leaves nothing behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from e2e.cluster.cluster import Cluster
from e2e.cluster.leftovers import PREFIX
from e2e.cluster.progress import phase


@contextmanager
def temporary_cluster(
    *, with_node: bool = True, saying: Callable[[str], AbstractContextManager[None]] = phase
) -> Iterator[Cluster]:
    """Start a cluster in its own directory, and remove both at the end.

    Args:
        with_node: Whether pods can run.
        saying: Reports slow steps.
    """
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with saying("Starting the cluster" if with_node else "Starting the control plane"):
            cluster = Cluster.start(directory, with_node=with_node)
        try:
            yield cluster
        finally:
            with saying("Taking the cluster down"):
                cluster.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
