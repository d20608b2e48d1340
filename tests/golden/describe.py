"""Compares topologies with Kafka Streams' versions of the same definitions.

    python -m tests.golden.describe tests/golden/data/describe [--topologies MODULE] [--only NAME…]

For each `<topology>.txt` the text of `describe()`, and for each `<topology>.topics.json` the topics of every sub-topology with
their configuration, and the co-partitioned groups. Both files must exist. It prints each mismatch and finally
`N passed, N failed`; exits with 1 if any failed, and with 2 if there is nothing to compare.
"""
# ruff: noqa: T201 (a command-line tool)

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.golden.cases import selected
from tests.golden.replay import build
from tests.topologies.by_name import load_topologies

from millrace.config import StreamsConfig
from millrace.topology import BuiltTopology, Topology

DESCRIPTIONS = Path(__file__).parent / "data" / "describe"
RECORDED_DESCRIPTIONS = 87
"""How many topologies `DESCRIPTIONS` has, so that a vanished recording is noticed."""
DEFAULTS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


def compare(folder: Path, name: str, definition: Callable[..., Any]) -> list[str]:
    """Build a topology and return where it differs from the folder's files; nothing means that it passes."""
    expected = json.loads((folder / f"{name}.topics.json").read_text())
    settings = expected["config"]
    topology = build(definition, settings)
    got = topics(topology.build(StreamsConfig.of({**DEFAULTS, **settings})), expected)
    problems = compare_text(folder, name, topology)
    problems += _difference(_pretty(expected), _pretty({**got, "config": settings}))
    return problems


def compare_text(folder: Path, name: str, topology: Topology) -> list[str]:
    """Return where a topology's description differs from the folder's text; nothing means that it passes."""
    return _difference((folder / f"{name}.txt").read_text(), topology.describe())


def topics(built: BuiltTopology, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Render a topology's topics in the format of the golden files.

    The files only name changelogs that are source topics, so only those are compared.
    """
    found: dict[str, Any] = {
        "copartition_groups": sorted(
            {f"[{', '.join(sorted(group))}]" for part in built.subtopologies for group in part.copartition_groups}
        )
    }
    for part in built.subtopologies:
        name = f"subtopology-{part.id}"
        found[name] = {
            "source_topics": sorted(part.source_topics),
            "sink_topics": sorted(part.sink_topics),
            "changelog": {
                part.changelog_topics[store]: expected.get(name, {})
                .get("changelog", {})
                .get(part.changelog_topics[store])
                for store in sorted(part.source_changelogs)
            },
            "repartition": {
                topic: {
                    "class": "RepartitionTopicConfig",
                    "config": dict(details.config),
                    "enforced": details.enforced,
                    "partitions": details.partitions,
                }
                for topic, details in part.repartition_topics.items()
            },
        }
    return found


def _pretty(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True)


def _difference(expected: str, got: str) -> list[str]:
    lines = difflib.unified_diff(expected.splitlines(), got.splitlines(), "Kafka Streams", "Millrace", lineterm="", n=1)
    return list(lines)


def names(folder: Path) -> list[str]:
    """Return the topologies that a folder describes."""
    return sorted({path.name.removesuffix(".topics.json").removesuffix(".txt") for path in folder.iterdir()})


def main(arguments: list[str] | None = None) -> int:
    """Compare a folder; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare the descriptions of topologies.")
    parser.add_argument("folder", type=Path, nargs="?", default=DESCRIPTIONS)
    parser.add_argument("--topologies", help="a module whose TOPOLOGIES are added to the project's")
    parser.add_argument("--only", nargs="*", default=[], help="names of topologies")
    options = parser.parse_args(arguments)
    definitions = load_topologies(options.topologies)
    recorded = RECORDED_DESCRIPTIONS if options.folder.resolve() == DESCRIPTIONS else None
    try:
        chosen = selected(names(options.folder), options.only, recorded=recorded)
    except (OSError, ValueError) as error:
        parser.error(f"{options.folder}: {error}")
    passed = failed = 0
    for name in chosen:
        try:
            problems = compare(options.folder, name, definitions[name])
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            failed += 1
            print(f"FAIL {name}")
            print(*(f"     {line}" for line in problems), sep="\n")
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
