"""Pure builders of the objects that make up a running application, as the mappings that the API takes.

What they give is what the API server would write: no nulls, no empty maps, quantities in its notation, nothing that
depends on the time or on chance. So "is what is wanted part of what is there?" can be answered by comparing, and an application
at rest costs no writes.
"""

from millrace_operator.children import names
from millrace_operator.children.app import AppRevision
from millrace_operator.children.config_maps import (
    MANIFEST_KEY,
    PLAN_KEY,
    RETAINED_KEY,
    plan_config_map,
    retained_config_map,
    revision_config_map,
)
from millrace_operator.children.disruption_budget import disruption_budget
from millrace_operator.children.environment import DRAIN_FILE
from millrace_operator.children.labels import (
    APP,
    APP_UID,
    COMPONENT,
    MANAGER,
    RETAINED,
    REVISION,
    labels,
    owner_reference,
    selector,
)
from millrace_operator.children.network_policy import network_policy, plan_network_policy
from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.pod import TEMPLATE, pod_template
from millrace_operator.children.pod_monitor import pod_monitor
from millrace_operator.children.ports import HTTP_PORT
from millrace_operator.children.quantities import canonical_quantity
from millrace_operator.children.service import headless_service
from millrace_operator.children.service_account import service_account
from millrace_operator.children.stateful_set import stateful_set

__all__ = [
    "APP",
    "APP_UID",
    "COMPONENT",
    "DRAIN_FILE",
    "HTTP_PORT",
    "MANAGER",
    "MANIFEST_KEY",
    "PLAN_KEY",
    "RETAINED",
    "RETAINED_KEY",
    "REVISION",
    "TEMPLATE",
    "AppRevision",
    "canonical_quantity",
    "disruption_budget",
    "headless_service",
    "labels",
    "names",
    "network_policy",
    "owner_reference",
    "plan_config_map",
    "plan_job",
    "plan_network_policy",
    "pod_monitor",
    "pod_template",
    "retained_config_map",
    "revision_config_map",
    "selector",
    "service_account",
    "stateful_set",
]
