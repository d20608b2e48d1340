"""`python -m tests.budget`: compares what the last `make test` and `make e2e` have cost with `limits.toml`, and fails above.

`--refresh` accepts these measurements: the files of `make test` run in the order that follows from them, and the next comparison
names the tests that have started more processes since.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

from tests.budget.order import MEASURED

_BUILD = Path(__file__).parents[2] / "build"
_LIMITS = Path(__file__).with_name("limits.toml")
_CPU = "CPU in loops"
_ALL, _SHARED = "all files", "shared"


def check(build: Path, limits: Path, accepted: Path) -> int:
    """Print the counts of the last run of each kind beside their limits.

    Args:
        build: the folder of the recordings, `test.json` for `make test` and so on.
        limits: for each kind of run its limits.
        accepted: measurements that were accepted.

    Returns:
        0 if all limits are kept, 1 if not, 2 if there is no recording.
    """
    results = [2]
    for run, limit_of in tomllib.loads(limits.read_text()).items():
        path = build / f"{run}.json"
        if path.exists():
            results.append(_compare(run, limit_of, json.loads(path.read_text()), json.loads(accepted.read_text())))
        else:
            print(f"`make {run}` has not been run here")
    return max(results[1:], default=2)


def _compare(run: str, limit_of: dict, recorded: dict, accepted: dict) -> int:
    counts = _counted(recorded["processes"])
    counts[_CPU] = Counter({_ALL: round(recorded["cpu_s"] / recorded["loop_s"])})
    print(f"{f'make {run}':20} {'used':>8} {'limit':>8}")
    exceeded = []
    for kind, limit in limit_of.items():
        used, allowed = counts[kind], limit if isinstance(limit, dict) else {_ALL: limit}
        if not isinstance(limit, dict):
            used = Counter({_ALL: used.total()})
        too_many = {where: count for where, count in used.items() if count > allowed.get(where, 0)}
        print(f"{kind:20} {used.total():>8,} {sum(allowed.values()):>8,}{'   TOO MANY' if too_many else ''}")
        exceeded += [(kind, too_many)] if too_many else []
    print(f"{recorded['cpu_s']:.0f} s of processor time in {recorded['wall_s']:.0f} s\n")
    for kind, too_many in exceeded:
        for where in too_many.keys() - {_ALL}:
            print(f"{where} starts {too_many[where]} {kind}, and may start {limit_of[kind].get(where, 0)}")
        _explain(run, kind, recorded, accepted)
    return 1 if exceeded else 0


def _counted(processes: list[list[str]]) -> defaultdict[str, Counter[str]]:
    """Count processes by kind and by file; what all tests share counts once, however many workers there are."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for kind, test in processes:
        if "::" in test:
            counts[kind][test.partition("::")[0]] += 1
    for kind, _ in {(kind, test) for kind, test in processes if "::" not in test}:
        counts[kind][_SHARED] += 1
    return counts


def _explain(run: str, name: str, recorded: dict, accepted: dict) -> None:
    print(f"{name}: what has grown since the last `make budget-refresh`")
    if name == _CPU:
        before = accepted["files"]
        growth = {
            file: cost["cpu_s"] - before.get(file, {}).get("cpu_s", 0) for file, cost in recorded["files"].items()
        }
        for file, grown in sorted(growth.items(), key=lambda found: -found[1])[:10]:
            print(f"  {file}: {grown:+.1f} s")
        return
    before = Counter(test for kind, test in accepted["processes"].get(run, ()) if kind == name)
    for test, count in Counter(test for kind, test in recorded["processes"] if kind == name).items():
        if count > before[test]:
            print(f"  {test}: {count}, was {before[test]}")


def refresh(build: Path, accepted: Path) -> None:
    """Accept the measurements of the last run of each kind."""
    kept = json.loads(accepted.read_text())
    for path in (build / f"{run}.json" for run in ("test", "e2e")):
        if not path.exists():
            continue
        recorded = json.loads(path.read_text())
        # There are too many Python processes to list them.
        kept["processes"][path.stem] = [found for found in recorded["processes"] if found[0] != "cold Python"]
        if path.stem == "test":
            kept["files"] = recorded["files"]
    text = json.dumps(kept, separators=(",", ":"), sort_keys=True)
    accepted.write_text(text.replace("},", "},\n").replace("],", "],\n") + "\n")


def main() -> int:
    """Compare, or accept."""
    parser = argparse.ArgumentParser(prog="python -m tests.budget", description=__doc__)
    parser.add_argument("--refresh", action="store_true", help="accept the measurements of the last runs")
    if parser.parse_args().refresh:
        refresh(_BUILD, MEASURED)
        return 0
    return check(_BUILD, _LIMITS, MEASURED)


if __name__ == "__main__":
    sys.exit(main())
