"""Generates random cases, has Kafka Streams record them, replays them, and returns the differences."""

from __future__ import annotations

import difflib
import json
import random
import shutil
import traceback
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tests.golden.cases import Case, load
from tests.golden.replay import build, replay
from tests.interop.differential.definitions import COMPARED
from tests.interop.differential.inputs import SUFFIXES, Shape, operations, varied
from tests.interop.differential.recorder import Recorder
from tests.topologies.support import DEFAULTS

from millrace.config import StreamsConfig
from millrace.errors import StreamsError
from millrace.testing import TopologyTestDriver
from millrace.topology import BuiltTopology

NEVER_RAN = -1
"""The failed operation if Kafka Streams refuses the topology."""
BATCH = 400
"""Cases recorded by one JVM."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One case to generate."""

    topology: str
    suffix: str
    seed: int

    def __str__(self) -> str:
        return f"{self.topology}__{self.suffix or 'plain'}__{self.seed}"


def write_case(wanted: Wanted, folder: Path) -> None:
    """Write a case's description and input.

    Args:
        wanted: The case.
        folder: Where to create the case's folder.
    """
    compared, suffix = COMPARED[wanted.topology], SUFFIXES[wanted.suffix]
    seed = zlib.crc32(str(wanted).encode())
    shape = replace(Shape(), **suffix.shape)
    if wanted.seed:
        shape = varied(shape, random.Random(seed))
    negative = wanted.topology.startswith(("ts_negative", "ts_use_partition", "ts_skip"))
    details = {
        "case": str(wanted),
        "topology": wanted.topology,
        "config": dict(compared.settings),
        "config_override": dict(suffix.settings),
        "deferred_commit": suffix.deferred_commit,
        "seed": seed,
    }
    directory = folder / str(wanted)
    directory.mkdir()
    (directory / "case.json").write_text(json.dumps(details))
    lines = [json.dumps(op) + "\n" for op in operations(compared.inputs, shape, seed, negative=negative)]
    (directory / "input.jsonl").write_text("".join(lines))


def differences(
    cases: Iterable[Wanted], recorder: Recorder, directory: Path, *, keep: bool = False
) -> Iterator[tuple[Wanted, list[str]]]:
    """Generate, record and replay cases; yield each with its mismatches.

    Args:
        cases: The cases to compare.
        recorder: Runs Kafka Streams.
        directory: Where to put the cases.
        keep: Whether to keep those that differ.
    """
    remaining = iter(cases)
    while batch := list(islice(remaining, BATCH)):
        folder = directory / "batch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for wanted in batch:
            write_case(wanted, folder)
        recorder.record(folder)
        for wanted in batch:
            problems = _replayed(folder / str(wanted))
            if problems and keep:
                shutil.copytree(folder / str(wanted), directory / str(wanted), dirs_exist_ok=True)
            yield wanted, problems


def _replayed(folder: Path) -> list[str]:
    case = load(folder)
    if case.fails_at == NEVER_RAN:
        return _unless_refused(case)
    try:
        return replay(case, {name: compared.build for name, compared in COMPARED.items()})
    except Exception:
        return [f"the case cannot be run: {traceback.format_exc()}"]


def _unless_refused(case: Case) -> list[str]:
    settings = {**DEFAULTS, **case.config}
    try:
        TopologyTestDriver(build(COMPARED[case.topology].build, case.config), settings).close()
    except StreamsError:
        return []
    return ["Kafka Streams refuses the topology: " + str(case.name)]


def described_differences(names: Iterable[str], recorder: Recorder, directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Let both describe topologies; yield each with the lines that differ."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    wanted = list(names)
    lines = [json.dumps({"topology": name, "config": dict(COMPARED[name].settings)}) + "\n" for name in wanted]
    (directory / "describe.jsonl").write_text("".join(lines))
    recorder.record(directory)
    for name in wanted:
        settings = COMPARED[name].settings
        try:
            topology = build(COMPARED[name].build, settings)
            built = topology.build(StreamsConfig.of({**DEFAULTS, **settings}))
            got = topology.describe(), json.dumps(_topics(built), indent=2, sort_keys=True)
        except Exception:
            yield name, [traceback.format_exc()]
            continue
        topics = json.loads((directory / f"{name}.topics.json").read_text())
        expected = (directory / f"{name}.txt").read_text(), json.dumps(topics, indent=2, sort_keys=True)
        yield name, [line for one, other in zip(expected, got, strict=True) for line in _changed(one, other)]


def _changed(expected: str, got: str) -> list[str]:
    lines = difflib.unified_diff(expected.splitlines(), got.splitlines(), "Kafka Streams", "Millrace", lineterm="", n=1)
    return list(lines)


def _topics(built: BuiltTopology) -> dict[str, Any]:
    found: dict[str, Any] = {
        "copartition_groups": sorted(
            {f"[{', '.join(sorted(group))}]" for part in built.subtopologies for group in part.copartition_groups}
        )
    }
    for part in built.subtopologies:
        if not part.source_topics:
            continue  # only a pattern: no topics yet
        found[f"subtopology-{part.id}"] = {
            "source_topics": sorted(part.source_topics),
            "sink_topics": sorted(part.sink_topics),
            "changelog": {
                topic: {"config": dict(config), "enforced": False, "partitions": None}
                for topic, config in part.changelog_configs.items()
            },
            "source_changelogs": sorted(part.changelog_topics[store] for store in part.source_changelogs),
            "repartition": {
                topic: {"config": dict(details.config), "enforced": details.enforced, "partitions": details.partitions}
                for topic, details in part.repartition_topics.items()
            },
        }
    return found
