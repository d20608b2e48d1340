"""What goes wrong, and when: a plan that a seed reproduces, and the thread that carries it out.

Every fault ends by itself after a while, and faults overlap. A fault is skipped if its target is down when it is due.
"""

from __future__ import annotations

import heapq
import logging
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclOperation, AlterConfigOpType, ResourceType
from tests.soak import administration, damage
from tests.soak.network import Network, Rule
from tests.soak.replicas import Replica
from tests.topologies.soak import CLOSED_STORE, INPUTS, OUTPUTS, PARTITIONS, topic

from millrace.dev.kafka import EmbeddedKafka

_log = logging.getLogger("soak")

SESSION_TIMEOUT_S = 6.0
TRANSACTION_TIMEOUT_S = 15.0
DELIVERY_TIMEOUT_S = 8.0
_GAP_S = (1.0, 6.0)
"""How long after one fault the next usually begins."""
_BURST_GAP_S = (0.05, 1.0)
_BURSTS = 0.35
"""How often the next fault follows immediately, so that it hits the consequences of the first, such as a rebalance."""
_QUIET_S = 10.0
"""After this many faults everything rests for this long, so that much is processed too."""
_QUIET_EVERY = 8

_SMALL_BATCH = "80"
"""A batch of two records is refused, but the marker that ends a transaction (78 bytes) still fits. If it does not, the
coordinator gives up, and the transaction never ends (seen with Kafka 4.3.1)."""

WIPED_DAMAGED = re.compile(r"wiped.*is damaged|is damaged.*wiped|wiped.*(Corruption|corrupt)")
DIED_FULL = re.compile(r"died .*(is full|File too large|No space|read-only)")
DIED_DENIED = re.compile(r"died .*([Aa]uthoriz|AUTHORIZ|[Dd]enied|allow READ|Grant)")
ENDED_DENIED = re.compile(r"AuthorizationError: errors\.dead\.letter\.queue\.topic\.name=.*WRITE")
"""What a fault may lead to in the log of an instance, from the fault to the end of the phase."""
_WIPED_AT = re.compile(r"(?:is at offset (\d+) of (\S+), which has offsets|(\S+) no longer has offset (\d+):) .*wiped")

_KINDS: dict[str, tuple[int, float, float]] = {
    # kind: weight, minimum and maximum duration
    "kill": (4, 0.2, 4.0),
    "stop": (3, 0.2, 3.0),
    "freeze": (3, 0.5, 0.6 * SESSION_TIMEOUT_S),
    "freeze for long": (2, 1.4 * SESSION_TIMEOUT_S, 1.3 * TRANSACTION_TIMEOUT_S),
    "delete state": (2, 0.2, 2.0),
    "corrupt state": (2, 0.2, 2.0),
    "full disk": (2, 3.0, 10.0),
    "add instance": (2, 8.0, 25.0),
    "remove instance": (1, 1.2 * SESSION_TIMEOUT_S, 2.5 * SESSION_TIMEOUT_S),
    "add thread": (1, 0.0, 0.0),
    "remove thread": (1, 0.0, 0.0),
    "fence": (2, 0.0, 0.0),
    "refuse": (1, 0.5, 3.0),
    "deny": (2, 2.0, 8.0),
    "truncate": (2, 8.0, 16.0),
    "restart broker": (1, 0.0, 0.0),
    "crash broker": (1, 0.5, 5.0),
    "roll brokers": (1, 0.0, 0.0),
    "move leaders": (2, 0.0, 0.0),
    "cut": (3, 0.0, 0.0),
    "silent broker": (1, 2.0, 10.0),
    "silent producer": (2, 1.2 * DELIVERY_TIMEOUT_S, 1.8 * DELIVERY_TIMEOUT_S),
    "silent link": (3, 1.2 * DELIVERY_TIMEOUT_S, 3.0 * DELIVERY_TIMEOUT_S),
    "delay": (2, 2.0, 6.0),
    "throttle": (1, 2.0, 5.0),
    "reorder": (2, 2.0, 6.0),
}
_OF_ONE_REPLICA = {
    "kill",
    "stop",
    "freeze",
    "freeze for long",
    "add thread",
    "remove thread",
    "fence",
    "silent producer",
    "silent link",
    "delete state",
    "corrupt state",
    "full disk",
    "remove instance",
    "truncate",
}
ENDS_PROCESS = {"kill", "stop", "delete state", "corrupt state", "remove instance"}
"""These spare the first instance, so that its process is as old as the phase, and leaks can be seen."""
_OF_SEVERAL_BROKERS = {"restart broker", "crash broker", "roll brokers", "move leaders"}
_TAKES_BROKER_AWAY = {"restart broker", "crash broker", "roll brokers"}
"""One at a time: with two of three brokers away nothing can be committed."""

