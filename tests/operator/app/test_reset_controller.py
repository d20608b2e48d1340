"""Passes over resets, against an API server over HTTP: what they must see before they act, and who is notified."""

from contextlib import closing

import pytest
from tests.operator.app.support import OperationWorld
from tests.waiting import wait_until

from millrace.plan import reset
from millrace.records import TopicPartition
from millrace_operator.app.backoff import STALE_SECONDS
from millrace_operator.app.reset_controller import ResetController
from millrace_operator.children.naming import FINALIZER
from millrace_operator.cluster.kinds import APPS, BACKFILLS, RESETS, SECRETS
from millrace_operator.kafka.state_cache import AnswerAwaitedError
from millrace_operator.model import DeleteTopics, KafkaState, ResourceRef

REF, APP = ResourceRef("StreamsReset", "default", "again"), ResourceRef("StreamsApp", "default", "app")
INPUT = TopicPartition("in", 0)


class Kafka:
    """Brokers that have an application's topics, and carry out actions."""

    def __init__(self):
        self.done = []
        self.meanwhile = lambda: None
        """What happens while the brokers are being asked."""

    def observe_for_reset(self, app, credentials, plan, target, inputs):
        self.meanwhile()
        return reset.ObservedApplication(
            topics={"in": 1, "app-c-repartition": 1, "app-c-changelog": 1},
            groups=frozenset({"app"}),
            committed={INPUT: 5},
            earliest={INPUT: 0},
            latest={INPUT: 9},
        )

    def act(self, app, credentials, action):
        self.done.append(action)


class World(OperationWorld):
    """An API server with a suspended app and a reset of it, and a controller that makes passes over the reset."""

    def __init__(self, server, requests):
        super().__init__(server, requests, Kafka(), ResetController, REF, "one")
        self.watch(APPS, self.serve(APPS, "app", self.spec))
        self.watch(RESETS, self.serve(RESETS, "again", {"appRef": {"name": "app"}}))

    def start_the_app(self):
        """Have the user set `spec.state: running`; return the app as it is served."""
        served = self.server.objects[APPS.path("default", "app")]
        return self.serve(APPS, "app", {**served["spec"], "state": "running"}, metadata={"generation": 2})

    def backfill(self, phase):
        """Have a backfill of the application in this phase, whose name comes before the reset's."""
        spec = {"appRef": {"name": "app"}, "driver": {"serviceAccountName": "spark"}}
        self.watch(BACKFILLS, self.serve(BACKFILLS, "a-backfill", spec, status={"phase": phase}))

    @property
    def phase(self):
        """The reset's phase as it is served."""
        return self.server.objects[RESETS.path("default", "again")].get("status", {}).get("phase")


@pytest.fixture
def world(server, requests):
    """A world with one reset."""
    with closing(World(server, requests)) as world:
        yield world


def test_reset_makes_what_is_known_of_the_brokers_old(world):
    """The application's next pass asks again, however soon it runs: it must not record topics that the reset has deleted."""

    def known(brokers):
        """Return how many brokers are known, once they have answered."""

        def answer():
            try:
                return world.brokers.state(APP, lambda: KafkaState(brokers=brokers), 1).brokers
            except AnswerAwaitedError:
                return None

        return wait_until(answer, "the brokers' answer")

    world.run()
    assert known(1) == 1
    world.run()
    assert isinstance(world.kafka.done[-1], DeleteTopics)
    assert known(2) == 2


def test_reset_does_not_begin_by_what_was_seen_before_the_application_was_started(world):
    """The watch may be late: nothing is started. Once it has reported the change, the reset waits for the application."""
    started = world.start_the_app()
    for _ in range(2):
        assert world.run() == STALE_SECONDS
        assert world.phase is None
    world.watch(APPS, started)
    world.run()
    assert world.phase == "Waiting"


