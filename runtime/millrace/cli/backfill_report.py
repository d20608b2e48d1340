"""What `millrace backfill` shows: stages as a diagram before it runs, progress while it does, and what it did.

As JSON it is one object per line, the last one with everything: that is what the operator reads.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from millrace.errors import StreamsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.backfill.run import BackfillResult, Phase
    from millrace.config import StreamsConfig
    from millrace.records import TopicPartition
    from millrace.topology import Topology

__all__ = ["Reporter", "stage_diagram"]

_LOOK_EVERY_S: Final = 0.5
_PRINT_EVERY_S: Final = 5.0
_MOST_ENDS: Final = 1_000


class Reporter:
    """Shows one backfill; a context manager while it runs.

    Args:
        as_json: print JSON to standard output.
        bar: show a progress bar on a terminal.
    """

    def __init__(self, *, as_json: bool, bar: bool) -> None:
        self._as_json = as_json
        self._state: dict[str, Any] = {"state": "Computing"}
        self._lock = threading.Lock()
        self._printed = ("", 0.0)
        self._ended = threading.Event()
        self._tasks: dict[int, Any] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=as_json or not bar,
        )

    def __enter__(self) -> Self:
        """Show progress."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop showing it."""
        self._ended.set()
        self._bars.stop()

    @contextmanager
    def watching(self, spark: SparkSession) -> Iterator[None]:
        """Follow Spark's stages during this block."""
        watcher = threading.Thread(target=self._watch, args=(spark,), name="backfill-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join()

    def phase(self, phase: Phase, ends: Mapping[TopicPartition, int]) -> None:
        """Say that a phase begins."""
        found = sorted(ends.items())[:_MOST_ENDS]
        self._state |= {
            "state": phase.value if phase.value != "Succeeded" else self._state["state"],
            "ends": [{"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in found],
        }
        # Every later report says so too: of a long log, only the end is read.
        self._state["hasPublished"] = phase.value != "Computing"
        self._print(always=True)

    def report(self, result: BackfillResult, *, dry_run: bool, tables: str | None) -> None:
        """Show what was done."""
        self._state |= {
            "state": "Succeeded",
            "message": _summary(result, dry_run=dry_run, tables=tables),
            "planHash": result.plan.hash,
            "stores": [
                {"name": name, "records": found.records, "bytes": found.bytes, "tombstones": found.tombstones}
                for name, found in sorted(result.stores.items())
            ],
            "outputs": [{"name": name, "records": records} for name, records in sorted(result.outputs.items())],
            "notes": result.notes,
        }
        if self._as_json:
            self._print(always=True)
            return
        console = Console()
        table = Table("Store", "Records", "Bytes", "Deleted", title=result.plan.application_id, title_justify="left")
        for name, found in sorted(result.stores.items()):
            table.add_row(name, f"{found.records:,}", f"{found.bytes:,}", f"{found.tombstones:,}")
        for name, records in sorted(result.outputs.items()):
            table.add_row(f"output {name}", f"{records:,}", "", "")
        console.print(table)
        for note in result.notes:
            console.print(f"Note: {note}", markup=False, soft_wrap=True, highlight=False)
        console.print(self._state["message"], markup=False, soft_wrap=True, highlight=False)

    def failed(self, error: StreamsError) -> None:
        """Say why it ended; the command prints the error itself for people."""
        from millrace.cli.errors import WRONG_INPUT, exit_code

        self._state |= {"state": "Refused" if exit_code(error) == WRONG_INPUT else "Failed", "message": str(error)}
        self._print(always=True)

    def _watch(self, spark: SparkSession) -> None:
        stages: dict[int, dict[str, Any]] = {}
        tracker = spark.sparkContext.statusTracker()
        while not self._ended.wait(_LOOK_EVERY_S):
            active = tracker.getActiveStageIds()
            for number in active:
                info = tracker.getStageInfo(number)
                if info is not None:
                    name = f"stage {number}"
                    stages[number] = {"name": name, "tasks": info.numTasks, "done": info.numCompletedTasks}
                    if number not in self._tasks:
                        self._tasks[number] = self._bars.add_task(name)
            for number, stage in stages.items():
                if number not in active:
                    stage["done"] = stage["tasks"]
                self._bars.update(self._tasks[number], total=stage["tasks"], completed=stage["done"])
            self._state["stages"] = [stages[number] for number in sorted(stages)]
            self._print(always=False)

    def _print(self, *, always: bool) -> None:
        if not self._as_json:
            return
        with self._lock:
            text = json.dumps({"backfill": self._state})
            before, at = self._printed
            if always or (text != before and time.monotonic() - at > _PRINT_EVERY_S):
                print(text, flush=True)
                self._printed = text, time.monotonic()


def _summary(result: BackfillResult, *, dry_run: bool, tables: str | None) -> str:
    done = f"{result.processed:,} records processed, {result.dropped:,} dropped as the application would have"
    if dry_run:
        return f"{done}. Dry run: nothing was written"
    if tables is not None:
        return f"{done}. The tables are in {tables}"
    one = "one transaction" if result.transactions == 1 else f"{result.transactions} transactions"
    return f"{done}. Handed over in {one}: start the application, and it goes on from there"


def stage_diagram(topology: Topology, config: StreamsConfig) -> str:
    """Return the stages, shuffles and partitions of a backfill as a Mermaid flowchart.

    Raises:
        MissingSourceTopicError: input topics do not exist.
        StreamsError: the brokers do not answer.
    """
    from millrace.backfill.stages import plan_stages, shuffled_topics
    from millrace.kafka.client_settings import ClientSettings
    from millrace.kafka.clients import open_admin
    from millrace.kafka.connection_check import check_connection
    from millrace.kafka.internal_topics import partition_counts

    settings = ClientSettings(config, "backfill")
    check_connection(settings)
    plan = topology.build(config).plan()
    counts = partition_counts(plan, open_admin(settings.admin()))
    edges = shuffled_topics(plan, counts)
    lines = ["flowchart LR"]
    boxes: dict[str, str] = {}

    def box(label: str, opening: str, closing: str) -> str:
        if label not in boxes:
            boxes[label] = f"n{len(boxes)}"
            lines.append(f'  {boxes[label]}{opening}"{label}"{closing}')
        return boxes[label]

    for number, stage in enumerate(plan_stages(plan, counts)):
        ids = sorted({task.subtopology for task in stage.tasks})
        passes = "<br/>until nothing changes" if stage.circular else ""
        title = f"Stage {number}: {len(stage.tasks)} tasks<br/>sub-topology {', '.join(map(str, ids))}{passes}"
        here = box(title, "[", "]")
        for item in (item for item in plan.subtopologies if item.id in ids):
            for topic in counts.sources[item.id]:
                if topic in edges:
                    lines.append(
                        f"  {box(f'shuffle<br/>{topic}<br/>{counts.topics[topic]} partitions', '{{', '}}')} --> {here}"
                    )
                else:
                    lines.append(f"  {box(f'{topic}<br/>{counts.topics[topic]} partitions', '[[', ']]')} --> {here}")
            for topic in item.sink_topics:
                if topic in edges:
                    lines.append(
                        f"  {here} --> {box(f'shuffle<br/>{topic}<br/>{counts.topics[topic]} partitions', '{{', '}}')}"
                    )
                else:
                    lines.append(f"  {here} --> {box(topic, '[[', ']]')}")
            lines += [f"  {here} -.- {box(store.name, '[(', ')]')}" for store in item.stores]
    return "\n".join(lines) + "\n"
