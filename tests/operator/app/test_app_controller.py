"""Passes over applications, against an API server over HTTP: how decisions are carried out, and what happens on failure."""

import threading
from contextlib import closing
from datetime import UTC, datetime

import pytest
from tests.operator.app.support import PassWorld
from tests.operator.kafka.support import count_plan, streams_app

from millrace.deadline import Deadline
from millrace.errors import AuthorizationError, StreamsTimeoutError
from millrace.kafka.admin_requests import pause
from millrace.manifest import StreamsAppStatus
from millrace.manifest.streamsapp_status import Condition, InternalTopicStatus
from millrace_operator.app.app_controller import AppController
from millrace_operator.app.backoff import STALE_SECONDS, TRANSIENT_FAILURES, FailedError, TransientError
from millrace_operator.app.renewal_limiter import RenewalLimiter
from millrace_operator.children import naming
from millrace_operator.children.config_maps import plan_config_map
from millrace_operator.children.naming import labels
from millrace_operator.cluster.kinds import (
    APPS,
    BACKFILLS,
    CLAIMS,
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    SECRETS,
    STATEFUL_SETS,
)
from millrace_operator.cluster.requests import ApiError
from millrace_operator.kafka.state_cache import AnswerAwaitedError, KafkaStateCache
from millrace_operator.model import (
    Apply,
    AppRevision,
    Decision,
    Delete,
    DeleteTopics,
    Event,
    HoldingBackfill,
    KafkaState,
    Key,
    Renewal,
    ResourceRef,
    SetFinalizer,
)
from millrace_operator.resets.reconciler import PatchApp

REF = ResourceRef("StreamsApp", "shop", "orders")
PATH = APPS.path("shop", "orders")
MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": naming.retained_config_map("orders"), "namespace": "shop", "labels": labels("orders")},
}
MAP_NAME = MAP["metadata"]["name"]
POD = {"name": "orders-0", "namespace": "shop", "labels": labels("orders")}
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "orders", "namespace": "shop", "labels": labels("orders")},
}
BUDGET_PATH = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/orders"
SPEC = {
    "applicationId": "orders-v1",
    "image": "registry.example/orders:1",
    "app": {"entrypoint": "orders:topology"},
    "kafka": {"bootstrapServers": ["kafka:9092"]},
}


class Kafka:
    """Brokers that carry out actions, or raise."""

    def __init__(self):
        self.done = []
        self.error = None
        self.forgotten = []

    def observe(self, app, credentials, *plans, internal_topics=()):
        self.credentials, self.internal_topics = credentials, set(internal_topics)
        return KafkaState(brokers=len(self.done) + 1, reason="SecretMissing" if credentials.problem else "")

    def act(self, app, credentials, action):
        if self.error:
            raise self.error
        self.done.append(action)

    def forget(self, uid):
        self.forgotten.append(uid)


class World(PassWorld):
    """An API server with one app, and a controller that makes passes over it."""

    def __init__(self, server, requests):
        self.answered = threading.Event()
        super().__init__(server, requests, Kafka(), KafkaStateCache(lambda _: self.answered.set()))
        self.decisions = []
        self.observed = []
        self.passes = AppController(self.cluster, self.decide, self.brokers, 30.0)
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

    def refuse(self, part, message):
        """Make the API server refuse writes to paths that contain this."""
        served = self.server._answer

        def refusing(method, url, body, content_type):
            if method != "GET" and part in url:
                return 403, {"reason": "Forbidden", "message": message}
            return served(method, url, body, content_type)

        self.server._answer = refusing

    def run(self, *decisions, failures=0):
        """Run a pass that reaches this decision; if it is postponed, run it again when the brokers have answered."""
        self.decisions = list(decisions)
        while True:
            self.answered.clear()
            try:
                return self.passes.run(REF, failures)
            except AnswerAwaitedError:
                assert self.answered.wait(60)

    @property
    def writes(self):
        """The API server's requests other than reads."""
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
    """A settled application costs no request, and the next pass is due at the resync."""
    world.run(Decision(status=StreamsAppStatus(replicas=1)))
    world.server.asked.clear()
    assert world.run(Decision(status=StreamsAppStatus(replicas=1))) == 30.0
    assert world.server.asked == []
    assert world.run(Decision(again_after=7.0)) == 7.0


