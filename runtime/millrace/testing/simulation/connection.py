"""The connection of a group member to the simulated cluster, in place of kafka-python's networking.

The member's own coroutines run on it unchanged, with their requests, retries and heartbeats; only the network is simulated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from millrace.errors import StreamsTimeoutError
from millrace.kafka.streams_messages import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from millrace.testing.simulation.host import CrashedError, Host

__all__ = ["SimulatedConnection"]

_NAMES: Final[dict[type, str]] = {
    JoinGroupRequest: "join",
    SyncGroupRequest: "sync",
    HeartbeatRequest: "heartbeat",
    LeaveGroupRequest: "leave",
    OffsetCommitRequest: "commit_offsets",
    OffsetFetchRequest: "fetch_offsets",
    FindCoordinatorRequest: "find_coordinator",
    MetadataRequest: "metadata",
    StreamsGroupDescribeRequest: "describe",
}
_TIMEOUT_S: Final = 30.0
_FOREVER_S: Final = 1e9


class SimulatedConnection:
    """Stands for `millrace.kafka.connection.Connection`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.world
        self._closed = False
        node = SimpleNamespace(nodeId=0)
        self.manager = SimpleNamespace(
            least_loaded_node=lambda: 0,
            cluster=SimpleNamespace(
                broker_metadata=lambda _node: node, add_coordinator=lambda *_: "group", refresh_metadata=None
            ),
            bootstrap_async=self._bootstrap,
        )

    async def _bootstrap(self, _timeout_ms: int) -> None:
        return

    def start(self, function: Callable[..., Awaitable[object]], *args: object) -> Future:
        """Start a coroutine function soon, and return its future."""
        outcome = Future()

        async def run() -> object:
            return await function(*args)

        def begin() -> None:
            if not self._wait_until_awake(begin):
                self._advance(run(), outcome)

        self._world.scheduler.soon(begin)
        return outcome

    def _wait_until_awake(self, call: Callable[[], None]) -> bool:
        """Return whether the host is frozen; if so, call something once it is no longer."""
        frozen_s = self._host.frozen_until_s - self._world.scheduler.now_s
        if self._closed or not self._host.alive or frozen_s <= 0:
            return False
        self._world.scheduler.later(frozen_s, call)
        return True

    def _advance(self, coroutine: Coroutine[Any, Any, object], outcome: Future) -> None:
        """Run a coroutine until it waits again."""
        if self._closed or not self._host.alive:
            coroutine.close()
            return
        if self._wait_until_awake(lambda: self._advance(coroutine, outcome)):
            return
        try:
            waits_for: Future = coroutine.send(None)
        except StopIteration as end:
            outcome.success(end.value)
            self._host.wake()
        except CrashedError:
            return
        except Exception as error:
            outcome.failure(error)
            self._host.wake()
        else:
            waits_for.add_both(lambda _: self._advance(coroutine, outcome))

    def run(self, function: Callable[..., Awaitable[object]], *args: object) -> Any:
        """Run a coroutine function and wait for its result."""
        return self.run_unless(lambda: False, function, *args)

    def run_unless(
        self, given_up: Callable[[], bool], function: Callable[..., Awaitable[object]], *args: object
    ) -> Any:
        """Run a coroutine function and wait for its result, unless the wait is given up.

        Raises:
            StreamsTimeoutError: the wait was given up.
        """
        future = self.start(function, *args)
        self._world.scheduler.wait_for(lambda: future.is_done or not self._host.alive or given_up(), _FOREVER_S)
        self._host.require_alive()
        if not future.is_done:
            raise StreamsTimeoutError(
                "The group's coordinator has not answered, and this thread no longer waits for it"
            )
        if future.exception is not None:
            raise future.exception
        return future.value

    async def send(self, request: object, _node: object, timeout_ms: int | None = None) -> Any:
        """Send a request and return its answer.

        Raises:
            kafka.errors.KafkaError: request or answer were lost.
        """
        scheduler = self._world.scheduler
        answered = Future()
        timeout_s = _TIMEOUT_S if timeout_ms is None else timeout_ms / 1000

        def answer(response: object) -> None:
            scheduler.soon(lambda: None if answered.is_done else answered.success(response))

        def lose() -> Exception:
            scheduler.later(timeout_s, fail)
            return _LostError()

        def fail() -> None:
            if not answered.is_done:
                answered.failure(kafka_errors.RequestTimedOutError("no answer"))

        def arrive() -> None:
            if not self._host.alive:
                return
            try:
                self._host.call(
                    self._name(request),
                    lambda: self._world.handle(self._host, request, answer),
                    lose,
                    may_be_delayed=True,
                )
            except (_LostError, CrashedError):
                return

        scheduler.soon(arrive)
        scheduler.later(timeout_s, fail)
        return await answered

    def _name(self, request: Any) -> str:
        """Return a request's name in faults: heartbeats of streams groups have the names of corresponding classic requests."""
        if not isinstance(request, StreamsGroupHeartbeatRequest):
            return _NAMES[type(request)]
        if request.member_epoch <= 0:
            return "join" if request.member_epoch == 0 else "leave"
        return "sync" if self._world.group.moves(request.member_id) else "heartbeat"

    async def sleep(self, seconds: float) -> None:
        """Let other coroutines run for a while."""
        future = Future()
        self._world.scheduler.later(seconds, lambda: future.success(None))
        await future

    def close(self) -> None:
        """Let nothing arrive any more."""
        self._closed = True


class _LostError(Exception):
    """A request or its answer is lost; the sender notices when it times out."""
