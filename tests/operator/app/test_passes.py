"""Passes over applications, against an API server over HTTP: what a decision comes to, and what failures do."""

from contextlib import closing

import pytest
from tests.operator.app.support import PassWorld

from millrace.errors import AuthorizationError, StreamsTimeoutError
from millrace.manifest import StreamsAppStatus
from millrace_operator.app.brokers import Brokers
from millrace_operator.app.failures import FailedError, TransientError
from millrace_operator.app.passes import STALE_SECONDS, TRANSIENT_FAILURES, Passes
from millrace_operator.app.refs import Ref
from millrace_operator.cluster.kinds import APPS
from millrace_operator.model import Apply, Decision, DeleteTopics, Event, KafkaState, SetFinalizer
from millrace_operator.resets import PatchApp

REF = Ref("StreamsApp", "shop", "orders")
PATH = APPS.path("shop", "orders")
MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "m", "namespace": "shop", "labels": {"streams.millrace.dev/app": "orders"}},
}
SPEC = {
    "applicationId": "orders-v1",
    "image": "registry.example/orders:1",
    "app": {"entrypoint": "orders:topology"},
    "kafka": {"bootstrapServers": ["kafka:9092"]},
}


class Kafka:
    """Brokers that do what they are told, or raise."""

    def __init__(self):
        self.done = []
        self.error = None
        self.forgotten = []

    def observe(self, desired, objects):
        return KafkaState(brokers=len(self.done) + 1)

    def act(self, desired, action):
        if self.error:
            raise self.error
        self.done.append(action)

    def forget(self, ref):
        self.forgotten.append(ref)


class World(PassWorld):
    """An API server with one app, and what makes passes over it."""

    def __init__(self, server, requests):
        super().__init__(server, requests, Kafka(), Brokers(lambda _: None))
        self.decisions = []
        self.observed = []
        self.actions_counted = 0
        self.passes = Passes(self.cluster, self.decide, self.brokers, 30.0, self.count)
        self.change(SPEC)

    def change(self, spec, generation=1):
        """Serve and cache the app with this spec."""
        metadata = {"name": "orders", "namespace": "shop", "generation": generation}
        known = self.server.objects.get(PATH, {})
        obj = {"apiVersion": APPS.api_version, "kind": "StreamsApp", "metadata": metadata, "spec": spec}
        self.server.put(PATH, {**known, **obj})
        self.cluster.resources.put(APPS, self.server.objects[PATH])

    def decide(self, desired, observed):
        """Return the next decision that the test has prepared."""
        self.observed.append(observed)
        decision = self.decisions.pop(0)
        if isinstance(decision, Exception):
            raise decision
        return decision

    def count(self):
        self.actions_counted += 1

    def run(self, *decisions, failures=0):
        """Make a pass that comes to this decision."""
        self.decisions = list(decisions)
        return self.passes.run(REF, failures)

    @property
    def writes(self):
        """What was asked of the API server but for reading."""
        return [(method, path) for method, path, *_ in self.server.asked if method != "GET"]

    @property
    def stalled(self):
        """The condition `Stalled` that is served, or None."""
        conditions = self.server.objects[PATH].get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == "Stalled"), None)


@pytest.fixture
def world(server, requests):
    """A world with one app."""
    with closing(World(server, requests)) as world:
        yield world


def test_pass_with_nothing_to_do_asks_nothing(world):
    """At rest there is no request at all, and the next pass is due at the resync."""
    world.run(Decision(status=StreamsAppStatus(replicas=1)))
    world.server.asked.clear()
    assert world.run(Decision(status=StreamsAppStatus(replicas=1))) == 30.0
    assert world.server.asked == []
    assert world.run(Decision(again_after=7.0)) == 7.0


def test_pass_knows_where_the_operator_runs(world):
    """Policies that let the operator in name its namespace."""
    world.run(Decision())
    assert world.observed[0].operator_namespace == "millrace"


def test_actions_come_before_status_and_events(world):
    """So a status never tells of what was not done; and each action is counted, the status among them."""
    world.run(Decision((SetFinalizer(True), Apply(MAP)), StreamsAppStatus(replicas=1), (Event("Made", "It is."),)))
    assert [path.rpartition("/")[2] for _, path in world.writes] == ["orders", "m", "status", "events"]
    assert world.actions_counted == 3


def test_pass_sees_what_the_pass_before_has_done(world):
    """Though no watch has told of it."""
    world.run(Decision((Apply(MAP),)))
    world.run(Decision())
    assert [key.name for key in world.observed[1].objects] == ["m"]


def test_pass_that_acts_is_followed_by_another_soon_and_then_later(world):
    """Until there is nothing to do; but what never comes to an end does not turn in circles at full speed."""
    delays = [world.run(Decision((Apply(MAP),))) for _ in range(10)]
    assert delays[:3] == [0.05, 0.1, 0.2]
    assert max(delays) == delays[-1] == 5.0
    world.run(Decision())
    assert world.run(Decision((Apply(MAP),))) == 0.05


def test_nothing_is_done_for_a_resource_that_has_changed(world):
    """The cache was old: the pass ends before its first action, and the next one knows better."""
    served = world.server.objects[PATH]
    world.server.put(PATH, {**served, "metadata": {**served["metadata"], "generation": 2}})
    assert world.run(Decision((Apply(MAP),))) == STALE_SECONDS
    assert world.writes == []
    assert world.run(Decision((Apply(MAP),))) == 0.05