def test_pass_knows_where_the_operator_runs(world):
    """NetworkPolicies that admit the operator name its namespace."""
    world.run(Decision())
    assert world.observed[0].operator_namespace == "millrace"


def test_deletion_does_not_wait_for_a_backfill_that_has_ended(world):
    """One that left an inconsistent state keeps the application stopped until somebody deletes it, but it no longer writes."""
    path, spec = BACKFILLS.path("shop", "history"), {"appRef": {"name": "orders"}}

    def seen(**status):
        backfill = {"metadata": {"name": "history", "namespace": "shop"}, "spec": spec}
        backfill = world.server.put(path, {**backfill, "status": {"holdsApp": True, **status}})
        world.cluster.resources.put(BACKFILLS, backfill)
        world.run(Decision())
        return world.observed[-1].backfill

    ended = {"phase": "Failed", "completionTime": "2026-01-01T00:00:00Z"}
    assert seen(**ended) == HoldingBackfill("history", has_ended=True)
    app = world.server.objects[PATH]
    deleting = {**app["metadata"], "deletionTimestamp": "2026-01-01T00:00:01Z", "finalizers": ["x"]}
    world.cluster.resources.put(APPS, world.server.put(PATH, {**app, "metadata": deleting}))
    assert seen(**ended) is None
    assert seen(phase="Publishing") == HoldingBackfill("history")


def test_an_application_that_asks_has_its_turn_until_it_needs_none(world):
    """A decision asks for a permit, and later passes see it; a deleted application frees it for another."""
    woken = []
    world.passes.renewals = RenewalLimiter(1, woken.append)
    other = ResourceRef("StreamsApp", "shop", "returns")
    wish = Renewal(left=2, coming=False)
    world.run(Decision(renewal=wish))
    world.passes.renewals.report(other, wish)
    world.run(Decision(renewal=wish))
    assert [observed.renewal for observed in world.observed] == ["Waits", "Now"]
    assert woken == [REF]
    world.cluster.resources.remove(APPS, world.server.objects[PATH])
    world.run()
    assert woken == [REF, other]


def test_actions_come_before_status_and_events(world):
    """A status never reports something that was not done."""
    world.run(Decision((SetFinalizer(True), Apply(MAP)), StreamsAppStatus(replicas=1), (Event("Made", "It is."),)))
    assert [path.rpartition("/")[2] for _, path in world.writes] == ["orders", "configmaps", "status", "events"]


def test_pass_sees_what_the_pass_before_has_done(world):
    """It does so even if no watch has reported it yet."""
    world.run(Decision((Apply(MAP),)))
    world.run(Decision())
    assert [key.name for key in world.observed[1].objects] == [MAP_NAME]


def test_pass_that_acts_is_followed_by_another_soon_and_then_later(world):
    """Passes repeat until there is nothing to do; work that never ends does not loop at full speed."""
    delays = [world.run(Decision((Apply(MAP),))) for _ in range(10)]
    assert delays[:3] == [0.05, 0.1, 0.2]
    assert max(delays) == delays[-1] == 5.0
    world.run(Decision())
    assert world.run(Decision((Apply(MAP),))) == 0.05


def test_nothing_is_done_for_a_resource_that_has_changed(world):
    """With an outdated cache the pass ends before its first action, and the next one sees the change."""
    served = world.server.objects[PATH]
    world.server.put(PATH, {**served, "metadata": {**served["metadata"], "generation": 2}})
    assert world.run(Decision((Apply(MAP),))) == STALE_SECONDS
    assert world.writes == []
    assert world.run(Decision((Apply(MAP),))) == 0.05


