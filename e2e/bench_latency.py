"""How fast the operator is, and how few requests it sends at rest, with many StreamsApps: `make bench-operator`.

The API server, its controllers and the operator are real; nodes and pods are simulated, and at first the brokers too
(`e2e.simulated_pods`). Each application has its own credentials. The operator is designed for `--apps 1000 --pods 3`.

* *create*: all applications at once, until all are Ready; and for each, from creation to Ready;
* *rest*: the operator's requests to the API server in a minute in which nothing happens;
* *scale, one at a time*: from changing a spec until a watch sees the StatefulSet with one more replica;
* *scale, all at once*: the same for all applications at once;
* *fail-over*: from killing the operator until another has the Lease, and has made a pass over every application;
* *brokers away*: half of the brokers refuse connections, half accept them and stay silent: until the operator has made a pass
  over every application, and from changing a spec until the status reflects it; no probe may fail meanwhile.

After each it prints the operator's memory and threads.
"""

import argparse
import contextlib
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from tests.waiting import wait_until
from urllib3.exceptions import HTTPError

from e2e.cluster import Cluster
from e2e.operator_process import OperatorProcess
from e2e.simulated_pods import Kubelet, manifest

_GROUP = ("streams.millrace.dev", "v1alpha1")
_SPACE = "bench"
_SILENT: list[socket.socket] = []
"""A server that accepts connections and never answers."""


class StatefulSets:
    """Records when a StatefulSet is seen with how many replicas."""

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
        """Wait until a StatefulSet has this many replicas, and return when that was."""
        with self._changed:
            if not self._changed.wait_for(lambda: (name, replicas) in self.seen, timeout=900):
                raise TimeoutError(f"{name} has not come to {replicas} replicas")
            return self.seen[name, replicas]


