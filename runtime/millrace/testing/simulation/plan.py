"""The plan of a simulated application: its input, and faults. A seed determines it, and it can be made smaller."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

__all__ = [
    "AT_A_CALL",
    "AT_A_TIME",
    "BEHIND",
    "CALLS",
    "DELAYED",
    "LATE",
    "SILENT",
    "STREAMS_CALLS",
    "WAITS",
    "Fault",
    "Input",
    "MakeRecord",
    "Plan",
    "make_plan",
    "smaller",
]

MakeRecord = Callable[[random.Random], tuple[bytes | None, bytes | None]]
"""Makes the key and value of one input record, serialised."""

AT_A_CALL: Final = (
    *("crash before", "crash after", "lost request", "lost answer"),
    *("pause before", "pause after"),  # of the stream thread: the member's heartbeats continue
    *("freeze before", "freeze after"),  # of the whole process
)
DELAYED: Final = "delayed request"
"""The fault that a request arrives only after its sender has given it up; for streams groups, whose heartbeats change a lot."""
AT_A_TIME: Final = ("crash", "disk lost", "stop", "outage")
BEHIND: Final = "behind"
"""The fault that an instance gets no records of changelogs for a while, so that its standbys fall behind."""
SILENT: Final = "silent"
"""The fault that an instance gets no answer about topics for a while, as when it leads the group and has to provision them."""
LATE: Final = "late request"
"""The fault that a connection breaks after a request: it is sent again, and arrives once more long after that was answered."""
LATE_CALLS: Final = ("commit_transaction", "abort_transaction", "send_offsets")
_LATE: Final = 0.4
"""How many plans have such faults."""
CALLS: Final = {
    "commit_transaction": 6,
    "send_offsets": 5,
    "flush": 4,
    "commit_offsets": 4,
    "list_offsets": 3,
    "poll": 3,
    "join": 2,
    "sync": 3,
    "heartbeat": 2,
    "fetch_offsets": 2,
    "restore": 2,
    "init_transactions": 2,
    "abort_transaction": 2,
    "leave": 1,
    "find_coordinator": 1,
}
"""Requests at which faults happen, with how often."""
STREAMS_CALLS: Final = CALLS | {"heartbeat": 4, "sync": 16, "describe": 3}
"""The same for streams groups, where heartbeats that join, leave or may change the assignment are `join`, `leave` and `sync`."""
WAITS: Final = frozenset({"commit_transaction", "send_offsets", "flush", "init_transactions", "abort_transaction"})
"""Requests whose answer the stream thread waits for."""


@dataclass(frozen=True, slots=True)
class _Chances:
    """How much happens in a run, and when. An item is chosen from each list; one that occurs twice is twice as likely."""

    lasts_s: tuple[float, ...]
    """How long input arrives."""
    faults: tuple[int, ...]
    """How many there are."""
    kinds: tuple[str, ...]
    """The faults at requests."""
    calls: Mapping[str, int]


_CLASSIC: Final = _Chances((1.0, 5.0, 15.0), (0, 1, 1, 2, 2, 3, 5), AT_A_CALL, CALLS)
_STREAMS: Final = _Chances((5.0, 15.0, 30.0), (0, 1, 2, 3, 4, 6), (*AT_A_CALL, DELAYED, DELAYED), STREAMS_CALLS)
"""Tasks move at heartbeats, so it takes longer until something happens."""
_LASTS_LONG_S: Final = (5.0, 15.0, 60.0)
_SILENT: Final = 0.1
_BEHIND: Final = 0.4
"""How many plans with standbys lose an instance while they are behind, longer than the group waits for a member."""


@dataclass(frozen=True, slots=True)
class Input:
    """A record that is written to an input topic."""

    at_s: float
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    takes_s: float = 0.0
    """How much longer than usual the application's code takes for it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong: at an instance's n-th request of a kind (from 0), or at a time if `call` is empty."""

    kind: str
    instance: int
    call: str = ""
    nth: int = 0
    at_s: float = 0.0
    seconds: float = 0.0
    """How long a pause, outage or silence lasts, no changelog is read, a request is late, or the instance is down."""

    def __str__(self) -> str:
        where = f"at its {self.call} number {self.nth}" if self.call else f"at {self.at_s:.3f} s"
        return f"{self.kind}: instance {self.instance}, {where}, for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: the number of instances, their input, and the faults."""

    seed: int
    instances: int
    inputs: tuple[Input, ...]
    faults: tuple[Fault, ...]
    static_members: bool
    record_s: float = 0.0
    """How long the application's code takes for a record, of any topic."""
    request_s: float = 0.0
    """The stream thread's longest wait for an answer, without a fault."""

    def __str__(self) -> str:
        members = "static" if self.static_members else "dynamic"
        lines = [f"seed {self.seed}: {self.instances} instances ({members} members), {len(self.inputs)} input records"]
        if self.record_s or self.request_s:
            lines.append(f"  each record takes {self.record_s:.3f} s, a request up to {self.request_s:.3f} s")
        lines += [f"  {fault}" for fault in self.faults]
        lines += [
            f"  input at {one.at_s:.3f} s: {one.topic}-{one.partition} {one.key!r} {one.value!r}"
            f"{f', takes {one.takes_s:.1f} s longer' if one.takes_s else ''}"
            for one in self.inputs
        ]
        return "\n".join(lines)