def test_nothing_is_done_for_a_resource_that_is_gone(world):
    """Its children would have no owner; the next pass forgets it."""
    uid = world.server.objects[PATH]["metadata"]["uid"]
    world.server.objects.clear()
    assert world.run(Decision((Apply(MAP),))) == STALE_SECONDS
    assert world.run() is None
    assert world.writes == []
    assert world.kafka.forgotten == [uid]


def test_status_that_was_patched_meanwhile_is_not_overwritten(world):
    """The decision was based on an older version: nothing more is done, and the next pass decides again."""
    world.run(Decision(status=StreamsAppStatus(stable_revision="old")))
    served = world.server.objects[PATH]
    world.server.put(PATH, {**served, "status": {"stableRevision": "patched"}})
    world.server.asked.clear()
    assert world.run(Decision((Apply(MAP),), StreamsAppStatus(stable_revision="old", replicas=1))) == STALE_SECONDS
    assert world.writes == []
    world.run(Decision((Apply(MAP),), StreamsAppStatus(stable_revision="patched", replicas=1)))
    assert world.server.objects[PATH]["status"]["stableRevision"] == "patched"


def test_what_a_reset_forgets_during_a_pass_stays_forgotten(world):
    """The pass acts, also on the resource itself, but does not write back the old status."""
    world.run(Decision(status=StreamsAppStatus(stable_revision="old")))
    uid = world.server.objects[PATH]["metadata"]["uid"]
    forget = PatchApp(uid, status={"stableRevision": None})
    do = world.cluster.executor.do

    def do_and_forget(action, app):
        do(action, app)
        world.cluster.executor.patch_app("shop", "orders", forget)

    world.cluster.executor.do = do_and_forget
    decision = Decision((SetFinalizer(True),), StreamsAppStatus(stable_revision="old", replicas=1))
    assert world.run(decision) == STALE_SECONDS
    assert "stableRevision" not in world.server.objects[PATH]["status"]


