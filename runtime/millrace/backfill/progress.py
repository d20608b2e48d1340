"""How far the tasks of a backfill are, as the driver knows it.

Spark tells how many of a stage's tasks are done, but not how many records a task in Python has processed. So tasks tell the
driver themselves, every second, in datagrams with everything they have done so far: one that is lost is made up for by the next,
and a task never waits for the driver. A random token keeps strangers out. Nothing but what is shown depends on it.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from millrace.backfill.stages import Stage

__all__ = ["Address", "Progress", "StageProgress", "Teller"]

_TELL_EVERY_S: Final = 1.0
_RATE_OVER_S: Final = 30.0
_DATAGRAM_BYTES: Final = 2048


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far a stage is."""

    name: str
    """The sub-topologies that it computes."""
    tasks: int
    done: int = 0
    records: int = 0
    """Processed so far, by the current pass if there are several."""
    bytes: int = 0
    """Of their keys and values."""
    records_per_second: int | None = None
    """Over the last half minute; None if it does not run."""
    eta_seconds: int | None = None
    """None as long as nobody knows: before its first task is done, if it reads what other stages send."""


class Address(NamedTuple):
    """Where tasks tell what they have done; it is pickled into the executors."""

    host: str
    port: int
    token: str


class Teller:
    """Tells the driver how far one task is.

    Raises:
        OSError: The driver's name is not known here.
    """

    def __init__(self, address: Address, stage: int, number: int, task: str) -> None:
        self._about = {"token": address.token, "stage": stage, "pass": number, "task": task}
        family, *_, driver = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
        self._driver = driver
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._told_at = 0.0

    def tell(self, records: int, size: int, *, done: bool = False) -> None:
        """Tell what the task has done so far, if the last time was long ago or it is done."""
        now = time.monotonic()
        if not done and now - self._told_at < _TELL_EVERY_S:
            return
        self._told_at = now
        report = {**self._about, "records": records, "bytes": size, "done": done}
        try:
            self._socket.sendto(json.dumps(report).encode(), self._driver)
        except OSError:
            return  # the next one may get there

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class _Task(NamedTuple):
    records: int
    bytes: int
    done: bool


@dataclass(slots=True)
class _Stage:
    name: str
    tasks: int
    expected: int | None
    """How many offsets it reads; None if some of its records come from other stages or from files."""
    number: int = 0
    """Of the pass that runs."""
    told: dict[str, _Task] = field(default_factory=dict)
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    """Times and how many records were processed then."""

    def shown(self) -> StageProgress:
        tasks = self.told.values()
        records, done = sum(task.records for task in tasks), sum(task.done for task in tasks)
        rate = self._rate() if done < self.tasks else None
        left = self._records_left(records, done)
        return StageProgress(
            self.name,
            self.tasks,
            done,
            records,
            sum(task.bytes for task in tasks),
            rate,
            None if not rate or left is None else round(left / rate),
        )

    def _rate(self) -> int | None:
        if len(self.samples) < 2:
            return None
        (start, before), (end, after) = self.samples[0], self.samples[-1]
        return round((after - before) / (end - start)) if end > start else None

    def _records_left(self, records: int, done: int) -> float | None:
        expected: float | None = self.expected
        if expected is None and done:
            expected = self.tasks * sum(task.records for task in self.told.values() if task.done) / done
        return None if expected is None else max(expected - records, 0)


class Progress:
    """Hears from tasks how far they are; a context manager.

    Args:
        host: under which executors reach the driver.
        bind: where to listen.
        clock: seconds, for rates.
    """

    def __init__(
        self, host: str = "127.0.0.1", bind: str = "127.0.0.1", clock: Callable[[], float] = time.monotonic
    ) -> None:
        family, *_, here = socket.getaddrinfo(bind, 0, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind(here)
        self._clock = clock
        self._stages: dict[int, _Stage] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="backfill-progress", daemon=True)
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_hex(16))

    def __enter__(self) -> Self:
        """Begin to listen."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        with socket.socket(self._socket.family, socket.SOCK_DGRAM) as own:
            own.sendto(self.address.token.encode(), self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def expect(self, number: int, stage: Stage, records: int | None) -> None:
        """Say that a stage follows.

        Args:
            number: its place among the stages.
            stage: what it consists of.
            records: about how many it will process, if that is known.
        """
        ids = sorted({task.subtopology for task in stage.tasks})
        name = f"sub-topolog{'y' if len(ids) == 1 else 'ies'} {', '.join(map(str, ids))}"
        with self._lock:
            self._stages[number] = _Stage(name, len(stage.tasks), records)

    def finish(self) -> None:
        """Say that all stages are done, whether their last datagrams have arrived or not."""
        with self._lock:
            for stage in self._stages.values():
                told = dict(enumerate(stage.told.values()))
                stage.told = {
                    str(number): told.get(number, _Task(0, 0, True))._replace(done=True)
                    for number in range(stage.tasks)
                }

    def stages(self) -> list[StageProgress]:
        """Return all stages, in order."""
        with self._lock:
            return [self._stages[number].shown() for number in sorted(self._stages)]

    def _listen(self) -> None:
        while True:
            data = self._socket.recv(_DATAGRAM_BYTES)
            if data == self.address.token.encode():
                return
            try:
                report = json.loads(data)
                if report["token"] == self.address.token:
                    self._hear(report)
            except (ValueError, KeyError, TypeError):
                continue  # a stranger

    def _hear(self, report: Mapping[str, int | str]) -> None:
        with self._lock:
            stage = self._stages.get(int(report["stage"]))
            number = int(report["pass"])
            if stage is None or number < stage.number:
                return
            if number > stage.number:
                stage.number = number
                stage.told.clear()
                stage.samples.clear()
            known = stage.told.get(str(report["task"]))
            if known is not None and known.done:
                return  # datagrams may overtake each other
            stage.told[str(report["task"])] = _Task(int(report["records"]), int(report["bytes"]), bool(report["done"]))
            now = self._clock()
            stage.samples.append((now, sum(task.records for task in stage.told.values())))
            while now - stage.samples[0][0] > _RATE_OVER_S:
                stage.samples.popleft()