def make_plan(
    seed: int,
    makers: Mapping[str, MakeRecord],
    partitions: Mapping[str, int],
    max_instances: int,
    *,
    long: bool,
    streams: bool = False,
) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: any number.
        makers: how to make records, by input topic.
        partitions: how many partitions the input topics have.
        max_instances: there are 1 to this many.
        long: whether there are standbys: input then also arrives after crashed instances are back, and standbys fall behind.
        streams: whether the members' group has the streams protocol, in which members are not static.
    """
    rng = random.Random(f"plan {seed}")  # noqa: S311
    instances = rng.randint(1, max_instances)
    chances = _STREAMS if streams else _CLASSIC
    lasts_s = rng.choice(_LASTS_LONG_S if long else chances.lasts_s)
    inputs = []
    for _ in range(rng.randint(3, 60 if long else 30)):
        topic = rng.choice(sorted(makers))
        key, value = makers[topic](rng)
        inputs.append(Input(rng.random() * lasts_s, topic, rng.randrange(partitions[topic]), key, value))
    faults = [_make_fault(rng, instances, lasts_s, chances) for _ in range(rng.choice(chances.faults))]
    if long and instances > 1 and rng.random() < _BEHIND:
        faults += _lose_an_instance_whose_standbys_are_behind(rng, instances, lasts_s)
    faults += _late_requests(seed, instances)
    static = not streams and rng.random() < 0.5
    plan = Plan(seed, instances, tuple(sorted(inputs, key=lambda one: one.at_s)), tuple(faults), static)
    return _slower(random.Random(f"slow {seed}"), plan) if seed % 2 else plan  # noqa: S311


def _slower(rng: random.Random, plan: Plan) -> Plan:
    """Let the application's code and the brokers take time."""
    slow = rng.choice((0.0, 0.0, 0.1))
    inputs = [replace(one, takes_s=rng.choice((1.0, 3.0, 7.0))) if rng.random() < slow else one for one in plan.inputs]
    record_s, request_s = rng.choice((0.0, 0.001, 0.03, 0.2, 1.0)), rng.choice((0.0, 0.01, 0.2))
    faults = plan.faults
    if rng.random() < _SILENT:
        faults += (Fault(SILENT, rng.randrange(plan.instances), at_s=rng.random(), seconds=70.0),)
    return replace(plan, inputs=tuple(inputs), faults=faults, record_s=record_s, request_s=request_s)


def _make_fault(rng: random.Random, instances: int, lasts_s: float, chances: _Chances) -> Fault:
    instance = rng.randrange(instances)
    seconds = rng.choice((0.01, 0.3, 3.0, 8.0, 14.0, 25.0, 40.0))
    if rng.random() < 0.25:
        return Fault(rng.choice(AT_A_TIME), instance, at_s=rng.random() * (lasts_s + 2.0), seconds=seconds)
    call = rng.choices(list(chances.calls), list(chances.calls.values()))[0]
    return Fault(rng.choice(chances.kinds), instance, call, int(rng.expovariate(0.3)), seconds=seconds)


def _late_requests(seed: int, instances: int) -> list[Fault]:
    rng = random.Random(f"late {seed}")  # noqa: S311 (one of its own, so that the other faults do not depend on these)
    if rng.random() >= _LATE:
        return []
    return [
        Fault(
            LATE,
            rng.randrange(instances),
            call,
            int(rng.expovariate(0.3)),
            seconds=rng.choice((0.15, 0.3, 0.6, 1.0, 3.0)),
        )
        for call in rng.choices(LATE_CALLS, (6, 2, 2), k=rng.randint(1, 4))
    ]


def _lose_an_instance_whose_standbys_are_behind(rng: random.Random, instances: int, lasts_s: float) -> list[Fault]:
    lost = rng.randrange(instances)
    at_s, seconds = rng.random() * lasts_s, rng.choice((14.0, 25.0, 40.0))
    faults = [Fault(BEHIND, other, at_s=at_s, seconds=seconds) for other in range(instances) if other != lost]
    kind = rng.choice(("crash", "disk lost", "stop"))
    return [*faults, Fault(kind, lost, at_s=at_s + rng.random() * lasts_s, seconds=seconds)]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Return plans with less in them, the greatest steps first."""
    for count in (len(plan.inputs) // 2, 4, 1):
        if 0 < count <= len(plan.inputs) and (count < len(plan.inputs) or len(plan.inputs) == 1):
            for start in range(0, len(plan.inputs), count):
                yield replace(plan, inputs=plan.inputs[:start] + plan.inputs[start + count :])
    if plan.record_s or plan.request_s:
        yield replace(plan, record_s=0.0, request_s=0.0)
    if any(one.takes_s for one in plan.inputs):
        yield replace(plan, inputs=tuple(replace(one, takes_s=0.0) for one in plan.inputs))
    for number in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:number] + plan.faults[number + 1 :])
    last = plan.instances - 1
    if last and all(fault.instance != last for fault in plan.faults):
        yield replace(plan, instances=last)
