"""An application at one moment, as its instances report it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TypeVar, cast

from millrace.instance_status import StreamsStatus

__all__ = ["InstanceSnapshot", "Snapshot", "Totals", "dropped"]

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class InstanceSnapshot:
    """One instance."""

    name: str
    """The pod, or the replica of `millrace dev up`."""
    state: str
    """Kafka Streams' state, or what is known of an instance that does not answer."""
    status: StreamsStatus | None = None
    """What it reports; None if it does not answer."""
    restarts: int = 0
    note: str = ""
    """What is wrong with it."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The instances together; what no instance knows yet is None."""

    instances: int
    answering: int
    threads: int
    active: int
    standby: int
    restoring: int
    lag: int | None
    """Records on the brokers that have not been processed yet."""
    records_per_second: float | None
    dropped: int
    """Records that were dropped since the instances started, without those that newer data has replaced."""
    remaining_records: int | None
    """Changelog offsets that tasks wait for before they run."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An application at one moment."""

    name: str
    """With its namespace, if it has one."""
    time_ms: int
    """Since the epoch."""
    instances: tuple[InstanceSnapshot, ...] = ()

    @property
    def totals(self) -> Totals:
        """The instances together."""
        known = [instance.status for instance in self.instances if instance.status is not None]
        return Totals(
            instances=len(self.instances),
            answering=len(known),
            threads=sum(thread.alive for status in known for thread in status.threads),
            active=sum(status.task_counts.active for status in known),
            standby=sum(status.task_counts.standby for status in known),
            restoring=sum(status.task_counts.restoring for status in known),
            lag=_sum([status.lag.total for status in known]),
            records_per_second=_sum([status.processing.records_per_second for status in known]),
            dropped=sum(map(dropped, known)),
            remaining_records=_sum([status.restoration.remaining_records for status in known]),
        )

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-able data, names in snake_case."""
        instances = [
            {
                **{item.name: getattr(instance, item.name) for item in fields(instance)},
                "status": None if instance.status is None else instance.status.to_dict(),
            }
            for instance in self.instances
        ]
        return {"name": self.name, "time_ms": self.time_ms, "totals": asdict(self.totals), "instances": instances}


def dropped(status: StreamsStatus) -> int:
    """Return how many records an instance has dropped, without those that newer data has replaced."""
    return sum(drops.records for drops in status.dropped if not drops.harmless)


def _sum(values: list[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return cast("_Number", sum(known)) if known else None
