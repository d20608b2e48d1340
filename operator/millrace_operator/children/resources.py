"""What containers may use of a node.

The program always has a memory limit, because RocksDB's share of the memory is a fraction of it, and its request is as large,
because state does not shrink when a node gets short of memory. CPU has no limit unless the user sets one: throttling looks
like a stuck thread.
"""

from __future__ import annotations

from typing import Any, Final

from millrace.manifest.fields import quantity_value
from millrace_operator.children.app import AppRevision
from millrace_operator.children.quantities import canonical_quantity

DEFAULT_CPU: Final = "100m"
DEFAULT_MEMORY: Final = "512Mi"


def program_resources(app: AppRevision) -> dict[str, Any]:
    """Return the resources of the program's container: the user's, completed."""
    wanted = app.spec.pod_template.resources
    requests = {name: canonical_quantity(amount) for name, amount in wanted.requests.items()}
    limits = {name: canonical_quantity(amount) for name, amount in wanted.limits.items()}
    memory = limits.get("memory") or requests.get("memory") or DEFAULT_MEMORY
    limits.setdefault("memory", memory)
    requests.setdefault("memory", memory)
    requests.setdefault("cpu", limits.get("cpu", DEFAULT_CPU))
    return {"limits": limits, "requests": requests}


def plan_resources(app: AppRevision) -> dict[str, Any]:
    """Return the resources of the plan Job's container: little is set aside for it, as it holds no state and no records.

    It may still grow to the program's memory, which imports may need, and use one CPU.
    """
    memory = program_resources(app)["limits"]["memory"]
    least = memory if quantity_value(memory) < quantity_value(DEFAULT_MEMORY) else DEFAULT_MEMORY
    return {"limits": {"cpu": "1", "memory": memory}, "requests": {"cpu": DEFAULT_CPU, "memory": least}}