def main() -> int:
    """Run the benchmark and print the results."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--apps", type=int, default=200)
    arguments.add_argument("--pods", type=int, default=1, help="of each application, at first")
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
        kubelet = Kubelet(_api(cluster), _SPACE)
        settings = {"WORKERS": options.workers, "LOG_LEVEL": "INFO", "LEASE_SECONDS": 15, "RESYNC_SECONDS": 60}

        def operator(name: str, **more: str) -> OperatorProcess:
            return OperatorProcess(cluster.kubeconfig, Path(folder) / f"{name}.log", **settings, **more)

        with operator("first") as first:
            first.wait_until_it_leads()
            names = _create(cluster, first, options.apps, options.pods)
            _measure(cluster, first, names, options.pods, options.rest_seconds)
            with operator("second") as second:
                _fail_over(first, second, options.apps)
                second.signal(signal.SIGKILL)
        with operator("third", SIMULATED_BROKERS="real") as third:
            _brokers_away(cluster, third, names)
        kubelet.close()
    return 0


def _api(cluster: Cluster) -> client.ApiClient:
    return config.new_client_from_config(str(cluster.kubeconfig))


def _create(cluster: Cluster, operator: OperatorProcess, count: int, pods: int) -> list[str]:
    custom, core = client.CustomObjectsApi(_api(cluster)), client.CoreV1Api(_api(cluster))
    names = [f"app-{number:04}" for number in range(count)]
    silent = socket.create_server(("127.0.0.1", 0), backlog=4096)  # open as long as this process
    _SILENT.append(silent)
    away = ("127.0.0.1:1", f"127.0.0.1:{silent.getsockname()[1]}")
    for number, name in enumerate(names):
        core.create_namespaced_secret(
            _SPACE, {"metadata": {"name": name}, "stringData": {"username": name, "password": name}}
        )
        auth = {"type": "scram-sha-512", "secretRef": {"name": name}}
        kafka = {"bootstrapServers": [away[number % 2]], "auth": auth}
        body = manifest(name, replicas=pods, kafka=kafka)
        if not number:
            begun = time.monotonic()
        custom.create_namespaced_custom_object(*_GROUP, _SPACE, "streamsapps", body)
    wait_until(lambda: len(_ready(custom)) == count, f"{count} apps to be ready", 3600, poll_s=2)
    print(f"create: {count} StreamsApps with {pods} pods each Ready after {time.monotonic() - begun:.0f} s")
    _print("created to Ready", _ready(custom))
    _print_size(operator)
    return names


def _measure(cluster: Cluster, operator: OperatorProcess, names: list[str], pods: int, rest_seconds: float) -> None:
    custom, sets = client.CustomObjectsApi(_api(cluster)), StatefulSets(_api(cluster))
    _wait_for_rest(operator)
    _rest(operator, rest_seconds)
    single = []
    for name in names[:: max(1, len(names) // 50)]:
        changed = _scale(custom, name, pods + 1)
        single.append(sets.wait(name, pods + 1) - changed)
    _print("scale, one at a time", single)
    _wait_for_rest(operator)
    changes = {name: _scale(custom, name, pods + 2) for name in names}
    _print("scale, all at once", [sets.wait(name, pods + 2) - changed for name, changed in changes.items()])
    _wait_for_rest(operator)
    _print_size(operator)


def _fail_over(first: OperatorProcess, second: OperatorProcess, count: int) -> None:
    wait_until(lambda: '"ok": true' in second.get("/readyz"), "the second operator's lists", 300)
    first.signal(signal.SIGKILL)
    begun = time.monotonic()
    second.wait_until_it_leads()
    leads = time.monotonic()
    _wait_for_passes(second, count)
    print(f"fail-over: the Lease after {leads - begun:.1f} s, all passes {time.monotonic() - leads:.1f} s later")
    _print_size(second)


def _brokers_away(cluster: Cluster, operator: OperatorProcess, names: list[str]) -> None:
    custom = client.CustomObjectsApi(_api(cluster))
    operator.wait_until_it_leads()
    begun = time.monotonic()
    _wait_for_passes(operator, len(names))
    print(f"brokers away: all passes after {time.monotonic() - begun:.1f} s")
    _print_size(operator)
    seconds = []
    for name in names[:: max(1, len(names) // 50)]:
        begun = time.monotonic()
        body = {"spec": {"restartNonce": 7}}
        changed = custom.patch_namespaced_custom_object(*_GROUP, _SPACE, "streamsapps", name, body)
        generation = changed["metadata"]["generation"]
        wait_until(lambda: _told_of(custom, name) >= generation, "the status", 300)  # noqa: B023
        seconds.append(time.monotonic() - begun)
    _print("brokers away, one at a time", seconds)
    _print_size(operator)


def _told_of(custom: client.CustomObjectsApi, name: str) -> int:
    found: dict[str, Any] = custom.get_namespaced_custom_object(*_GROUP, _SPACE, "streamsapps", name)
    return int(found.get("status", {}).get("observedGeneration", 0))


def _wait_for_passes(operator: OperatorProcess, count: int) -> None:
    """Wait for one pass per application, which the operator does at startup."""

    def enough() -> bool:
        assert '"ok": true' in operator.get("/healthz"), operator.get("/healthz")
        return operator.metric("millrace_operator_reconcile_seconds_count") >= count

    wait_until(enough, "a pass over each application", 1800, poll_s=0.2)


def _print_size(operator: OperatorProcess) -> None:
    memory, threads = operator.size
    print(f"  {memory:.0f} MiB, {threads} threads", flush=True)


def _scale(custom: client.CustomObjectsApi, name: str, replicas: int) -> float:
    begun = time.monotonic()
    custom.patch_namespaced_custom_object(*_GROUP, _SPACE, "streamsapps", name, {"spec": {"replicas": replicas}})
    return begun


def _ready(custom: client.CustomObjectsApi) -> list[float]:
    """Return, for each application that is Ready, how many seconds after its creation it was."""
    found: dict[str, Any] = custom.list_namespaced_custom_object(*_GROUP, _SPACE, "streamsapps")
    return [
        (datetime.fromisoformat(item["lastTransitionTime"]) - _created(app)).total_seconds()
        for app in found["items"]
        for item in app.get("status", {}).get("conditions", ())
        if item["type"] == "Ready" and item["status"] == "True"
    ]


def _created(app: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(app["metadata"]["creationTimestamp"])


def _but_for_the_lease(operator: OperatorProcess) -> float:
    requests = "millrace_operator_api_requests_total"
    return operator.metric(requests) - sum(
        operator.metric(f'{requests}{{code="200",resource="leases",verb="{verb}"') for verb in ("get", "update")
    )


def _wait_for_rest(operator: OperatorProcess) -> None:
    """Wait for fifteen seconds without any request except those for the Lease."""
    last = [_but_for_the_lease(operator), time.monotonic()]

    def quiet() -> bool:
        now = _but_for_the_lease(operator)
        if now != last[0]:
            last[:] = [now, time.monotonic()]
        return time.monotonic() - last[1] > 15

    wait_until(quiet, "rest", 1800, poll_s=1)


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
    print(f"{what}: p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms, of {len(seconds)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