def test_nothing_is_done_for_a_resource_that_is_gone(world):
    """Its children would be nobody's; the next pass forgets it."""
    world.server.objects.clear()
    assert world.run(Decision((Apply(MAP),))) == STALE_SECONDS
    assert world.run() is None
    assert world.writes == []
    assert world.kafka.forgotten == [REF]


def test_status_that_was_patched_meanwhile_is_not_overwritten(world):
    """The decision was made from the one before it: nothing more is done, and the next pass decides anew."""
    world.run(Decision(status=StreamsAppStatus(stable_revision="old")))
    served = world.server.objects[PATH]
    world.server.put(PATH, {**served, "status": {"stableRevision": "patched"}})
    world.server.asked.clear()
    assert world.run(Decision((Apply(MAP),), StreamsAppStatus(stable_revision="old", replicas=1))) == STALE_SECONDS
    assert world.writes == []
    world.run(Decision((Apply(MAP),), StreamsAppStatus(stable_revision="patched", replicas=1)))
    assert world.server.objects[PATH]["status"]["stableRevision"] == "patched"


def test_what_a_reset_forgets_during_a_pass_stays_forgotten(world):
    """Though the pass acts, also on the resource itself, which makes no status another one."""
    world.run(Decision(status=StreamsAppStatus(stable_revision="old")))
    uid = world.server.objects[PATH]["metadata"]["uid"]
    forget = PatchApp(uid, status={"stableRevision": None})
    world.passes.after_action = lambda: world.cluster.hands.patch_app("shop", "orders", forget)
    decision = Decision((SetFinalizer(True),), StreamsAppStatus(stable_revision="old", replicas=1))
    assert world.run(decision) == STALE_SECONDS
    assert "stableRevision" not in world.server.objects[PATH]["status"]


def test_action_on_kafka_makes_what_is_known_of_it_old(world):
    """The next pass asks again, however soon it comes."""
    world.run(Decision((DeleteTopics(("t",)),)))
    world.run(Decision())
    assert [seen.kafka.brokers for seen in world.observed] == [1, 2]


def test_without_the_lease_nothing_is_done_on_kafka_either(world):
    """And the user is told nothing: another operator works."""
    world.requests.may_write_seconds = 0.0
    with pytest.raises(TransientError):
        world.run(Decision((DeleteTopics(("t",)),)), failures=99)
    assert world.kafka.done == []
    assert world.writes == []


def test_rest_of_the_actions_is_left_when_one_fails(world):
    """They may depend on each other."""
    world.kafka.error = AuthorizationError("Not allowed to delete t")
    with pytest.raises(FailedError):
        world.run(Decision((DeleteTopics(("t",)), Apply(MAP)), StreamsAppStatus(replicas=9)))
    assert not any(path.endswith("/m") for _, path in world.writes)
    assert "replicas" not in world.server.objects[PATH]["status"]


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (ZeroDivisionError("bug"), "OperatorError", "ZeroDivisionError: bug"),
        (AuthorizationError("Not allowed to delete t"), "RefusedByKafka", "Not allowed to delete t"),
    ],
)
def test_user_is_told_of_a_failure(world, error, reason, says):
    """`Stalled` says why, with everything else in the status as it was, and an Event does."""
    world.run(Decision(status=StreamsAppStatus(replicas=3)))
    if reason == "OperatorError":
        decision = error
    else:
        decision, world.kafka.error = Decision((DeleteTopics(("t",)),)), error
    with pytest.raises(FailedError):
        world.run(decision)
    assert (world.stalled["status"], world.stalled["reason"]) == ("True", reason)
    assert says in world.stalled["message"]
    assert world.server.objects[PATH]["status"]["replicas"] == 3
    assert [item["type"] for path, item in world.server.objects.items() if "/events/" in path] == ["Warning"]


def test_failure_that_lasts_is_written_once(world):
    """The same message needs no second write."""
    for _ in range(3):
        with pytest.raises(FailedError):
            world.run(ZeroDivisionError("bug"))
    assert len(world.writes) == 2


def test_refusal_by_the_api_server_is_told(world):
    """A quota, an admission webhook: only the user can do something."""
    served = world.server._answer

    def refusing(method, url, body, content_type):
        if method == "PATCH" and "/configmaps/" in url:
            return 403, {"reason": "Forbidden", "message": "exceeded quota: small"}
        return served(method, url, body, content_type)

    world.server._answer = refusing
    with pytest.raises(FailedError):
        world.run(Decision((Apply(MAP),)))
    assert world.stalled["reason"] == "RefusedByApiServer"
    assert "exceeded quota: small" in world.stalled["message"]


def test_what_may_pass_by_itself_is_told_only_when_it_lasts(world):
    """Brokers that are slow, an API server that restarts."""
    world.kafka.error = StreamsTimeoutError("The brokers did not answer within 30 s")
    with pytest.raises(TransientError):
        world.run(Decision((DeleteTopics(("t",)),)), failures=TRANSIENT_FAILURES - 1)
    assert world.stalled is None
    with pytest.raises(FailedError):
        world.run(Decision((DeleteTopics(("t",)),)), failures=TRANSIENT_FAILURES)
    assert "did not answer" in world.stalled["message"]


def test_log_names_actions_without_what_they_write(world, caplog):
    """Manifests do not belong into logs."""
    caplog.set_level("INFO")
    world.run(Decision((Apply({**MAP, "data": {"plan.json": "long"}}),)))
    assert "Apply ConfigMap m" in caplog.text
    assert "long" not in caplog.text
