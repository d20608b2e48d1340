"""`make e2e`: the whole run, including setup, with the duration of each part; arguments go to pytest: files, `-k`, `-m`, ….

All tests share one cluster with an operator, and a control plane for those that need no pods. Most of the time they wait for
pods, so several files run at a time. Tests of behaviour that is also proved without a cluster (`@pytest.mark.thorough`) only run
with `--all`, as in `make e2e-all`; those among them that disturb others (`@pytest.mark.disturbs`) run afterwards, one by one. If
the run is killed, the kernel ends the cluster with it, and the next run removes leftover files.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.budget.recording import Costs

from e2e.cluster import Cluster, ClusterError
from e2e.cluster.cluster import prepare
from e2e.cluster.leftovers import remove_leftovers
from e2e.cluster.progress import phase, say
from e2e.cluster.temporary import temporary_cluster
from e2e.helm import OPERATOR_NAMESPACE, Release, image_values
from e2e.images.catalogue import provide_images
from e2e.order import BUILD, REPORTS
from e2e.support.api import control_plane

_ROOT = Path(__file__).parents[1]
_NO_TESTS = 5
_ALL = "--all"
_QUICK = "not thorough"
_BY_FILE = ("--dist=loadfile", "--no-loadscope-reorder")
_WORKERS = os.environ.get("E2E_WORKERS", "4")


def main(arguments: list[str]) -> int:
    """Run the tests and return pytest's exit code, or 1 if the setup fails."""
    signal.signal(signal.SIGTERM, _end)
    remove_leftovers()
    try:
        with phase("The whole run"):
            with phase("Providing packages and programs"):
                prepare(thorough=_ALL in arguments)
            with (
                temporary_cluster() as cluster,
                _meanwhile(_install, cluster) as installed,
                control_plane() as api_server,
            ):
                installed.result()
                return _run_tests(cluster, api_server, arguments)
    except ClusterError as error:
        say(f"Error: {error}")
        return 1
    finally:
        remove_leftovers()


@contextmanager
def _meanwhile(work: Callable[[Cluster], None], cluster: Cluster) -> Iterator[Future[None]]:
    """Do something to the cluster in another thread, which fails if the cluster is taken down."""
    executor = ThreadPoolExecutor(1)
    try:
        yield executor.submit(work, cluster)
    finally:
        executor.shutdown(wait=False)


def _install(cluster: Cluster) -> None:
    with phase("Building the images and loading them into the node"):
        images = provide_images(cluster)
    with phase("Installing the operator"):
        Release(cluster, OPERATOR_NAMESPACE).apply(image_values(images.operator))


def _run_tests(cluster: Cluster, api_server: Cluster, arguments: list[str]) -> int:
    shared = (f"--cluster={cluster.directory}", "--prepared", f"--api-server={api_server.directory}")
    results = []
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-m", dest="chosen", default=_QUICK)
    parser.add_argument(_ALL, dest="chosen", action="store_const", const="")
    options, arguments = parser.parse_known_args(arguments)
    and_chosen = f" and ({options.chosen})" if options.chosen else ""
    for report in BUILD.glob(REPORTS):
        report.unlink()
    costs = Costs()
    with phase("The tests"):
        results.append(
            _pytest("together", f"not disturbs{and_chosen}", *shared, f"-n{_WORKERS}", *_BY_FILE, *arguments)
        )
    if options.chosen != _QUICK:
        with phase("The tests that disturb others"):
            results.append(_pytest("alone", f"disturbs{and_chosen}", *shared, *arguments))
    costs.write(BUILD / "e2e.json")
    if set(results) == {_NO_TESTS}:
        return _NO_TESTS
    return next((result for result in results if result not in {0, _NO_TESTS}), 0)


def _pytest(name: str, marked: str, *arguments: str) -> int:
    flags = ["--verbose", "--durations=25", "-m", marked]
    flags.append(f"--junitxml={BUILD / REPORTS.replace('*', name)}")
    paths = [] if any(Path(_ROOT, argument.split("::")[0]).exists() for argument in arguments) else ["e2e"]
    with subprocess.Popen([sys.executable, "-m", "pytest", *flags, *paths, *arguments], cwd=_ROOT) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            raise


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(143)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
