"""How fast the operator is, and how little it asks at rest, with many StreamsApps: `make bench-operator`.

The API server, its controllers and the operator are real; nodes, pods and brokers are pretended (`e2e.pretend`). Measured are, as
seen by a watch of the StatefulSets, from a spec's change to what follows from it:

* *create*: all applications at once, until each is Ready;
* *scale*: one replica more, for one application at a time, until the StatefulSet has it;
* *burst*: the same for all applications at once;
* *rest*: requests that the operator sends to the API server in a minute in which nothing happens.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from e2e.cluster import Cluster
from e2e.cluster.waiting import wait_for
from e2e.operator_process import OperatorProcess
from e2e.pretend import Kubelet, manifest

_GROUP = ("streams.millrace.dev", "v1alpha1")
_SPACE = "bench"


class StatefulSets:
    """Notes when a StatefulSet is seen with how many replicas."""

    def __init__(self, api: client.ApiClient) -> None:
        self._apps = client.AppsV1Api(api)
        self.seen: dict[tuple[str, int], float] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(HTTPError):  # the API server ends before this does
            self._watch()

    def _watch(self) -> None:
        for event in watch.Watch().stream(self._apps.list_namespaced_stateful_set, _SPACE):
            found = event["raw_object"]
            with self._changed:
                self.seen.setdefault((found["metadata"]["name"], found["spec"]["replicas"]), time.monotonic())
                self._changed.notify_all()

    def wait(self, name: str, replicas: int) -> float:
        """Wait until a StatefulSet has so many replicas, and return when that was."""
        with self._changed:
            if not self._changed.wait_for(lambda: (name, replicas) in self.seen, timeout=120):
                raise TimeoutError(f"{name} has not come to {replicas} replicas")
            return self.seen[name, replicas]


def main() -> int:
    """Run the benchmark and print what was measured."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--apps", type=int, default=200)
    arguments.add_argument("--workers", type=int, default=4)
    arguments.add_argument("--rest-seconds", type=float, default=60)
    options = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        Cluster.start(Path(folder) / "c", with_node=False) as cluster,
    ):
        cluster.kubectl("apply", "--server-side", "-k", str(Path(__file__).parents[1] / "crds"))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _SPACE}})
        kubelet = Kubelet(_api(cluster))
        settings = {"WORKERS": options.workers, "LOG_LEVEL": "INFO", "LEASE_SECONDS": 15, "RESYNC_SECONDS": 60}
        with OperatorProcess(cluster.kubeconfig, Path(folder) / "operator.log", **settings) as operator:
            operator.wait_until_it_leads()
            _measure(cluster, operator, options.apps, options.rest_seconds)
        kubelet.close()
    return 0


def _api(cluster: Cluster) -> client.ApiClient:
    return config.new_client_from_config(str(cluster.kubeconfig))


def _measure(cluster: Cluster, operator: OperatorProcess, count: int, rest_seconds: float) -> None:
    custom, sets = client.CustomObjectsApi(_api(cluster)), StatefulSets(_api(cluster))
    names = [f"app-{number:03}" for number in range(count)]
    begun = time.monotonic()
    for name in names:
        custom.create_namespaced_custom_object(*_GROUP, _SPACE, "streamsapps", manifest(name))
    wait_for(f"{count} apps to be ready", lambda: _ready(custom) == count, timeout_s=900, poll_s=1)
    print(f"create: {count} StreamsApps Ready after {time.monotonic() - begun:.0f} s")
    _wait_for_rest(operator)
    _rest(operator, rest_seconds)
    single = []
    for name in names[:: max(1, count // 50)]:
        changed = _scale(custom, name, 2)
        single.append(sets.wait(name, 2) - changed)
    _print("scale, one at a time", single)
    _wait_for_rest(operator)
    changes = {name: _scale(custom, name, 3) for name in names}
    _print("scale, all at once", [sets.wait(name, 3) - changed for name, changed in changes.items()])


def _scale(custom: client.CustomObjectsApi, name: str, replicas: int) -> float:
    begun = time.monotonic()
    custom.patch_namespaced_custom_object(*_GROUP, _SPACE, "streamsapps", name, {"spec": {"replicas": replicas}})
    return begun


def _ready(custom: client.CustomObjectsApi) -> int:
    found: dict[str, Any] = custom.list_namespaced_custom_object(*_GROUP, _SPACE, "streamsapps")
    return sum(
        any(
            item["type"] == "Ready" and item["status"] == "True" for item in app.get("status", {}).get("conditions", ())
        )
        for app in found["items"]
    )


def _but_for_the_lease(operator: OperatorProcess) -> float:
    requests = "millrace_operator_api_requests_total"
    return operator.metric(requests) - sum(
        operator.metric(f'{requests}{{code="200",resource="leases",verb="{verb}"') for verb in ("get", "update")
    )


def _wait_for_rest(operator: OperatorProcess) -> None:
    """Wait until fifteen seconds pass without a request but those for the Lease."""
    last = [_but_for_the_lease(operator), time.monotonic()]

    def quiet() -> bool:
        now = _but_for_the_lease(operator)
        if now != last[0]:
            last[:] = [now, time.monotonic()]
        return time.monotonic() - last[1] > 15

    wait_for("rest", quiet, timeout_s=600, poll_s=1)


def _rest(operator: OperatorProcess, seconds: float) -> None:
    requests, passes = "millrace_operator_api_requests_total", "millrace_operator_reconcile_seconds_count"
    before = [operator.metric(requests), _but_for_the_lease(operator), operator.metric(passes)]
    time.sleep(seconds)
    after = [operator.metric(requests), _but_for_the_lease(operator), operator.metric(passes)]
    everything, others, made = ((new - old) * 60 / seconds for new, old in zip(after, before, strict=True))
    print(
        f"rest: {everything:.0f} requests per minute, {everything - others:.0f} of them for the Lease; "
        f"{made:.0f} passes per minute"
    )


def _print(what: str, seconds: list[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    print(f"{what}: p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms, of {len(seconds)}")


if __name__ == "__main__":
    sys.exit(main())
