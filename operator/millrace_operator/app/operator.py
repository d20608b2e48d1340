"""The operator as a whole: assembles the parts, and starts and stops them in order.

    lists (caches are full) ─► watches ─► the Lease ─► workers
    SIGTERM ─► watches end ─► passes end ─► the Lease is released

A replica without the Lease watches as well, so that it can take over at once. One that loses it to another ends the process:
nothing that a thread may still hold from before is worth keeping. One that merely could not reach the API server for a long time
lists everything again, and continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from typing import Final

import kopf
from kubernetes import client
from kubernetes import config as kubernetes_config

from millrace_operator.app.app_controller import AppController, ControllerContext
from millrace_operator.app.backfill_controller import BackfillController
from millrace_operator.app.broker_access import BrokerAccess
from millrace_operator.app.handlers import SELECTOR, Handlers, configure
from millrace_operator.app.health import OperatorHealthServer
from millrace_operator.app.leader import Leader
from millrace_operator.app.metrics import OperatorMetrics
from millrace_operator.app.queue import Workers, WorkQueue
from millrace_operator.app.renewal_limiter import RenewalLimiter
from millrace_operator.app.reset_controller import ResetController
from millrace_operator.app.settings import OperatorSettings
from millrace_operator.cluster.cache import Cache, relist
from millrace_operator.cluster.events import EventRecorder
from millrace_operator.cluster.executor import Executor
from millrace_operator.cluster.instance_status_client import InstanceStatusClient
from millrace_operator.cluster.kinds import APPS, BACKFILLS, RESETS, RESOURCES
from millrace_operator.cluster.nodes import Nodes
from millrace_operator.cluster.observe import PlanJobOutputs, StorageClasses
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.kafka.client_config import AllowedAccess
from millrace_operator.kafka.clusters import KafkaClusters
from millrace_operator.kafka.state_cache import KafkaStateCache
from millrace_operator.model import ResourceRef
from millrace_operator.reconcile.reconciler import reconcile

log = logging.getLogger(__name__)

_CRASHED: Final = 1
_HEARTBEAT_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
"""How long the loops of watches and of the Lease may stand still before the liveness probe fails."""
_LAST_PASSES_SECONDS: Final = 20.0
_LIST_ATTEMPTS: Final = 30
_LIST_PAUSE_SECONDS: Final = 2.0
_SOONEST_RELIST_SECONDS: Final = 5.0
"""How soon everything is listed again after watches have started, then less and less often: no watch reports what was
deleted between the first list and its own start."""


class Operator:
    """One replica of the operator.

    Args:
        settings: Its settings, from the environment.
        api: The client for the API server.
    """

    def __init__(self, settings: OperatorSettings, api: client.ApiClient) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._synced = False
        self._relist_due = threading.Event()
        self._beat = time.monotonic()
        self._metrics = OperatorMetrics()
        self._queue: WorkQueue[ResourceRef] = WorkQueue()
        self._requests = Requests(api, lambda: self._leader.may_write_seconds(), self._metrics.request)  # noqa: PLW0108
        self._leader = Leader(
            self._requests,
            namespace=settings.pod_namespace,
            name=settings.lease_name,
            identity=settings.pod_name,
            seconds=settings.lease_seconds,
        )
        resources, children = Cache(), Cache()
        self._context = ControllerContext(
            requests=self._requests,
            resources=resources,
            children=children,
            instances=InstanceStatusClient(),
            executor=Executor(self._requests, resources, children),
            outputs=PlanJobOutputs(self._requests),
            access=BrokerAccess(self._requests),
            kafka=KafkaClusters(AllowedAccess(settings.token_endpoints, settings.cloud_identity)),
            operator_namespace=settings.pod_namespace,
            recorder=EventRecorder(self._requests, settings.pod_name, self._metrics.event_recorded),
            nodes=Nodes(self._requests).of,
            expandable=StorageClasses(self._requests).of,
        )
        self._kafka_states = KafkaStateCache(self._queue.add)
        self._renewals = RenewalLimiter(settings.template_rolls, self._queue.add)
        self._apps = AppController(
            context=self._context,
            reconcile=reconcile,
            kafka_states=self._kafka_states,
            resync_seconds=settings.resync_seconds,
            renewals=self._renewals,
        )
        self._resets = ResetController(self._context, self._kafka_states)
        self._backfills = BackfillController(self._context, self._kafka_states)
        self._workers = Workers(
            self._queue,
            {APPS.kind: self._apps.run, RESETS.kind: self._resets.run, BACKFILLS.kind: self._backfills.run},
            count=settings.workers,
            metrics=self._metrics,
        )
        self._metrics.watch(depth=self._queue.depth, leads=self._leads, apps=lambda: resources.of_kind(APPS))

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until the Lease is lost, and return the process's exit status."""
        health = OperatorHealthServer(
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
        context, namespaces = self._context, self._settings.namespaces
        changed, context.pod_monitors = relist(
            self._requests, context.resources, context.children, namespaces, SELECTOR
        )
        for ref in changed:
            self._queue.add(ref)

    def _relist_forever(self) -> None:
        pause = _SOONEST_RELIST_SECONDS
        while not self._stop.is_set():
            watches_restarted = self._relist_due.wait(pause)
            self._relist_due.clear()
            pause = _SOONEST_RELIST_SECONDS if watches_restarted else min(2 * pause, self._settings.relist_seconds)
            try:
                self._relist()
            except ApiError as error:
                log.warning("%s", error)

    async def _watch(self) -> None:
        """Run kopf, which also takes the signals."""
        settings = kopf.OperatorSettings()
        configure(settings)
        handlers = Handlers(self._context.resources, self._context.children, self._queue, self._metrics)
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
            log.error("the lease is lost: the process exits, and another operator continues")
            logging.shutdown()
            os._exit(_CRASHED)

    def _begin(self) -> None:
        """Start working, or continue after the API server was unreachable, and forget the failures of that time."""
        self._context.working_since = time.time()
        if self._workers.started:
            self._relist_due.set()
        else:
            self._renewals.resume(self._context.resources.of_kind(APPS))
            self._workers.start()
        for kind in RESOURCES:
            for obj in self._context.resources.of_kind(kind):
                self._queue.add(
                    ResourceRef(kind.kind, obj["metadata"]["namespace"], obj["metadata"]["name"]), urgent=True
                )

    def _leads(self) -> bool:
        return self._workers.started and self._leader.may_write_seconds() > 0

    def _end(self) -> None:
        log.info("ending")
        self._stop.set()
        self._queue.close()
        if not self._workers.join(_LAST_PASSES_SECONDS):
            log.warning("a pass has not ended; the next operator continues from there")
        self._kafka_states.close()
        self._context.kafka.close()
        self._context.instances.close()

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
