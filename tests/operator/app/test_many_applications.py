"""A thousand applications with their own credentials and unreachable brokers: the operator keeps working, within bounds."""

import threading
from contextlib import closing

import pytest
from tests.operator.app.support import PassWorld
from tests.operator.kafka.support import streams_app
from tests.waiting import wait_until

from millrace.errors import BrokerUnreachableError
from millrace_operator.app.app_controller import AppController
from millrace_operator.app.broker_access import BrokerAccess
from millrace_operator.app.metrics import OperatorMetrics
from millrace_operator.app.queue import Workers, WorkQueue
from millrace_operator.cluster.kinds import APPS
from millrace_operator.kafka.client_config import Credentials
from millrace_operator.kafka.clusters import KafkaClusters
from millrace_operator.kafka.connections import MOST_OPEN, Connections
from millrace_operator.kafka.state_cache import KafkaStateCache
from millrace_operator.model import Decision, ResourceRef

MANY = 1000
DEADLINE_S = 600
SCRAM = {"auth": {"type": "scram-sha-512", "secretRef": {"name": "user"}}}


class Away:
    """Brokers that leave connections unanswered until the test lets them refuse."""

    def __init__(self):
        self.refuse = threading.Event()
        self.attempts = 0

    def __call__(self, config):
        self.attempts += 1
        assert self.refuse.wait(DEADLINE_S)
        raise BrokerUnreachableError("No broker answered")


class Passwords(BrokerAccess):
    """A password for each application, without Secrets."""

    def of(self, desired):
        app = streams_app("away:9092", desired.name, uid=desired.uid, kafka=SCRAM)
        secret = {"username": b"me", "password": desired.name.encode()}
        return app, Credentials.of(app.spec, {"user": secret})


def manifest(number):
    """Return the resource of an application."""
    app = streams_app("away:9092", f"app-{number}", uid=f"app-{number}", kafka=SCRAM)
    metadata = {"name": f"app-{number}", "namespace": "shop", "uid": f"app-{number}", "resourceVersion": "1"}
    spec = app.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
    return {"apiVersion": APPS.api_version, "kind": APPS.kind, "metadata": metadata, "spec": spec}


@pytest.mark.timeout(1800)
def test_brokers_that_are_away_hold_none_of_a_thousand_applications_up(server, requests):
    """No pass waits for a broker, the probe passes, and threads, attempts and connections stay few; each outage is reported."""
    away, decided, queue = Away(), {}, WorkQueue()
    connections = Connections(away, lambda: 0.0)
    brokers = KafkaStateCache(queue.add)
    refs = [ResourceRef("StreamsApp", "shop", f"app-{number}") for number in range(MANY)]

    def decide(desired, observed):
        decided[desired.name] = observed.kafka.reason
        return Decision()

    with closing(
        PassWorld(server, requests, KafkaClusters(connections=connections), brokers, Passwords(requests))
    ) as world:
        for number in range(MANY):
            world.cluster.resources.put(APPS, manifest(number))
        passes = AppController(world.cluster, decide, brokers, 30.0)
        workers = Workers(queue, {"StreamsApp": passes.run}, count=4, metrics=OperatorMetrics())
        before, most_threads = threading.active_count(), 0

        def check():
            nonlocal most_threads
            assert workers.problems(DEADLINE_S) == []
            assert len(connections) <= MOST_OPEN
            most_threads = max(most_threads, threading.active_count() - before)

        def wait_for_all(condition):
            wait_until(condition, lambda: f"{len(decided)} of {MANY} had a pass", DEADLINE_S, meanwhile=check)

        try:
            for ref in refs:
                queue.add(ref, urgent=True)
            workers.start()
            wait_for_all(lambda: len(decided) == MANY)
            assert set(decided.values()) == {"Unknown"}, "nobody has answered"
            decided.clear()
            queue.add(refs[-1], urgent=True)
            wait_for_all(lambda: refs[-1].name in decided)
            away.refuse.set()
            wait_for_all(lambda: len(decided) == MANY and set(decided.values()) == {"Unreachable"})
            assert away.attempts < 10
            assert most_threads <= 4 + 16
        finally:
            away.refuse.set()
            queue.close()
            assert workers.join(DEADLINE_S)
