"""What a job reports in the log of its driver: lines of JSON, of which the last one counts."""

from __future__ import annotations

import json
import logging
import re
from typing import Final, Literal

from pydantic import ValidationError

from millrace.manifest import StreamsBackfillSpec
from millrace.manifest.base_model import StatusModel
from millrace.manifest.streamsbackfill import StageProgress, StoreResult
from millrace.manifest.streamsreset import PartitionOffset

log = logging.getLogger(__name__)

_BEGINS: Final = '{"backfill":'
_PUBLISHES: Final = re.compile(r'\{"backfill": *\{"state": *"(Publishing|Succeeded)"')
_MOST: Final = 1000
_LONGEST_MESSAGE: Final = 4000
_LONGEST_NAME: Final = 512


class Progress(StatusModel):
    """One report of a job."""

    state: Literal["Computing", "Publishing", "Succeeded", "Refused", "Failed"]
    """`Publishing` is reported before the first write that could become visible without the others."""
    message: str = ""
    """The reason, for the user."""
    plan_hash: str | None = None
    """The hash of the plan that it computes."""
    stages: tuple[StageProgress, ...] = ()
    """The stages of the job."""
    ends: tuple[PartitionOffset, ...] = ()
    """Where history ends."""
    stores: tuple[StoreResult, ...] = ()
    """What was computed for each store."""
    outputs: tuple[StoreResult, ...] = ()
    """What was computed for each output topic."""
    notes: tuple[str, ...] = ()
    """Remarks about what may surprise the user."""
    has_published: bool = False
    """Whether this report or an earlier one says that it publishes."""
    in_one_transaction: bool = False
    """Whether it publishes in one transaction, so that either everything becomes visible or nothing."""

    @property
    def stages_done(self) -> str | None:
        """How many stages are done, for kubectl."""
        if not self.stages:
            return None
        done = sum(stage.tasks is not None and stage.done == stage.tasks for stage in self.stages)
        return f"{done}/{len(self.stages)}"


def parse_progress(text: str) -> Progress | None:
    r"""Return the last report in a log; None if there is none that this version can read.

    >>> parse_progress('starting\n{"backfill": {"state": "Computing"}}\nnoise\n').state
    'Computing'
    """
    lines = [line for line in text.splitlines() if line.startswith(_BEGINS)]
    for line in reversed(lines):
        try:
            report = json.loads(line, parse_float=lambda number: round(float(number)))["backfill"]
            for name in ("stages", "ends", "stores", "outputs", "notes"):
                if isinstance(report.get(name), list):
                    report[name] = tuple(report[name][:_MOST])
            if isinstance(report.get("message"), str):
                report["message"] = report["message"][:_LONGEST_MESSAGE]
            for stage in report.get("stages") or ():
                if isinstance(stage.get("name"), str):
                    stage["name"] = stage["name"][:_LONGEST_NAME]
            earlier = any(_PUBLISHES.match(other) for other in lines)
            report["hasPublished"] = bool(report.get("hasPublished")) or earlier
            return Progress.model_validate(report)
        except (ValueError, TypeError, AttributeError, ValidationError) as error:
            log.debug("a line of progress cannot be read: %s", error)
    return None


def last_words(text: str, most: int = 1500) -> str:
    """Return the end of a log without reports, as a reason for a failure."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(_BEGINS)]
    return "\n".join(lines)[-most:]


def summary(spec: StreamsBackfillSpec, progress: Progress | None) -> str:
    """Return what a successful job has done, as a sentence for the user."""
    if progress is None:
        return "The job has succeeded. Its driver's log is gone, so the counts are not known."
    stores = len(progress.stores)
    records = sum(item.records or 0 for item in progress.stores)
    what = f"{records} records in {stores} store{'' if stores == 1 else 's'}"
    if spec.dry_run:
        return f"Dry run, nothing was written. A backfill would write {what}."
    if not spec.changes_kafka:
        return f"Written to {spec.sink}: {what}."
    published = f": {what}" if stores else ""  # an earlier attempt has said it, or there are none
    return f"The state is computed and published{published}. The application continues from there."