_TRANSACTIONS_FAIL = ("silent link", "silent producer", "refuse", "fence", "full disk")
_REBALANCES = ("kill", "stop", "add thread", "freeze for long")
_UPSET_AFTER_S = (0.0, 6.0)
"""Each of the former is followed by one of the latter, at another instance: partitions are revoked while transactions fail."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault."""

    at_s: float
    kind: str
    target: int
    """The number of the replica or broker."""
    lasts_s: float
    lot: float
    """From 0 to 1, for other choices."""


def plan(seed: str, seconds: float, *, replicas: int, brokers: int, exactly_once: bool) -> list[Fault]:
    """Return the faults of a phase in order; the same for the same arguments."""
    chance = random.Random(seed)
    excluded = (set() if exactly_once else {"fence"}) | (set() if brokers > 2 else _OF_SEVERAL_BROKERS)
    # A single broker's restart leaves transactions without markers: docs/operations.md
    weights = {kind: weight for kind, (weight, _, _) in _KINDS.items() if kind not in excluded}
    faults: list[Fault] = []

    def add(at_s: float, kind: str, target: int) -> None:
        _, least_s, most_s = _KINDS[kind]
        faults.append(Fault(at_s, kind, target, chance.uniform(least_s, most_s), chance.random()))

    at_s = chance.uniform(*_GAP_S)
    for number in count(1):
        if at_s >= seconds:
            break
        [kind] = chance.choices(list(weights), list(weights.values()))
        target = chance.randrange(replicas if kind in _OF_ONE_REPLICA else brokers)
        if kind in ENDS_PROCESS:
            target = chance.randrange(1, replicas)
        add(at_s, kind, target)
        if kind in _TRANSACTIONS_FAIL:
            upset = chance.choice(_REBALANCES)
            other = (target + 1) % replicas
            add(at_s + chance.uniform(*_UPSET_AFTER_S), upset, max(1, other) if upset in ENDS_PROCESS else other)
        at_s += chance.uniform(*(_BURST_GAP_S if chance.random() < _BURSTS else _GAP_S))
        at_s += _QUIET_S if number % _QUIET_EVERY == 0 else 0.0
    return sorted(faults)