def test_topics_outlive_their_plans_while_the_application_is_deleted(world):
    """The topics of the status and of every plan seen are still asked about when all ConfigMaps are gone."""
    plan = count_plan("in", "orders-v1").to_json()
    spec = streams_app(application_id="orders-v1").spec
    item = plan_config_map(AppRevision("shop", "orders", "one", spec), plan)
    world.cluster.children.put(CONFIG_MAPS, item)
    world.run(Decision(status=StreamsAppStatus(internal_topics=[InternalTopicStatus(name="old-changelog", ok=True)])))
    world.cluster.children.remove(CONFIG_MAPS, item)
    served = world.server.objects[PATH]
    going = {**served, "metadata": {**served["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "generation": 2}}
    world.cluster.resources.put(APPS, world.server.put(PATH, going))
    world.run(Decision())
    assert world.kafka.internal_topics == {"old-changelog", "orders-v1-c-changelog", "orders-v1-c-repartition"}


@pytest.mark.parametrize(("status", "word"), [(404, "NotFound"), (403, "Forbidden")])
def test_credentials_that_cannot_be_read_are_what_is_known_of_the_brokers(world, status, word):
    """A missing Secret and one that may not be read are reported alike."""

    def get(kind, *args, **query):
        if kind is SECRETS:
            raise ApiError("GET secret", status, word, "")
        return served(kind, *args, **query)

    served, world.requests.get = world.requests.get, get
    world.change({**SPEC, "kafka": {**SPEC["kafka"], "auth": {"type": "plain", "secretRef": {"name": "user"}}}})
    world.run(Decision())
    assert [seen.kafka.reason for seen in world.observed] == ["SecretMissing"]


def test_action_on_kafka_makes_what_is_known_of_it_old(world):
    """The next pass asks the brokers again, no matter how soon it runs."""
    world.run(Decision((DeleteTopics(("t",)),)))
    world.run(Decision())
    assert [seen.kafka.brokers for seen in world.observed] == [1, 2]


def test_without_the_lease_nothing_is_done_on_kafka_either(world):
    """Nothing is reported to the user: another operator is working."""
    world.requests.may_write_seconds = 0.0
    with pytest.raises(TransientError):
        world.run(Decision((DeleteTopics(("t",)),)), failures=99)
    assert world.kafka.done == []
    assert world.writes == []


def test_action_on_kafka_that_outlasts_the_lease_ends(world, monkeypatch):
    """It keeps asking the brokers, but stops once another operator may have started. The next action may ask."""

    def delete(app, credentials, action):
        pause(Deadline(3600), "delete t", "the brokers still have it")
        world.kafka.done.append(action)

    def outlast(app, credentials, action):
        world.requests.may_write_seconds = 0.0
        delete(app, credentials, action)

    monkeypatch.setattr(world.kafka, "act", outlast)
    with pytest.raises(TransientError, match="delete t"):
        world.run(Decision((DeleteTopics(("t",)),)))
    assert world.kafka.done == []
    world.requests.may_write_seconds = 10.0
    monkeypatch.setattr(world.kafka, "act", delete)
    world.run(Decision((DeleteTopics(("t",)),)))
    assert len(world.kafka.done) == 1


def test_rest_of_the_actions_is_left_when_one_fails(world):
    """Later actions may depend on the failed one; the status reports what was observed, and the failure."""
    world.kafka.error = AuthorizationError("Not allowed to delete t")
    with pytest.raises(FailedError):
        world.run(Decision((DeleteTopics(("t",)), Apply(MAP)), StreamsAppStatus(replicas=9)))
    assert not any(path.endswith("/configmaps") for _, path in world.writes)
    assert world.server.objects[PATH]["status"]["replicas"] == 9
    assert (world.stalled["status"], world.stalled["reason"]) == ("True", "RefusedByKafka")


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (ZeroDivisionError("bug"), "OperatorError", "ZeroDivisionError: bug"),
        (AuthorizationError("Not allowed to delete t"), "RefusedByKafka", "Not allowed to delete t"),
    ],
)
def test_failure_is_reported_to_the_user(world, error, reason, says):
    """`Stalled` and an Event say why; the rest of the status stays as it was."""
    world.run(Decision(status=StreamsAppStatus(replicas=3)))
    if reason == "OperatorError":
        decision = error
    else:
        decision, world.kafka.error = Decision((DeleteTopics(("t",)),), StreamsAppStatus(replicas=3)), error
    with pytest.raises(FailedError):
        world.run(decision)
    assert (world.stalled["status"], world.stalled["reason"]) == ("True", reason)
    assert says in world.stalled["message"]
    assert world.server.objects[PATH]["status"]["replicas"] == 3
    events = [item for path, item in world.server.objects.items() if "/events/" in path]
    assert [item["reason"] for item in events if item["type"] == "Warning"] == [reason]


def test_failure_that_lasts_is_written_once(world):
    """The same message is not written twice."""
    for _ in range(3):
        with pytest.raises(FailedError):
            world.run(ZeroDivisionError("bug"))
    assert len(world.writes) == 2


def test_refusal_by_the_api_server_is_reported(world):
    """For a quota or an admission webhook, the condition names the object, the API server's message, and the remedy."""
    world.refuse("/configmaps", "exceeded quota: small")
    with pytest.raises(FailedError):
        world.run(Decision((Apply(MAP),), StreamsAppStatus()))
    assert world.stalled["reason"] == "RefusedByApiServer"
    for part in (f"ConfigMap {MAP_NAME}", "exceeded quota: small", "Change what refuses it"):
        assert part in world.stalled["message"]


def test_refused_pass_ends_in_a_status_of_this_generation(world):
    """Tools that wait for the generation get an answer: Stalled, not Reconciling, and Ready as observed."""
    now = "2026-01-01T00:00:00Z"
    ready = Condition(type="Ready", status="False", reason="PodsNotReady", message="1 of 2", last_transition_time=now)
    at_work = Condition(type="Reconciling", status="True", reason="ScalingOut", message="", last_transition_time=now)
    seen = StreamsAppStatus(observed_generation=4, replicas=1, lifecycle_state="Scaling", conditions=(ready, at_work))
    world.change(SPEC, generation=4)
    world.refuse("/configmaps", "exceeded quota: small")
    with pytest.raises(FailedError):
        world.run(Decision((Apply(MAP),), seen))
    status = world.server.objects[PATH]["status"]
    conditions = {item["type"]: item["status"] for item in status["conditions"]}
    assert conditions == {"Ready": "False", "Reconciling": "False", "Stalled": "True"}
    assert (status["observedGeneration"], status["lifecycleState"], status["replicas"]) == (4, "Blocked", 1)


def test_failed_decision_ends_in_a_status_of_this_generation(world):
    """Tools that wait for the generation get an answer even if nothing could be decided."""
    world.change(SPEC, generation=2)
    with pytest.raises(FailedError):
        world.run(ZeroDivisionError("bug"))
    status = world.server.objects[PATH]["status"]
    assert (status["observedGeneration"], status["lifecycleState"]) == (2, "Blocked")


def test_refused_supporting_child_holds_nothing_up(world):
    """A refused PodDisruptionBudget is reported by name; the actions after it are carried out at the usual pace."""
    world.refuse("/poddisruptionbudgets", "no such budgets here")
    now = "2026-01-01T00:00:00Z"
    at_work = Condition(type="Reconciling", status="True", reason="ScalingOut", message="", last_transition_time=now)
    decision = Decision((Apply(BUDGET), Apply(MAP)), StreamsAppStatus(lifecycle_state="Scaling", conditions=(at_work,)))
    with pytest.raises(FailedError) as raised:
        world.run(decision)
    assert raised.value.again_after == 0.05
    assert any(path.endswith("/configmaps") for _, path in world.writes)
    assert "PodDisruptionBudget orders" in world.stalled["message"]
    status = world.server.objects[PATH]["status"]
    assert status["lifecycleState"] == "Scaling", "the rest goes on"
    world.refuse("/poddisruptionbudgets", "no such budgets here")
    with pytest.raises(FailedError) as raised:
        world.run(Decision((Apply(BUDGET),), StreamsAppStatus(lifecycle_state="Running"), again_after=1.0))
    assert raised.value.again_after == 5.0, "with nothing else to do it is not tried at once"
    assert world.server.objects[PATH]["status"]["lifecycleState"] == "Blocked"


def test_finalizer_outlives_a_refused_deletion(world):
    """Without the finalizer, objects that could not be deleted would be forgotten."""
    budget = world.server.put(BUDGET_PATH, BUDGET)
    world.refuse("/poddisruptionbudgets", "not yours")
    delete = Delete(Key("PodDisruptionBudget", "orders"), budget["metadata"]["uid"])
    with pytest.raises(FailedError):
        world.run(Decision((delete, SetFinalizer(present=False)), StreamsAppStatus()))
    assert [path for _, path in world.writes if path == PATH] == []


@pytest.mark.parametrize(("kind", "name"), [(PODS, "orders-0"), (CLAIMS, "state-orders-0")])
def test_finalizer_outlives_children_that_no_watch_has_reported(world, kind, name):
    """Otherwise, pods and claims of a StatefulSet deleted right after its creation would be left behind unseen."""
    made = {"kind": kind.kind, "metadata": {"name": name, "namespace": "shop", "labels": labels("orders")}, "spec": {}}
    world.server.put(kind.path("shop", name), made)
    done = Decision((SetFinalizer(present=False),), StreamsAppStatus())
    assert world.run(done) == STALE_SECONDS
    assert [path for _, path in world.writes if path == PATH] == []
    world.run(Decision())
    assert list(world.observed[-1].objects) == [Key(kind.kind, name)]
    world.run(done)
    assert ("PATCH", PATH) in world.writes, "what is known and still there is what the policy leaves"


def test_finalizer_goes_where_nothing_may_be_listed(world):
    """A namespace that is being deleted may already have taken the operator's right to list."""
    served = world.server._answer

    def refusing(method, url, body, content_type):
        if method == "GET" and "labelSelector" in url:
            return 403, {"reason": "Forbidden", "message": "pods is forbidden"}
        return served(method, url, body, content_type)

    world.server._answer = refusing
    world.run(Decision((SetFinalizer(present=False),), StreamsAppStatus()))
    assert ("PATCH", PATH) in world.writes


def test_status_that_may_not_be_written_is_logged(world, caplog):
    """The pass counts as failed, because the resource cannot show the failure."""
    world.refuse("/streamsapps/orders/status", "streamsapps/status is forbidden")
    with pytest.raises(FailedError):
        world.run(Decision(status=StreamsAppStatus(replicas=1)))
    assert "the status could not be written" in caplog.text
    assert "streamsapps/status is forbidden" in caplog.text


def test_transient_failure_is_reported_only_when_it_lasts(world):
    """Examples are slow brokers or a restarting API server."""
    world.kafka.error = StreamsTimeoutError("The brokers did not answer within 30 s")
    with pytest.raises(TransientError):
        world.run(Decision((DeleteTopics(("t",)),)), failures=TRANSIENT_FAILURES - 1)
    assert world.stalled is None
    with pytest.raises(FailedError):
        world.run(Decision((DeleteTopics(("t",)),)), failures=TRANSIENT_FAILURES)
    assert "did not answer" in world.stalled["message"]


def test_log_names_actions_without_what_they_write(world, caplog):
    """Manifests do not belong in logs."""
    caplog.set_level("INFO")
    world.run(Decision((Apply({**MAP, "data": {"plan.json": "long"}}),)))
    assert f"Apply ConfigMap {MAP_NAME}" in caplog.text
    assert "long" not in caplog.text


def test_next_decision_knows_a_name_that_a_foreign_object_has(world):
    """The first decision did not know about it and ends its pass; the next one does everything else and writes the status."""
    path = CONFIG_MAPS.path("shop", MAP_NAME)
    theirs = world.server.put(path, {"kind": "ConfigMap", "metadata": {"name": MAP_NAME, "namespace": "shop"}})
    both = (Apply(MAP), Apply({**MAP, "kind": "Service"}))
    assert world.run(Decision(both, StreamsAppStatus(replicas=1))) == STALE_SECONDS
    assert "status" not in world.server.objects[PATH]
    assert world.run(Decision(both, StreamsAppStatus(replicas=1))) == 0.05
    told = world.observed[1].taken[Key("ConfigMap", MAP_NAME)]
    assert told.startswith(f"ConfigMap {MAP_NAME} exists and does not belong to this StreamsApp")
    assert world.server.objects[PATH]["status"]["replicas"] == 1
    assert [key.kind for key in world.cluster.children.of_app("shop", "orders")] == ["Service"]
    assert world.run(Decision((Apply(MAP),), StreamsAppStatus(replicas=1))) == 30.0, "nothing was done"
    assert world.server.objects[path] == theirs
    del world.server.objects[path]
    world.run(Decision((Apply(MAP),), StreamsAppStatus(replicas=1)))
    world.run(Decision())
    assert world.observed[-1].taken == {}


@pytest.mark.parametrize("terminating", [True, False])
def test_children_are_left_to_the_deletion_of_their_namespace(world, monkeypatch, terminating):
    """It may have taken the operator's rights to them, which must not block the finalizer; other refusals are reported."""
    world.run(Decision((Apply(MAP),)))
    obj = world.server.objects[PATH]
    world.server.put(PATH, {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    world.cluster.resources.put(APPS, world.server.objects[PATH])
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {}
    world.server.put(NAMESPACES.path(None, "shop"), {"kind": "Namespace", "metadata": {"name": "shop", **deleted}})

    def refused(*_arguments, **_options):
        raise ApiError("delete", 403, "Forbidden", "no right")

    monkeypatch.setattr(world.requests, "delete", refused)
    decision = Decision((Delete(Key("ConfigMap", MAP_NAME), "uid"), SetFinalizer(False)))
    if not terminating:
        with pytest.raises(FailedError, match="no right"):
            world.run(decision)
        return
    world.run(decision)
    assert world.cluster.children.of_app("shop", "orders") == {}
    assert not world.server.objects.get(PATH, {"metadata": {}})["metadata"].get("finalizers")
    assert world.writes[-1] == ("PATCH", PATH)


def test_pods_have_their_time_in_a_namespace_that_is_deleted(world, monkeypatch):
    """If the operator may no longer delete a pod, the pod ends with its namespace and exists until a watch reports it gone."""
    path = PODS.path("shop", "orders-0")
    pod = world.server.put(path, {"kind": "Pod", "spec": {"terminationGracePeriodSeconds": 3600}, "metadata": POD})
    world.cluster.children.put(PODS, pod)
    obj = world.server.objects[PATH]
    world.server.put(PATH, {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    world.cluster.resources.put(APPS, world.server.objects[PATH])

    def refused(*_arguments, **_options):
        raise ApiError("delete", 403, "Forbidden", "namespace shop is being terminated")

    monkeypatch.setattr(world.requests, "delete", refused)
    world.run(Decision((Delete(Key("Pod", "orders-0"), pod["metadata"]["uid"]),)))
    world.run(Decision())
    (seen,) = world.observed[-1].objects.values()
    assert datetime.fromisoformat(seen["metadata"]["deletionTimestamp"]) > datetime.now(UTC)
    world.cluster.children.remove(PODS, world.server.put(path, pod))
    world.run(Decision())
    assert world.observed[-1].objects == {}


@pytest.mark.parametrize("comes_back", [False, True])
def test_foreign_pod_is_forgotten_when_it_is_gone(world, comes_back):
    """Another pod with its name may be the application's own."""
    others = {"name": "orders", "namespace": "shop"}
    theirs = world.server.put(STATEFUL_SETS.path("shop", "orders"), {"kind": "StatefulSet", "metadata": others})
    owner = {"kind": "StatefulSet", "name": "orders", "uid": theirs["metadata"]["uid"], "controller": True}
    path = PODS.path("shop", "orders-0")
    pod = world.server.put(path, {"kind": "Pod", "metadata": {**POD, "ownerReferences": [owner]}})
    world.cluster.children.put(PODS, pod)
    assert world.run(Decision((Delete(Key("Pod", "orders-0"), pod["metadata"]["uid"]),))) == STALE_SECONDS
    world.run(Decision())
    assert list(world.observed[-1].taken) == [Key("Pod", "orders-0")]
    world.cluster.children.remove(PODS, pod)
    if comes_back:
        del world.server.objects[path]
        world.cluster.children.put(PODS, world.server.put(path, {"kind": "Pod", "metadata": POD}))
    world.run(Decision())
    assert world.observed[-1].taken == {}


def test_nothing_has_to_be_made_in_a_namespace_that_is_deleted(world, monkeypatch):
    """The API server's refusal is reported; the actions after it are still carried out."""
    obj = world.server.objects[PATH]
    world.server.put(PATH, {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    world.cluster.resources.put(APPS, world.server.objects[PATH])

    def refused(*_arguments, **_options):
        message = "unable to create new content in namespace shop because it is being terminated"
        raise ApiError("apply", 403, "Forbidden", message)

    monkeypatch.setattr(world.requests, "apply", refused)
    world.run(Decision((Apply(MAP), SetFinalizer(False))))
    assert world.writes[-1] == ("PATCH", PATH)
