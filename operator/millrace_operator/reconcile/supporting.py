"""The children beside the pods: service, account, policies, budget, monitor. They follow the newest spec, not a revision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace_operator.children import naming
from millrace_operator.children.auxiliary_objects import (
    disruption_budget,
    headless_service,
    pod_monitor,
    service_account,
)
from millrace_operator.children.network_policy import network_policy, plan_network_policy
from millrace_operator.model import AppRevision
from millrace_operator.reconcile import history
from millrace_operator.reconcile.revisions import revision_of
from millrace_operator.reconcile.turn import Turn

_NO_POD_MONITORS: Final = (
    "There is no PodMonitor, as this cluster does not know the kind, or the operator may not list it: install the CRDs of "
    "Prometheus' operator, or set observability.metrics.podMonitor.enabled: false."
)


def keep_supporting(turn: Turn) -> None:
    """Apply those that are wanted and delete those that are not."""
    name = turn.desired.name
    app = AppRevision(turn.desired.namespace, name, revision_of(turn.spec), turn.spec)
    turn.apply(service_account(app))  # not deleted before the app is: pods of an older revision may still need it
    _keep(turn, "NetworkPolicy", naming.network_policy(name), network_policy(app, turn.observed.operator_namespace))
    _keep(turn, "NetworkPolicy", naming.plan_network_policy(name), plan_network_policy(app))
    turn.delete("NetworkPolicy", naming.former_plan_network_policy(name))
    _keep(turn, "Service", naming.service(name), headless_service(app))
    _keep(turn, "PodDisruptionBudget", naming.disruption_budget(name), disruption_budget(app))
    monitor = pod_monitor(app)
    if turn.observed.pod_monitors:
        _keep(turn, "PodMonitor", naming.pod_monitor(name), monitor)
    elif monitor is not None:
        turn.notes.append(_NO_POD_MONITORS)


def _keep(turn: Turn, kind: str, name: str, wanted: Mapping[str, Any] | None) -> None:
    if wanted is None:
        turn.delete(kind, name)
    else:
        turn.apply(wanted)


def collect_garbage(turn: Turn) -> None:
    """Delete what is kept of revisions that nobody runs, wants, or may go back to, but for plans that tell of their state."""
    name = turn.desired.name
    used = {revision_of(turn.spec), turn.target, turn.stable, turn.status.stable_revision, turn.view.running_revision}
    used |= {pod.revision for pod in turn.view.pods.values()}
    for key in sorted(turn.view.objects):
        if key.kind == "Job" and key.name not in {naming.plan_job(name, revision) for revision in used if revision}:
            turn.delete(key.kind, key.name)
    for revision in sorted(turn.view.revisions() - used):
        if not history.is_worth_keeping(turn, revision):
            turn.delete("ConfigMap", naming.plan_config_map(name, revision))
        turn.delete("ConfigMap", naming.revision_config_map(name, revision))
