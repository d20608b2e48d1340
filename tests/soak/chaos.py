"""What goes wrong, and when: a plan that a seed reproduces, and the thread that carries it out.

Every fault ends by itself after a while, and faults overlap. A fault is skipped if its target is down when it is due.
"""

from __future__ import annotations

import heapq
import logging
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.soak.network import Network, Rule
from tests.soak.replicas import Replica
from tests.soak.topology import OUTPUTS, topic

from millrace.dev.kafka import EmbeddedKafka

_log = logging.getLogger("soak")

SESSION_TIMEOUT_S = 6.0
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

_KINDS: dict[str, tuple[int, float, float]] = {
    # kind: weight, minimum and maximum duration
    "kill": (4, 0.2, 4.0),
    "stop": (3, 0.2, 3.0),
    "freeze": (3, 0.5, 0.6 * SESSION_TIMEOUT_S),
    "freeze for long": (2, 1.4 * SESSION_TIMEOUT_S, 2.2 * SESSION_TIMEOUT_S),
    "add thread": (1, 0.0, 0.0),
    "remove thread": (1, 0.0, 0.0),
    "fence": (2, 0.0, 0.0),
    "refuse": (1, 0.5, 3.0),
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
}

_TRANSACTIONS_FAIL = ("silent link", "silent producer", "refuse", "fence")
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
    weights = {kind: weight for kind, (weight, _, _) in _KINDS.items() if exactly_once or kind != "fence"}
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
        add(at_s, kind, target)
        if kind in _TRANSACTIONS_FAIL:
            add(at_s + chance.uniform(*_UPSET_AFTER_S), chance.choice(_REBALANCES), (target + 1) % replicas)
        at_s += chance.uniform(*(_BURST_GAP_S if chance.random() < _BURSTS else _GAP_S))
        at_s += _QUIET_S if number % _QUIET_EVERY == 0 else 0.0
    if (
        brokers > 2 and seconds >= 30
    ):  # a single broker's restart leaves transactions without markers: docs/operations.md
        faults.append(Fault(chance.uniform(0.1, 0.6) * seconds, "restart broker", chance.randrange(brokers), 0.0, 0.0))
    return sorted(faults)


class Chaos:
    """Carries out a plan in a thread.

    Args:
        application: the application's id.
        kafka: the brokers.
        network: the proxies in front of them.
        replicas: the instances.
        faults: the plan.
    """

    def __init__(
        self, application: str, kafka: EmbeddedKafka, network: Network, replicas: Sequence[Replica], faults: list[Fault]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.last = ""
        self._application = application
        self._kafka = kafka
        self._network = network
        self._replicas = replicas
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
            entry = ConfigEntry("max.message.bytes", _SMALL_BATCH, incremental_operation=operation)
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
            admin = self._kafka.admin()
            for tries_left in reversed(range(5)):
                try:
                    [future] = admin.incremental_alter_configs([resource]).values()
                    future.result(30)
                    return
                except (KafkaException, TimeoutError):  # a broker may be down, but the limit must not stay
                    if not tries_left:
                        raise

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

    def _restart_broker(self, fault: Fault, _: Replica) -> None:
        broker = self._kafka.broker_ids[fault.target]
        self._aside("restart broker", lambda: self._kafka.restart_broker(broker))


def _part(fault: Fault) -> tuple[float, float]:
    """Return half of the connections, a different half for each fault."""
    return fault.lot / 2, fault.lot / 2 + 0.5
