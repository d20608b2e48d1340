"""The operator as a whole: puts the parts together, and gives them their order at start and end.

    lists (caches are full) ─► watches ─► the Lease ─► workers
    SIGTERM ─► watches end ─► passes end ─► the Lease is given up

A replica without the Lease watches all the same, so that it can begin at once. One that loses it to another ends the process:
nothing that a thread may still hold from before is worth keeping. One that only did not reach the API server for long lists
everything anew, and goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import kopf
from kubernetes import client
from kubernetes import config as kubernetes_config

from millrace_operator.app.brokers import Brokers
from millrace_operator.app.context import Cluster, Kafka
from millrace_operator.app.handlers import SELECTOR, Handlers, configure
from millrace_operator.app.health import HealthServer
from millrace_operator.app.kafka_hands import KafkaHands
from millrace_operator.app.leader import Leader
from millrace_operator.app.metrics import Metrics
from millrace_operator.app.passes import Passes, Reconcile
from millrace_operator.app.queue import WorkQueue
from millrace_operator.app.refs import Ref
from millrace_operator.app.renewals import Renewals
from millrace_operator.app.reset_passes import ResetPasses
from millrace_operator.app.settings import Settings
from millrace_operator.app.workers import Workers
from millrace_operator.cluster.act import Hands, crash_after
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.events import Recorder
from millrace_operator.cluster.instances import Instances
from millrace_operator.cluster.kinds import APPS, RESETS
from millrace_operator.cluster.observe import Expandable, Outputs
from millrace_operator.cluster.relist import relist
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.kafka.clusters import KafkaClusters
from millrace_operator.kafka.settings import Allowed

log = logging.getLogger(__name__)

_CRASHED: Final = 1
_HEARTBEAT_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
"""How long the loops of watches and of the Lease may not turn before the liveness probe fails."""
_LAST_PASSES_SECONDS: Final = 20.0
_LIST_ATTEMPTS: Final = 30
_LIST_PAUSE_SECONDS: Final = 2.0
_SOONEST_RELIST_SECONDS: Final = 5.0
"""How soon all is listed again once watches begin, which is then done ever more seldom: no watch tells of what was deleted
between the first list and its own beginning."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What the operator talks to besides the API server; a bench for the operator alone puts something else here."""

    kafka: Kafka
    instances: Instances
    outputs: Outputs

    @classmethod
    def real(cls, requests: Requests, settings: Settings) -> Self:
        """Return brokers, pods and logs as they are."""
        clusters = KafkaClusters(Allowed(settings.token_endpoints, settings.cloud_identity))
        return cls(KafkaHands(requests, clusters), Instances(), Outputs(requests))


