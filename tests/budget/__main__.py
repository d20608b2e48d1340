"""`python -m tests.budget`: compares what the last `make test` has cost with `limits.toml`, and fails above.

`--refresh` accepts that run's measurements: files run in the order that follows from them, and the next comparison names the
tests that have started more processes since.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.budget.order import MEASURED

_ROOT = Path(__file__).parents[2]
_LIMITS = Path(__file__).with_name("limits.toml")
_RUN = _ROOT / "build" / "tests.json"
_CPU = "CPU in loops"


def check(run: Path, limits: Path, accepted: Path) -> int:
    """Print counts beside their limits; return 0 if all are kept, 1 if not, 2 if there is no run."""
    if not run.exists():
        print("There is no run to look at: `make test` first")
        return 2
    recorded = json.loads(run.read_text())
    counts = Counter(kind for kind, _ in recorded["processes"])
    counts[_CPU] = round(recorded["cpu_s"] / recorded["loop_s"])
    limit_of = tomllib.loads(limits.read_text())
    print(f"{'':20} {'used':>8} {'limit':>8}")
    for name, limit in limit_of.items():
        print(f"{name:20} {counts[name]:>8,} {limit:>8,}{'   TOO MANY' if counts[name] > limit else ''}")
    print(f"{recorded['cpu_s']:.0f} s of processor time in {recorded['wall_s']:.0f} s")
    exceeded = [name for name, limit in limit_of.items() if counts[name] > limit]
    for name in exceeded:
        _explain(name, recorded, json.loads(accepted.read_text()))
    return 1 if exceeded else 0


def _explain(name: str, recorded: dict, accepted: dict) -> None:
    print(f"\n{name}: what has grown since the last `make budget-refresh`")
    if name == _CPU:
        before = accepted["files"]
        growth = {
            file: cost["cpu_s"] - before.get(file, {}).get("cpu_s", 0) for file, cost in recorded["files"].items()
        }
        for file, grown in sorted(growth.items(), key=lambda found: -found[1])[:10]:
            print(f"  {file}: {grown:+.1f} s")
        return
    before = Counter(test for kind, test in accepted["processes"] if kind == name)
    for test, count in Counter(test for kind, test in recorded["processes"] if kind == name).items():
        if count > before[test]:
            print(f"  {test}: {count}, was {before[test]}")


def refresh(run: Path, accepted: Path) -> int:
    """Accept a run's measurements."""
    recorded = json.loads(run.read_text())
    processes = [found for found in recorded["processes"] if found[0] != "cold Python"]  # there are too many to list
    kept = {"files": recorded["files"], "processes": processes}
    text = json.dumps(kept, separators=(",", ":"), sort_keys=True)
    accepted.write_text(text.replace("},", "},\n").replace("],", "],\n") + "\n")
    return 0


def main() -> int:
    """Compare, or accept."""
    parser = argparse.ArgumentParser(prog="python -m tests.budget", description=__doc__)
    parser.add_argument("--refresh", action="store_true", help="accept the last run's measurements")
    return refresh(_RUN, MEASURED) if parser.parse_args().refresh else check(_RUN, _LIMITS, MEASURED)


if __name__ == "__main__":
    sys.exit(main())
