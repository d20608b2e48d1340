"""The operator as a process on this machine, next to the cluster that it serves."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from tests.waiting import wait_until

from e2e.support.application import PATIENCE_S

_ROOT = Path(__file__).parents[1]
_READY = re.compile(r"listening on port (\d+)")


class OperatorProcess:
    """A running operator; leaving its context ends it with SIGTERM.

    Args:
        kubeconfig: The cluster's kubeconfig.
        log: The file to which its log is appended.
        module: The module to run: the operator, or one with simulated parts.
        settings: `MILLRACE_OPERATOR_…` variables without the prefix, and other variables with their full names.
    """

    def __init__(self, kubeconfig: Path, log: Path, module: str = "e2e.simulated_pods", **settings: str | int) -> None:
        given = {"METRICS_PORT": 0, "LEASE_SECONDS": 60, "LOG_LEVEL": "DEBUG", "POD_NAME": log.stem, **settings}
        variables = {
            name if name.startswith("SIMULATED_") else f"MILLRACE_OPERATOR_{name}": str(value)
            for name, value in given.items()
        }
        self._log = log
        self._log.touch()
        self._begin = self._log.stat().st_size
        with log.open("a") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=_ROOT,
                env={**os.environ, "KUBECONFIG": str(kubeconfig), **variables},
                stdout=stderr,
                stderr=stderr,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    @property
    def log(self) -> str:
        """Its log."""
        return self._log.read_bytes()[self._begin :].decode()

    @property
    def leads(self) -> bool:
        """Whether it holds the Lease."""
        return "holds the lease" in self.log

    @property
    def status(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._process.poll()

    @property
    def size(self) -> tuple[float, int]:
        """Its memory in MiB, and its number of threads."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        found = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
        return int(found["VmRSS"]) / 1024, int(found["Threads"])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self, seconds: float = PATIENCE_S) -> int:
        """Wait until it ends by itself and return its exit status."""
        return self._process.wait(seconds)

    def ends_within(self, seconds: float) -> bool:
        """Wait this long at most, and return whether it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def wait_until_it_leads(self) -> Self:
        """Wait until it holds the Lease."""
        wait_until(lambda: self.leads or self._process.poll() is not None, lambda: f"the Lease. {self.log}", PATIENCE_S)
        assert self.leads, self.log
        return self

    def get(self, path: str) -> str:
        """Return the response of one of its endpoints, even if it is an error."""
        found = wait_until(lambda: _READY.search(self.log), lambda: f"its port. {self.log}", PATIENCE_S)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{path}", timeout=60) as response:
                return response.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def metric(self, name: str) -> float:
        """Return the sum of the samples of a metric whose name, with labels, starts like this."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)
