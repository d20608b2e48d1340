"""The topologies that are compared: their inputs and configuration, which Java and Python share, and the Python definitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.golden.cases import CASES
from tests.golden.topologies import TOPOLOGIES

OPTIMIZED = {"topology.optimization": "all"}


@dataclass(frozen=True, slots=True)
class Compared:
    """One topology."""

    name: str
    build: Callable[..., Any]
    inputs: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


def _golden() -> dict[str, Compared]:
    found = {}
    for file in sorted(CASES.glob("*/case.json")):
        case = json.loads(file.read_text())
        name = case["topology"]
        found[name] = Compared(name, TOPOLOGIES[name], tuple(case["inputs"]), case["config"])
    for name, like, settings in (
        ("fk_left", "fk_inner", {}),
        ("opt_reparts_join_all", "opt_reparts_join_none", OPTIMIZED),
    ):
        found[name] = Compared(name, TOPOLOGIES[name], found[like].inputs, settings)
    return found


COMPARED: dict[str, Compared] = _golden()