class Operator:
    """One replica of the operator.

    Args:
        settings: What its environment says.
        reconcile: What decides; by default Millrace's own.
        api: The client for the API server.
        outside_of: Makes what is neither this process nor the API server; the real thing if not given.
    """

    def __init__(
        self,
        settings: Settings,
        reconcile: Reconcile,
        api: client.ApiClient,
        outside_of: Callable[[Requests], Outside] | None = None,
    ) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._synced = False
        self._relist_due = threading.Event()
        self._beat = time.monotonic()
        self._metrics = Metrics()
        self._queue: WorkQueue[Ref] = WorkQueue()
        self._requests = Requests(api, lambda: self._leader.may_write_seconds(), self._metrics.request)  # noqa: PLW0108
        self._leader = Leader(
            self._requests,
            namespace=settings.pod_namespace,
            name=settings.lease_name,
            identity=settings.pod_name,
            seconds=settings.lease_seconds,
        )
        outside = outside_of(self._requests) if outside_of is not None else Outside.real(self._requests, settings)
        resources, children = Cache(), Cache()
        self._cluster = Cluster(
            requests=self._requests,
            resources=resources,
            children=children,
            instances=outside.instances,
            hands=Hands(self._requests, resources, children),
            outputs=outside.outputs,
            kafka=outside.kafka,
            operator_namespace=settings.pod_namespace,
            recorder=Recorder(self._requests, settings.pod_name, self._metrics.told),
            expandable=Expandable(self._requests).of,
        )
        self._brokers = Brokers(self._queue.add)
        self._renewals = Renewals(settings.template_rolls, self._queue.add)
        self._passes = Passes(
            cluster=self._cluster,
            reconcile=reconcile,
            brokers=self._brokers,
            resync_seconds=settings.resync_seconds,
            after_action=crash_after(settings.crash_after_actions),
            renewals=self._renewals,
        )
        resets = ResetPasses(self._cluster, self._brokers, self._passes.after_action)
        self._workers = Workers(
            self._queue,
            {APPS.kind: self._passes.run, RESETS.kind: resets.run},
            count=settings.workers,
            metrics=self._metrics,
        )
        self._metrics.watch(depth=self._queue.depth, leads=self._leads, apps=lambda: resources.of_kind(APPS))

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until the Lease is lost, and return the process's exit status."""
        health = HealthServer(
            self._settings.metrics_port, live=self._not_live, ready=self._not_ready, registry=self._metrics.registry
        )
        log.info("listening on port %d", health.port)
        try:
            self._first_lists()
            election = threading.Thread(target=self._lead, name="election", daemon=True)
            election.start()
            threading.Thread(target=self._relist_forever, name="relist", daemon=True).start()
            asyncio.run(self._watch())
            self._end()
            election.join(self._settings.lease_seconds)
            self._leader.release()
        finally:
            health.close()
        return 0

    def _first_lists(self) -> None:
        """Fill the caches; the API server may be starting too."""
        for attempt in range(1, _LIST_ATTEMPTS + 1):
            try:
                self._relist()
            except ApiError as error:
                if attempt == _LIST_ATTEMPTS:
                    raise
                log.warning("%s; again in %.0f s", error, _LIST_PAUSE_SECONDS)
                self._stop.wait(_LIST_PAUSE_SECONDS)
            else:
                self._synced = True
                return

    def _relist(self) -> None:
        cluster, namespaces = self._cluster, self._settings.namespaces
        changed, cluster.pod_monitors = relist(
            self._requests, cluster.resources, cluster.children, namespaces, SELECTOR
        )
        for namespace, name in changed:
            self._queue.add(Ref(APPS.kind, namespace, name))

    def _relist_forever(self) -> None:
        pause = _SOONEST_RELIST_SECONDS
        while not self._stop.is_set():
            watches_begin_anew = self._relist_due.wait(pause)
            self._relist_due.clear()
            pause = _SOONEST_RELIST_SECONDS if watches_begin_anew else min(2 * pause, self._settings.relist_seconds)
            try:
                self._relist()
            except ApiError as error:
                log.warning("%s", error)

    async def _watch(self) -> None:
        """Run kopf, which also takes the signals."""
        settings = kopf.OperatorSettings()
        configure(settings)
        handlers = Handlers(self._cluster.resources, self._cluster.children, self._queue, self._metrics)
        registry = handlers.registry()
        kopf.on.login(registry=registry, id="login")(kopf.login_via_client)
        heart = asyncio.create_task(self._heartbeat())
        try:
            await kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                namespaces=self._settings.namespaces,
                clusterwide=not self._settings.namespaces,
            )
        finally:
            heart.cancel()
            self._stop.set()

    async def _heartbeat(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    def _lead(self) -> None:
        try:
            stopped = self._leader.run(self._stop, self._begin)
        except Exception:
            log.exception("the election failed")
            stopped = False
        if not stopped:
            log.error("the lease is lost: the process ends, another operator goes on")
            logging.shutdown()
            os._exit(_CRASHED)

    def _begin(self) -> None:
        """Begin to work, or go on after a time without an API server, from which failures are forgotten."""
        if self._workers.started:
            self._relist_due.set()
        else:
            self._renewals.resume(self._cluster.resources.of_kind(APPS))
            self._workers.start()
        for kind in (APPS, RESETS):
            for obj in self._cluster.resources.of_kind(kind):
                self._queue.add(Ref(kind.kind, obj["metadata"]["namespace"], obj["metadata"]["name"]), urgent=True)

    def _leads(self) -> bool:
        return self._workers.started and self._leader.may_write_seconds() > 0

    def _end(self) -> None:
        log.info("ending")
        self._stop.set()
        self._queue.close()
        if not self._workers.join(_LAST_PASSES_SECONDS):
            log.warning("a pass has not ended; the next operator goes on from where it was")
        self._brokers.close()
        self._cluster.kafka.close()
        self._cluster.instances.close()

    def _not_live(self) -> list[str]:
        if not self._synced:
            return []
        now = time.monotonic()
        loops = {"the watches": self._beat, "the election": self._leader.stepped_at}
        stopped = [f"{name} have stopped" for name, at in loops.items() if now - at > _LONGEST_PAUSE_SECONDS]
        return stopped + (self._workers.problems(self._settings.stuck_seconds) if self._workers.started else [])

    def _not_ready(self) -> list[str]:
        return [] if self._synced else ["the first lists are not complete"]


def api_client(workers: int) -> client.ApiClient:
    """Return a client with the credentials of the pod, or of kubectl's user.

    Args:
        workers: How many threads will use it.
    """
    configuration = client.Configuration()
    try:
        kubernetes_config.load_incluster_config(client_configuration=configuration)
    except kubernetes_config.ConfigException:
        kubernetes_config.load_kube_config(client_configuration=configuration)
    configuration.retries = False
    configuration.connection_pool_maxsize = workers + 24
    return client.ApiClient(configuration)
