"""What `millrace backfill` shows: a diagram of its stages, progress while it runs, and a report.

As JSON it is one object per line, the last one with everything, which the operator reads.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from millrace.backfill.stages import Stage, plan_stages, shuffled_topics
from millrace.errors import StreamsError
from millrace.plan.partition_counts import PartitionCounts
from millrace.plan.topology_plan import TopologyPlan
from millrace.topology.diagram import Box, Graph, Shape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.backfill.progress import Progress as StageProgresses
    from millrace.backfill.progress import StageProgress
    from millrace.backfill.run import BackfillResult, Phase
    from millrace.records import TopicPartition

__all__ = ["Reporter", "graph_of_backfill"]

_LOOK_EVERY_S: Final = 0.5
_PRINT_EVERY_S: Final = 5.0
_REPEAT_EVERY_S: Final = 30.0
"""How often a report is repeated if nothing changes: logs are rotated, and only their ends are read."""
_LONGEST_MESSAGE: Final = 4_000
_MOST_ENDS: Final = 1_000


def graph_of_backfill(plan: TopologyPlan, counts: PartitionCounts) -> Graph:
    """Return the stages of an application's backfill, with what they read, write and keep, and the shuffles between them."""
    shuffled = shuffled_topics(plan, counts)

    def topic_box(topic: str) -> Box:
        count = counts.topics.get(topic)
        label = topic if count is None else f"{topic}, {_number(count, 'partition')}"
        if topic in shuffled:
            return Box(f"topic {topic}", f"shuffle {label}", Shape.SHUFFLE)
        return Box(f"topic {topic}", label, Shape.TOPIC)

    boxes: dict[str, Box] = {}
    edges: dict[tuple[str, str], None] = {}
    for number, stage in enumerate(plan_stages(plan, counts)):
        here = _stage_box(number, stage)
        ids = {task.subtopology for task in stage.tasks}
        for item in (item for item in plan.subtopologies if item.id in ids):
            found = [(topic_box(topic), here) for topic in counts.sources[item.id]]
            found += [(here, topic_box(topic)) for topic in item.sink_topics]
            found += [(here, Box(f"store {store.name}", store.name, Shape.STORE)) for store in item.stores]
            for start, end in found:
                boxes |= {start.key: start, end.key: end}
                edges[start.key, end.key] = None
    return Graph(f"Backfill of {plan.application_id}", tuple(boxes.values()), tuple(edges))


def _stage_box(number: int, stage: Stage) -> Box:
    ids = sorted({task.subtopology for task in stage.tasks})
    of = f"sub-topolog{'y' if len(ids) == 1 else 'ies'} {', '.join(map(str, ids))}"
    passes = ", until nothing changes" if stage.circular else ""
    return Box(f"stage {number}", f"Stage {number}: {_number(len(stage.tasks), 'task')} of {of}{passes}", Shape.STAGE)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


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
            TextColumn("{task.fields[figures]}"),
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
    def watching(self, spark: SparkSession) -> Iterator[StageProgresses]:
        """Receive the tasks' progress and show it during this block."""
        from millrace.backfill.progress import Progress as StageProgresses

        conf = spark.sparkContext.getConf()
        host = conf.get("spark.driver.host") or "127.0.0.1"
        with StageProgresses(host, conf.get("spark.driver.bindAddress") or host) as progress:
            watcher = threading.Thread(target=self._watch, args=(progress,), name="backfill-report", daemon=True)
            watcher.start()
            try:
                yield progress
            finally:
                self._ended.set()
                watcher.join()
                self._show(progress.stages())

    def phase(self, phase: Phase, ends: Mapping[TopicPartition, int]) -> None:
        """Say that a phase begins."""
        found = sorted(ends.items())[:_MOST_ENDS]
        self._state |= {
            "state": self._state["state"] if phase.value == "Succeeded" else phase.value.removesuffix("InParts"),
            "ends": [{"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in found],
            # Every later report says so too: only the end of a long log is read.
            "hasPublished": phase.value != "Computing",
            "inOneTransaction": phase.value in {"Publishing", "Succeeded"},
        }
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
        """Report why it failed; the command has printed the whole error for people."""
        from millrace.cli.errors import WRONG_INPUT, exit_code

        state = "Refused" if exit_code(error) == WRONG_INPUT else "Failed"
        self._state |= {"state": state, "message": str(error)[:_LONGEST_MESSAGE]}
        self._print(always=True)

    def _watch(self, progress: StageProgresses) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            self._show(progress.stages())
            self._print(always=False)

    def _show(self, stages: Sequence[StageProgress]) -> None:
        self._state["stages"] = [
            {
                "name": stage.name,
                "tasks": stage.tasks,
                "done": stage.done,
                "records": stage.records,
                "bytes": stage.bytes,
                **({} if stage.records_per_second is None else {"recordsPerSecond": stage.records_per_second}),
                **({} if stage.eta_seconds is None else {"etaSeconds": stage.eta_seconds}),
            }
            for stage in stages
        ]
        for number, stage in enumerate(stages):
            if number not in self._tasks:
                self._tasks[number] = self._bars.add_task(f"stage {number}", figures="")
            self._bars.update(self._tasks[number], total=stage.tasks, completed=stage.done, figures=_figures(stage))

    def _print(self, *, always: bool) -> None:
        if not self._as_json:
            return
        with self._lock:
            text = json.dumps({"backfill": self._state})
            before, at = self._printed
            pause_s = _REPEAT_EVERY_S if text == before else _PRINT_EVERY_S
            if always or time.monotonic() - at > pause_s:
                try:
                    print(text, flush=True)
                except BrokenPipeError:  # the reader has ended, which is no reason to stop
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                self._printed = text, time.monotonic()


def _figures(stage: StageProgress) -> str:
    """Return what a stage's bar says, for example `1,200 records, 40.0 kB, 300/s, 0:00:12 left`."""
    found = [f"{stage.records:,} records", decimal(stage.bytes)]
    if stage.records_per_second is not None:
        found.append(f"{stage.records_per_second:,}/s")
    if stage.eta_seconds is not None:
        found.append(f"{timedelta(seconds=stage.eta_seconds)} left")
    return ", ".join(found)


def _summary(result: BackfillResult, *, dry_run: bool, tables: str | None) -> str:
    done = f"{result.processed:,} records processed, {result.dropped:,} dropped as in the application"
    if dry_run:
        return f"{done}. Dry run: nothing was written"
    if tables is not None:
        return f"{done}. The tables are in {tables}"
    if not result.transactions:
        return "An earlier attempt has handed over: start the application, and it continues from there"
    one = "one transaction" if result.transactions == 1 else f"{result.transactions} transactions"
    return f"{done}. Handed over in {one}: start the application, and it continues from there"