class Chaos:
    """Carries out a plan in a thread.

    Args:
        application: the application's id.
        kafka: the brokers.
        network: the proxies in front of them.
        replicas: the instances.
        spare: another instance, which is only added for a while.
        closed: returns the start of a window of an input partition, in ms, before which all are closed.
        faults: the plan.
    """

    def __init__(
        self,
        application: str,
        kafka: EmbeddedKafka,
        network: Network,
        replicas: Sequence[Replica],
        spare: Replica,
        closed: Callable[[int], int],
        faults: list[Fault],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.last = ""
        self._application = application
        self._kafka = kafka
        self._network = network
        self._replicas = replicas
        self._spare = spare
        self._closed = closed
        self._broker_away = threading.Lock()
        self._faults = faults
        self._undo: list[tuple[float, int, Callable[[], object]]] = []
        self._helpers: list[threading.Thread] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """End every fault immediately."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for helper in self._helpers:
            helper.join()

    def finish(self) -> None:
        """End every fault immediately and let every instance run."""
        self.stop()
        for replica in self._replicas:
            replica.signal(signal.SIGCONT)
            replica.start()

    def _run(self) -> None:
        began = time.monotonic()
        faults = list(self._faults)
        while not self._over.is_set():
            now_s = time.monotonic() - began
            while self._undo and self._undo[0][0] <= now_s:
                self._try("undo", heapq.heappop(self._undo)[2])
            if faults and faults[0].at_s <= now_s:
                self._begin(faults.pop(0), now_s)
                continue
            upcoming = [fault.at_s for fault in faults[:1]] + [at_s for at_s, _, _ in self._undo[:1]]
            self._over.wait(min([0.5, *(max(0.0, at_s - now_s) for at_s in upcoming)]))
        while self._undo:
            self._try("undo", heapq.heappop(self._undo)[2])

    def _begin(self, fault: Fault, now_s: float) -> None:
        replica = self._replicas[fault.target % len(self._replicas)]
        if fault.kind in _OF_ONE_REPLICA and not replica.works:
            return
        if fault.kind in _TAKES_BROKER_AWAY and not self._broker_away.acquire(blocking=False):
            return
        begin: Callable[[Fault, Replica], Callable[[], object] | None] = getattr(
            self, "_" + fault.kind.replace(" ", "_")
        )
        self.counts[fault.kind] += 1
        on_broker = fault.kind not in _OF_ONE_REPLICA
        self.last = f"{fault.kind} {fault.target + 1 if on_broker else replica.name} for {fault.lasts_s:.1f} s"
        _log.info("%6.1f s: %s", now_s, self.last)
        self._try(fault.kind, lambda: self._keep(begin(fault, replica), now_s + fault.lasts_s))

    def _keep(self, undo: Callable[[], object] | None, at_s: float) -> None:
        if undo is not None:
            heapq.heappush(self._undo, (at_s, id(undo), undo))

    def _try(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # reported with the verdict; the other faults continue
            _log.exception("Cannot do: %s", what)
            self.errors.append(f"The fault could not be made ({what}): {error!r}")

    def _aside(self, what: str, call: Callable[[], object]) -> None:
        helper = threading.Thread(target=self._try, args=(what, call), name=what, daemon=True)
        helper.start()
        self._helpers.append(helper)

    # The kinds of faults

    def _kill(self, _: Fault, replica: Replica) -> Callable[[], object]:
        replica.kill()
        return replica.start

    def _stop(self, fault: Fault, replica: Replica) -> None:
        def stop_and_start() -> None:
            replica.stop()
            self._over.wait(fault.lasts_s)
            replica.start()

        self._aside("stop", stop_and_start)

    def _freeze(self, _: Fault, replica: Replica) -> Callable[[], object]:
        replica.signal(signal.SIGSTOP)
        return lambda: replica.signal(signal.SIGCONT)

    _freeze_for_long = _freeze

    def _add_thread(self, _: Fault, replica: Replica) -> None:
        if len(replica.status()["threads"]) < 3:
            replica.signal(signal.SIGUSR1)

    def _remove_thread(self, _: Fault, replica: Replica) -> None:
        if len(replica.status()["threads"]) > 1:
            replica.signal(signal.SIGUSR2)

    def _fence(self, _: Fault, replica: Replica) -> None:
        status = replica.status()
        thread = next((each["name"].rpartition("-")[2] for each in status["threads"] if each["alive"]), "1")
        transactional_id = f"{self._application}-{status['process_id']}-{thread}"

        def fence() -> None:
            intruder = Producer(
                {
                    "bootstrap.servers": self._kafka.bootstrap_servers,
                    "transactional.id": transactional_id,
                    "log_level": 0,
                }
            )
            try:
                intruder.init_transactions(30)
            except KafkaException as error:  # the coordinator is also busy or down
                _log.info("Not fenced: %s", error)

        self._aside("fence", fence)

    def _refuse(self, fault: Fault, _: Replica) -> Callable[[], object]:
        name = topic(self._application, OUTPUTS[int(fault.lot * len(OUTPUTS))])

        def limit(operation: AlterConfigOpType) -> None:
            administration.set_topic(self._kafka.admin(), name, "max.message.bytes", _SMALL_BATCH, operation)

        limit(AlterConfigOpType.SET)
        return lambda: limit(AlterConfigOpType.DELETE)

    def _cut(self, fault: Fault, _: Replica) -> None:
        self._network.reset(Rule(lots=_part(fault)))

    def _ruled(self, rule: Rule) -> Callable[[], object]:
        self._network.begin(rule)
        return lambda: self._network.end(rule)

    def _silent_broker(self, fault: Fault, _: Replica) -> Callable[[], object]:
        return self._ruled(Rule(broker=fault.target, silent=True))

    def _silent_producer(self, _: Fault, replica: Replica) -> Callable[[], object]:
        return self._ruled(Rule(client=f"{replica.name}-*-producer", silent=True))

    def _silent_link(self, fault: Fault, replica: Replica) -> Callable[[], object]:
        # The coordinators may be on other brokers: then transactions begin and are aborted, and only their records do not arrive.
        broker = int(fault.lot * len(self._kafka.broker_ids))
        return self._ruled(Rule(broker=broker, client=f"{replica.name}-*-producer", silent=True))

    def _delay(self, fault: Fault, _: Replica) -> Callable[[], object]:
        return self._ruled(Rule(lots=_part(fault), delay_s=0.02 + 0.3 * fault.lot))

    def _throttle(self, fault: Fault, _: Replica) -> Callable[[], object]:
        return self._ruled(Rule(lots=_part(fault), bytes_per_s=20_000))

    def _reorder(self, fault: Fault, _: Replica) -> Callable[[], object]:
        return self._ruled(Rule(lots=_part(fault), jitter_s=1.0, answers_only=True))

    def _with_brokers_away(self, fault: Fault, change: Callable[[], object]) -> None:
        def carry_out() -> None:
            try:
                change()
            finally:
                self._broker_away.release()

        self._aside(fault.kind, carry_out)

    def _restart_broker(self, fault: Fault, _: Replica) -> None:
        broker = self._kafka.broker_ids[fault.target]
        self._with_brokers_away(fault, lambda: self._kafka.restart_broker(broker))

    def _crash_broker(self, fault: Fault, _: Replica) -> None:
        broker = self._kafka.broker_ids[fault.target]

        def crash() -> None:
            self._kafka.kill(broker)
            self._over.wait(fault.lasts_s)
            self._kafka.restart_broker(broker)

        self._with_brokers_away(fault, crash)

    def _roll_brokers(self, fault: Fault, _: Replica) -> None:
        def roll() -> None:
            for broker in self._kafka.broker_ids:
                self._kafka.restart_broker(broker)

        self._with_brokers_away(fault, roll)

    def _move_leaders(self, fault: Fault, _: Replica) -> None:
        chance = random.Random(fault.lot)
        self._aside("move leaders", lambda: administration.move_leaders(self._kafka, self._application, chance))

    def _add_instance(self, fault: Fault, _: Replica) -> None:
        self._aside_for_a_while(fault, self._spare.start, self._spare.stop)

    def _remove_instance(self, fault: Fault, replica: Replica) -> None:
        self._aside_for_a_while(fault, replica.stop, replica.start)

    def _aside_for_a_while(self, fault: Fault, begin: Callable[[], object], end: Callable[[], object]) -> None:
        def change() -> None:
            begin()
            self._over.wait(fault.lasts_s)
            end()

        self._aside(fault.kind, change)

    def _delete_state(self, fault: Fault, replica: Replica) -> Callable[[], object]:
        replica.kill()
        what = damage.delete(replica.state_directory / self._application, random.Random(fault.lot))
        _log.info("Deleted the state of %s: %s", replica.name, what)
        return replica.start

    def _corrupt_state(self, fault: Fault, replica: Replica) -> Callable[[], object]:
        replica.kill()
        what = damage.corrupt(replica.state_directory / self._application, random.Random(fault.lot))
        _log.info("Damaged the state of %s: %s", replica.name, what)
        replica.excuse(WIPED_DAMAGED.search)
        return replica.start

    def _full_disk(self, _: Fault, replica: Replica) -> Callable[[], object]:
        replica.excuse(DIED_FULL.search)
        return replica.fill_disk()

    def _deny(self, fault: Fault, _: Replica) -> Callable[[], object]:
        chance = random.Random(fault.lot)
        changelog = f"{self._application}-{CLOSED_STORE}-changelog"
        kind, name, operation = chance.choice(
            (
                (ResourceType.TOPIC, topic(self._application, chance.choice(OUTPUTS)), AclOperation.WRITE),
                (ResourceType.TOPIC, topic(self._application, chance.choice(INPUTS)), AclOperation.READ),
                (ResourceType.TOPIC, changelog, AclOperation.WRITE),
                (ResourceType.TOPIC, changelog, AclOperation.READ),
                (ResourceType.GROUP, self._application, AclOperation.READ),
            )
        )
        _log.info("Denied: %s of %s", operation.name, name)
        for replica in (*self._replicas, self._spare):
            replica.excuse(DIED_DENIED.search)
            replica.excuse(ENDED_DENIED.search)
        return administration.deny(self._kafka, kind, name, operation)

    def _truncate(self, fault: Fault, replica: Replica) -> Callable[[], object]:
        # The standbys of one instance get no changelog records for a while, and then these are gone.
        partition = int(fault.lot * PARTITIONS)
        changelog = f"{self._application}-{CLOSED_STORE}-changelog"
        let_through = self._ruled(Rule(client=f"{replica.name}-*-restore-consumer", silent=True))

        def truncate() -> None:
            try:
                offset = administration.first_since(self._kafka, changelog, partition, self._closed(partition))
                if offset <= 0:  # no window has closed yet
                    self.counts[fault.kind] -= 1
                    return
                for each in (*self._replicas, self._spare):  # before the first of them can notice
                    each.excuse(wiped_below(f"{changelog}-{partition}", offset))
                administration.truncate(self._kafka, changelog, partition, offset)
                _log.info("Truncated %s-%d at %d", changelog, partition, offset)
            except (KafkaException, TimeoutError) as error:  # the leader is also busy or down
                _log.info("Not truncated: %s", error)
            finally:
                let_through()

        return truncate


def wiped_below(changelog: str, truncated_at: int) -> Callable[[str], bool]:
    """Return a function that recognises in a log that a task was wiped because of a truncation.

    Any instance may have a store that is at an earlier offset than the truncation, and open it at any time. A store that has
    reached the offset of the truncation, as every store that is restored afterwards has, lacks nothing.

    Args:
        changelog: the changelog's topic and partition, as in the log.
        truncated_at: the first offset that it kept.
    """

    def excused(line: str) -> bool:
        found = _WIPED_AT.search(line)
        if found is None:
            return False
        offset, opened, read, next_offset = found.groups()
        return changelog == (opened or read) and int(offset or next_offset) < truncated_at

    return excused


def _part(fault: Fault) -> tuple[float, float]:
    """Return half of the connections, a different half for each fault."""
    return fault.lot / 2, fault.lot / 2 + 0.5