def test_reset_does_not_begin_if_the_application_was_started_while_brokers_were_asked(world):
    """The first observation counts, even if the watch has reported the change since."""
    world.kafka.meanwhile = lambda: world.watch(APPS, world.start_the_app())
    assert world.run() == STALE_SECONDS
    assert world.phase is None


def test_reset_that_waits_asks_the_api_server_nothing(world):
    """Only passes that start a reset or act need up-to-date objects."""
    world.watch(APPS, world.start_the_app())
    world.run()
    assert world.phase == "Waiting"
    world.server.asked.clear()
    world.run()
    assert world.server.asked == []


def test_reset_that_is_seen_before_its_application_does_not_miss_it(world):
    """Both may be in one manifest; the reset fails only if the API server does not have the application."""
    before = world.server.objects[APPS.path("default", "app")]
    world.cluster.resources.remove(APPS, before)
    world.serve(APPS, "app", before["spec"])
    world.run()
    assert world.phase == "Running"


def test_reset_of_an_application_that_is_not_there_fails(world):
    """There is nothing to wait for."""
    world.cluster.resources.remove(APPS, world.server.objects.pop(APPS.path("default", "app")))
    world.run()
    assert world.phase == "Failed"


def test_a_reset_that_runs_is_kept_until_it_has_ended(world):
    """The finalizer is added before anything is done, and removed when the reset has finished."""
    path = RESETS.path("default", "again")
    world.run()
    assert (world.phase, world.server.objects[path]["metadata"]["finalizers"]) == ("Running", [FINALIZER])
    for _ in range(4):
        world.run()
    assert world.phase == "Succeeded"
    assert not world.server.objects[path]["metadata"].get("finalizers")


@pytest.mark.parametrize("phase", ["Waiting", "Suspending"])
def test_reset_that_has_begun_goes_on_if_a_backfill_appears(world, phase):
    """Applied together, the backfill counts as older by its name. It was not known when the reset began, and waits for it."""
    world.run()
    world.backfill(phase)
    world.run()
    assert isinstance(world.kafka.done[-1], DeleteTopics)


def test_reset_that_has_begun_waits_for_a_spark_job(world):
    """Their passes were made at the same time, and neither saw the other begin: the job cannot be stopped for the reset."""
    world.run()
    world.backfill("Computing")
    world.run()
    assert (world.phase, world.kafka.done) == ("Running", [])
    assert "StreamsBackfill a-backfill" in world.server.objects[RESETS.path("default", "again")]["status"]["message"]


def test_reset_does_not_begin_if_a_backfill_began_while_brokers_were_asked(world):
    """Whatever begins first keeps the other waiting."""
    world.kafka.meanwhile = lambda: world.backfill("Suspending")
    assert world.run() == STALE_SECONDS
    assert world.phase is None
    world.run()
    assert world.phase == "Waiting"


def test_status_is_not_written_to_another_reset_of_the_name(world):
    """Somebody removed the finalizer and created it again while the former one was under way."""
    world.run()

    def create_again(app, credentials, action):
        del world.server.objects[RESETS.path("default", "again")]
        world.watch(RESETS, world.serve(RESETS, "again", {"appRef": {"name": "app"}}))

    world.kafka.act = create_again
    assert world.run() == STALE_SECONDS
    assert world.phase is None


def test_reset_that_is_deleted_is_given_up_if_credentials_cannot_be_read(world):
    """The operator has lost the right to read the Secret: its finalizer keeps neither the reset nor its namespace."""
    world.run()
    path = RESETS.path("default", "again")
    found = world.server.objects[path]
    deleted = {**found["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.watch(RESETS, world.server.put(path, {**found, "metadata": deleted}))
    world.server.forbidden.add(SECRETS.path("default", "credentials"))
    world.kafka.observe_for_reset = lambda *_: world.requests.get(SECRETS, "default", "credentials")
    world.run()
    assert world.phase == "Failed"
    assert "The credentials could not be read: " in world.server.objects[path]["status"]["message"]
    world.run()
    assert not world.server.objects[path]["metadata"]["finalizers"]
