"""The order in which files of tests run: long ones first, and those that compute beside those that wait.

`pytest -n 4 --dist loadfile` gives the next file to the first worker that has nothing left. With long files first, the workers
end together; with both kinds mixed, the processors always have work and never too much.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

MEASURED = Path(__file__).with_name("files.json")
_COMPUTES = 0.5


def measured(scope: Callable[[str], str]) -> Mapping[str, Mapping[str, float]]:
    """Return duration ("s") and processor time ("cpu_s"), in seconds, as last measured.

    Args:
        scope: what a file runs as a part of; several files may run together.
    """
    costs: dict[str, dict[str, float]] = defaultdict(lambda: {"s": 0.0, "cpu_s": 0.0})
    for file, cost in json.loads(MEASURED.read_text())["files"].items():
        for kind, total in costs[scope(file)].items():
            costs[scope(file)][kind] = total + cost[kind]
    return costs


def in_order(files: Iterable[str], costs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return files in the order in which they are to run; those without a measurement come first, as they may be long."""
    files = sorted(files)
    known = sorted((name for name in files if name in costs), key=lambda name: -costs[name]["s"])
    computing = [name for name in known if costs[name]["cpu_s"] > _COMPUTES * costs[name]["s"]]
    waiting = [name for name in known if name not in set(computing)]
    ordered = [name for name in files if name not in costs]
    left = [(kind, sum(costs[name]["s"] for name in kind) or 1.0) for kind in (computing, waiting)]
    done = [0.0, 0.0]
    while any(kind for kind, _ in left):
        # The kind of which a smaller part has had its turn, if it has files left.
        index = min((0, 1), key=lambda number: (not left[number][0], done[number] / left[number][1]))
        name = left[index][0].pop(0)
        done[index] += costs[name]["s"]
        ordered.append(name)
    return ordered
