"""`make e2e`: the whole run, its set-up included, with the duration of each part; arguments go to pytest.

pytest starts what the tests ask for and takes it down again. Should it be killed, the kernel ends the cluster with it, and what
files are left are removed here.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from e2e.cluster import ClusterError
from e2e.cluster.cluster import prepare
from e2e.cluster.leftovers import remove_leftovers
from e2e.cluster.progress import phase, say
from e2e.images.catalogue import build_images

_ROOT = Path(__file__).parents[1]
_TEST_TIMEOUT_S = 600


def main(arguments: list[str]) -> int:
    """Run the tests and return pytest's exit code."""
    with phase("The whole run"):
        try:
            with phase("Providing packages and programs"):
                prepare()
            with phase("Building the images"):
                sizes = build_images().sizes()
            say(", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items()))
        except ClusterError as error:
            say(f"Error: {error}")
            return 1
        remove_leftovers()
        try:
            with phase("The tests"):
                return _run_pytest(arguments)
        finally:
            remove_leftovers()


def _run_pytest(arguments: list[str]) -> int:
    """Run pytest, passing on the signals that end a run: pytest takes down what it has started."""
    command = [sys.executable, "-m", "pytest", "--durations=15", f"--timeout={_TEST_TIMEOUT_S}", "e2e", *arguments]
    with subprocess.Popen(command, cwd=_ROOT) as process:
        for number in (signal.SIGINT, signal.SIGTERM):
            # The terminal sends Ctrl-C to pytest too: one is enough.
            signal.signal(number, lambda received, _: process.terminate() if received == signal.SIGTERM else None)
        return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
