"""Every topology of the golden cases by name: a function that may take the case's configuration and returns a `Topology`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tests.topologies.joins import JOIN_TOPOLOGIES
from tests.topologies.processors import TOPOLOGIES as PAPI_TOPOLOGIES
from tests.topologies.streams import STREAM_TOPOLOGIES
from tests.topologies.tables import TABLE_TOPOLOGIES
from tests.topologies.windows import WINDOW_TOPOLOGIES

from millrace.topology import Topology

TOPOLOGIES: dict[str, Callable[..., Topology]] = {
    **STREAM_TOPOLOGIES,
    **WINDOW_TOPOLOGIES,
    **TABLE_TOPOLOGIES,
    **JOIN_TOPOLOGIES,
    **PAPI_TOPOLOGIES,
}


def load_topologies(module: str | None = None) -> dict[str, Callable[..., Topology]]:
    """Return these definitions, and those that a module's `TOPOLOGIES` adds."""
    return {**TOPOLOGIES, **(importlib.import_module(module).TOPOLOGIES if module else {})}


def topology(name: str, config: Any = None) -> Topology:
    """Build one topology for a configuration (Kafka's dotted names)."""
    define = TOPOLOGIES[name]
    return define() if name in PAPI_TOPOLOGIES else define(config or {})
