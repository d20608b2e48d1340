"""A model of a classic group's coordinator: members and generations.

Takes the request objects that Millrace's members send (kafka-python's), and answers with objects that have the same fields as the
library's, at once or, for JoinGroup and SyncGroup, when the group is ready. So our own member runs against it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from millrace.records import TopicPartition
from millrace.testing.simulation.group_offsets import (
    ILLEGAL_GENERATION,
    UNKNOWN_MEMBER,
    Answer,
    BaseGroup,
    Handler,
    Timer,
    Timers,
)

__all__ = ["Group"]

REBALANCE_IN_PROGRESS: Final = 27
MEMBER_ID_REQUIRED: Final = 79
FENCED_INSTANCE: Final = 82

_EMPTY, _PREPARING, _COMPLETING, _STABLE = "empty", "preparing", "completing", "stable"
_NEW_MEMBER_S: Final = 300.0


@dataclass(slots=True)
class _Member:
    member_id: str
    instance_id: str | None
    session_s: float
    rebalance_s: float
    metadata: bytes
    joining: Answer | None = None
    syncing: Answer | None = None
    assignment: bytes = b""
    timer: Timer | None = None


class Group(BaseGroup):
    """One group and its coordinator.

    Args:
        timers: for sessions and rebalances.
        initial_delay_s: how long an empty group waits for more members (`group.initial.rebalance.delay.ms`).
        new_member_id: returns an id for a member, given how many there have been.
    """

    def __init__(
        self,
        timers: Timers,
        initial_delay_s: float = 0.0,
        new_member_id: Callable[[int], str] = lambda number: f"member-{number:04d}",
    ) -> None:
        super().__init__()
        self._timers = timers
        self._initial_delay_s = initial_delay_s
        self._new_member_id = new_member_id
        self._ids = 0
        self.state = _EMPTY
        self.members: dict[str, _Member] = {}
        self._static: dict[str, str] = {}
        self._promised: dict[str, Timer] = {}
        """Ids given to members that are yet to join with them."""
        self.leader: str | None = None
        """The id of the member that assigns."""
        self._timer: Timer | None = None

    def _handlers(self) -> dict[type, Handler]:
        return {
            **super()._handlers(),
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: self._heartbeat,
            LeaveGroupRequest: self._leave,
        }

    def is_settled(self, members: Collection[str]) -> bool:
        """Whether its members' tasks will not change soon; members also know of a rebalance that has begun."""
        del members
        return True

    # Offsets

    def _check_transaction(
        self, partitions: Collection[TopicPartition], generation: int, member_id: str, instance_id: str | None
    ) -> int:
        del partitions
        return self._check(member_id, instance_id, generation)

    def _check_commit(
        self, partitions: Collection[TopicPartition], generation: int, member_id: str, instance_id: str | None
    ) -> int:
        del partitions
        if generation < 0 and self.state == _EMPTY:
            return 0
        code = self._check(member_id, instance_id, generation)
        if not code and self.state == _COMPLETING:
            code = REBALANCE_IN_PROGRESS
        if not code:
            self._beat(self.members[member_id])
        return code

    # Joining

    def _join(self, request: Any, answer: Answer) -> None:
        member_id, instance = request.member_id, request.group_instance_id
        if not member_id and instance is None:
            member_id = self._new_id()
            self._promised[member_id] = self._timers.later(
                request.session_timeout_ms / 1000, lambda: self._promise_expired(member_id)
            )
            answer(self._refusal(MEMBER_ID_REQUIRED, member_id))
        elif not member_id and instance in self._static:
            self._replace(request, self.members[self._static[instance]], answer)
        elif member_id in self._promised or not member_id:
            member_id = member_id or self._new_id()
            self._forget_promise(member_id)
            member = self._new_member(member_id, request, answer)
            self.members[member_id] = member
            if instance is not None:
                self._static[instance] = member_id
            self._schedule(member, _NEW_MEMBER_S)
            self._prepare()
        elif code := self._check(member_id, instance, None):
            answer(self._refusal(code, member_id))
        else:
            self._rejoin(self.members[member_id], request, answer)

    def _new_member(self, member_id: str, request: Any, answer: Answer | None) -> _Member:
        return _Member(
            member_id,
            request.group_instance_id,
            request.session_timeout_ms / 1000,
            request.rebalance_timeout_ms / 1000,
            bytes(request.protocols[0].metadata),
            joining=answer,
        )

    def _rejoin(self, member: _Member, request: Any, answer: Answer) -> None:
        metadata = bytes(request.protocols[0].metadata)
        same = metadata == member.metadata
        stays = (self.state == _COMPLETING and same) or (
            self.state == _STABLE and same and member.member_id != self.leader
        )
        member.metadata = metadata
        if stays:
            answer(self._joined(member.member_id))
            return
        member.joining = answer
        self._prepare()

    def _replace(self, request: Any, old: _Member, answer: Answer) -> None:
        """Let a static member that has restarted take its former self's place."""
        new = self._new_member(self._new_id(), request, None)
        new.assignment = old.assignment
        self._stop_timer(old)
        if old.joining is not None:
            old.joining(self._refusal(FENCED_INSTANCE, old.member_id))
        if old.syncing is not None:
            old.syncing(SimpleNamespace(error_code=FENCED_INSTANCE, assignment=b""))
        self.members = {new.member_id if key == old.member_id else key: one for key, one in self.members.items()}
        self.members[new.member_id] = new
        self._static[request.group_instance_id] = new.member_id
        was_leader = self.leader == old.member_id
        if was_leader:
            self.leader = new.member_id
        self._schedule(new, new.session_s)
        if self.state == _STABLE:
            answer(self._joined(new.member_id, skip_assignment=was_leader))
            return
        new.joining = answer
        self._prepare()

    def _prepare(self) -> None:
        """Begin a rebalance, if none has begun, and end it if nobody is missing."""
        if self.state != _PREPARING:
            if self.state == _COMPLETING:
                for member in self.members.values():
                    member.assignment = b""
                    if member.syncing is not None:
                        syncing, member.syncing = member.syncing, None
                        self._beat(member)
                        syncing(SimpleNamespace(error_code=REBALANCE_IN_PROGRESS, assignment=b""))
            initial = self.state == _EMPTY
            self.state = _PREPARING
            self._stop_group_timer()
            longest = max((member.rebalance_s for member in self.members.values()), default=0.0)
            self._timer = self._timers.later(self._initial_delay_s if initial else longest, self._complete)
            if initial:  # it ends when that time is over, even if members have ids and are yet to join
                if self._initial_delay_s <= 0:
                    self._complete()
                return
        self._complete_if_all_joined()

    def _complete_if_all_joined(self) -> None:
        all_joined = all(member.joining is not None for member in self.members.values())
        if self.state == _PREPARING and not self._promised and all_joined:
            self._complete()

    def _complete(self) -> None:
        """End a rebalance: members that have not rejoined are removed, unless they are static."""
        self._stop_group_timer()
        for member in [one for one in self.members.values() if one.joining is None and one.instance_id is None]:
            self._remove(member)
        joined = [member for member in self.members.values() if member.joining is not None]
        if self.members and not joined:
            longest = max(member.rebalance_s for member in self.members.values())
            self._timer = self._timers.later(longest, self._complete)
            return
        self.generation += 1
        if not self.members:
            self.state, self.leader = _EMPTY, None
            return
        self.state = _COMPLETING
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id
        generation = self.generation
        for member in joined:
            answer, member.joining = member.joining, None
            self._beat(member)
            assert answer is not None
            answer(self._joined(member.member_id))
        longest = max(member.rebalance_s for member in self.members.values())
        self._timer = self._timers.later(longest, lambda: self._sync_expired(generation))

    def _joined(self, member_id: str, *, skip_assignment: bool = False) -> SimpleNamespace:
        members = [
            SimpleNamespace(member_id=one.member_id, group_instance_id=one.instance_id, metadata=one.metadata)
            for one in self.members.values()
        ]
        return SimpleNamespace(
            error_code=0,
            generation_id=self.generation,
            member_id=member_id,
            leader=self.leader,
            skip_assignment=skip_assignment,
            members=members if member_id == self.leader else [],
        )

    def _refusal(self, code: int, member_id: str) -> SimpleNamespace:
        return SimpleNamespace(
            error_code=code, generation_id=-1, member_id=member_id, leader="", skip_assignment=False, members=[]
        )

    # Syncing and staying

    def _sync(self, request: Any, answer: Answer) -> None:
        code = self._check(request.member_id, request.group_instance_id, request.generation_id)
        if not code and self.state == _PREPARING:
            code = REBALANCE_IN_PROGRESS
        if code:
            answer(SimpleNamespace(error_code=code, assignment=b""))
            return
        member = self.members[request.member_id]
        if self.state == _STABLE:
            self._beat(member)
            answer(SimpleNamespace(error_code=0, assignment=member.assignment))
            return
        member.syncing = answer
        if member.member_id != self.leader:
            return
        given = {item.member_id: bytes(item.assignment) for item in request.assignments}
        self.state = _STABLE
        for one in self.members.values():
            one.assignment = given.get(one.member_id, b"")
        for one in list(self.members.values()):
            if one.syncing is not None:
                syncing, one.syncing = one.syncing, None
                self._beat(one)
                syncing(SimpleNamespace(error_code=0, assignment=one.assignment))
        self._stop_group_timer()

    def _sync_expired(self, generation: int) -> None:
        if self.state == _COMPLETING and self.generation == generation:
            for member in [one for one in self.members.values() if one.syncing is None]:
                self._remove(member)
            self._prepare()

    def _heartbeat(self, request: Any, answer: Answer) -> None:
        code = self._check(request.member_id, request.group_instance_id, request.generation_id)
        if not code:
            self._beat(self.members[request.member_id])
            code = REBALANCE_IN_PROGRESS if self.state == _PREPARING else 0
        answer(SimpleNamespace(error_code=code))

    def _leave(self, request: Any, answer: Answer) -> None:
        left = False
        for item in request.members or ():
            member_id = item.member_id
            if item.group_instance_id is not None:
                known = self._static.get(item.group_instance_id)
                if known is None or (member_id and member_id != known):
                    continue
                member_id = known
            if member_id in self._promised:
                self._forget_promise(member_id)
                left = True
            elif member_id in self.members:
                self._remove(self.members[member_id])
                left = True
        if left:
            self._after_removal()
        answer(SimpleNamespace(error_code=0))

    # Inside

    def _check(self, member_id: str, instance_id: str | None, generation: int | None) -> int:
        if instance_id is not None and instance_id not in self._static:
            return UNKNOWN_MEMBER
        if instance_id is not None and self._static[instance_id] != member_id:
            return FENCED_INSTANCE
        if member_id not in self.members:
            return UNKNOWN_MEMBER
        return ILLEGAL_GENERATION if generation is not None and generation != self.generation else 0

    def _new_id(self) -> str:
        self._ids += 1
        return self._new_member_id(self._ids)

    def _promise_expired(self, member_id: str) -> None:
        if self._promised.pop(member_id, None) is not None:
            self._complete_if_all_joined()

    def _forget_promise(self, member_id: str) -> None:
        timer = self._promised.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def _beat(self, member: _Member) -> None:
        self._schedule(member, member.session_s)

    def _schedule(self, member: _Member, after_s: float) -> None:
        self._stop_timer(member)
        member.timer = self._timers.later(after_s, lambda: self._session_over(member))

    def _session_over(self, member: _Member) -> None:
        if self.members.get(member.member_id) is not member:
            return
        if member.joining is not None or member.syncing is not None:
            self._beat(member)  # it waits for the group, and cannot send heartbeats meanwhile
            return
        self._remove(member)
        self._after_removal()

    def _remove(self, member: _Member) -> None:
        self._stop_timer(member)
        del self.members[member.member_id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]
        for waiting in (member.joining, member.syncing):
            if waiting is not None:
                answer = self._refusal(UNKNOWN_MEMBER, member.member_id)
                answer.assignment = b""
                waiting(answer)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _after_removal(self) -> None:
        if self.state == _PREPARING:
            self._complete_if_all_joined()
        elif self.state != _EMPTY:
            self._prepare()

    def _stop_timer(self, member: _Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None

    def _stop_group_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
