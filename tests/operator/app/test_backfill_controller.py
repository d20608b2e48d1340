"""Passes over backfills, against an API server over HTTP: what they ask for, what they read, and what they leave alone."""

import json
import time
from contextlib import closing

import pytest
from tests.operator.app.support import OperationWorld

from millrace.errors import StreamsTimeoutError
from millrace.manifest import StreamsBackfillStatus
from millrace.plan import reset
from millrace_operator.app import operation_order
from millrace_operator.app.backfill_controller import BackfillController
from millrace_operator.app.backoff import STALE_SECONDS, FailedError, TransientError
from millrace_operator.app.operation_order import unfinished_before
from millrace_operator.backfills.spark_application import BACKFILL_LABEL, BACKFILL_UID_LABEL
from millrace_operator.children.naming import FINALIZER, MANAGER
from millrace_operator.cluster import observe
from millrace_operator.cluster.kinds import (
    APPS,
    BACKFILLS,
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    RESETS,
    SECRETS,
    SPARK_APPLICATIONS,
)
from millrace_operator.cluster.observe import holding_backfill
from millrace_operator.model import DeleteGroup, HoldingBackfill, ResourceRef
from millrace_operator.reconcile.timestamps import timestamp

REF, APP = ResourceRef("StreamsBackfill", "default", "history"), ResourceRef("StreamsApp", "default", "app")
SPARK = SPARK_APPLICATIONS[0]
SPEC = {"appRef": {"name": "app"}, "driver": {"serviceAccountName": "spark"}}
PUBLISHING = '{"backfill": {"state": "Publishing"}}\n'
COMPUTING = '{"backfill": {"state": "Computing"}}\n'


class Kafka:
    """Brokers with an empty group, which know what a backfill has published."""

    def __init__(self):
        self.acted, self.failure = [], None
        self.asked, self.answer, self.servers, self.plans = [], "Nothing", [], []

    def published(self, app, credentials, backfill, plans):
        self.plans += plans
        self.asked.append((app.metadata.name, backfill))
        self.servers.append(list(app.spec.kafka.bootstrap_servers))
        if self.answer is None:
            raise StreamsTimeoutError("no broker answered")
        return self.answer

    def act(self, app, credentials, action):
        self.acted.append((app.metadata.name, action))
        if self.failure is not None:
            raise self.failure

    def observe_for_reset(self, app, credentials, plan, target):
        return reset.ObservedApplication(topics={"in": 1}, groups=frozenset({"app"}))


class World(OperationWorld):
    """An API server that serves SparkApplications, with an app without pods and a backfill of it."""

    def __init__(self, server, requests):
        super().__init__(server, requests, Kafka(), BackfillController, REF)
        server.objects["/apis/sparkoperator.k8s.io/v1beta2"] = {"resources": [{"name": "sparkapplications"}]}
        self.app_status(currentRevision=self.revision)
        self.watch(BACKFILLS, self.serve(BACKFILLS, "history", SPEC))
        self.ended_at = timestamp(time.time())
        """When drivers end."""

    def app_status(self, **status):
        """Let the app have a status."""
        self.watch(APPS, self.serve(APPS, "app", self.spec, status={"observedGeneration": 1, **status}))

    @property
    def status(self):
        """The backfill's status as it is served."""
        return self.server.objects[BACKFILLS.path("default", "history")].get("status", {})

    def delete(self):
        """Have somebody delete the backfill, which its finalizer keeps."""
        path = BACKFILLS.path("default", "history")
        backfill = self.server.objects[path]
        metadata = {**backfill["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        self.watch(BACKFILLS, self.server.put(path, {**backfill, "metadata": metadata}))

    def allow_one_attempt(self):
        """Let the backfill have one attempt only."""
        self.watch(BACKFILLS, self.serve(BACKFILLS, "history", {**SPEC, "attempts": 1}))

    def condition_since(self, kind, at):
        """Let a condition have its status since then."""
        path = BACKFILLS.path("default", "history")
        backfill = self.server.objects[path]
        for condition in backfill["status"]["conditions"]:
            if condition["type"] == kind:
                condition["lastTransitionTime"] = at
        self.watch(BACKFILLS, self.server.put(path, backfill))

    def phase_since(self, at):
        """Let the backfill have its phase since then."""
        path = BACKFILLS.path("default", "history")
        backfill = self.server.objects[path]
        self.watch(BACKFILLS, self.server.put(path, {**backfill, "status": {**backfill["status"], "phaseTime": at}}))

    def submit(self):
        """Make passes until the SparkApplication exists."""
        self.run()
        self.app_status(currentRevision=self.revision, backfill="history")
        self.run()
        assert self.status["phase"] == "Submitted"
        self.application = self.server.objects[SPARK.path("default", "history-1")]

    def follow(self, log=COMPUTING, state="running", spark="RUNNING"):
        """Make passes until one sees that the first attempt's driver has this log and state; return its pod."""
        self.submit()
        pod = self.driver(log, state)
        self.spark_state(spark)
        self.run()
        return pod

    def spark_state(self, state):
        """Let the SparkApplication be in this state."""
        spec, metadata = self.application["spec"], self.application["metadata"]
        self.serve(SPARK, "history-1", spec, metadata=metadata, status={"applicationState": {"state": state}})

    def driver(self, log, state="running", injected=()):
        """Let a driver run with this log, or be in another state, beside the states of injected containers."""
        labels = {**self.application["metadata"]["labels"], "app.kubernetes.io/component": "backfill-driver"}
        ended = {"finishedAt": self.ended_at} if state == "terminated" else {}
        containers = [*injected, {"name": "spark-kubernetes-driver", "state": {state: ended}}]
        status = {"phase": "Running", "containerStatuses": containers}
        self.server.logs[PODS.path("default", "history-1-driver", "log")] = log
        return self.serve(PODS, "history-1-driver", {}, metadata={"labels": labels}, status=status)


@pytest.fixture
def world(server, requests):
    """A world with one backfill."""
    with closing(World(server, requests)) as world:
        yield world


@pytest.fixture
def computing(world):
    """A world in which the first attempt computes."""
    world.follow()
    return world


def test_backfill_takes_the_lock_and_then_creates_the_spark_application(world):
    """The lock is in the API before anything is created; the ConfigMap comes before what mounts it."""
    world.run()
    assert (world.status["phase"], world.status["holdsApp"]) == ("Suspending", True)
    assert holding_backfill(world.cluster.resources, APP) == HoldingBackfill("history")
    world.submit()
    created = [path for method, path, _, _ in world.server.asked if method == "POST"]
    assert [path.rpartition("/")[2] for path in created if "events" not in path] == ["configmaps", "sparkapplications"]
    config_map = world.server.objects[CONFIG_MAPS.path("default", "history.backfill")]
    assert json.loads(config_map["data"]["streamsapp.yaml"])["spec"]["applicationId"] == "app"


def test_progress_is_read_from_the_drivers_log(world):
    """The last report counts, whatever else the program prints."""
    world.submit()
    world.spark_state("RUNNING")
    report = {"state": "Computing", "stages": [{"name": "0", "tasks": 2, "done": 2, "recordsPerSecond": 10.7}]}
    log = '{"backfill": {"state": "Computing"}}\nhello\n' + json.dumps({"backfill": report}) + "\nbye\n"
    world.driver(log)
    world.run()
    assert (world.status["phase"], world.status["progress"]) == ("Computing", "1/1")
    assert world.status["stages"][0]["recordsPerSecond"] == 11
    assert world.status["spark"]["driverPod"] == "history-1-driver"
    asked = [query for _, path, query, _ in world.server.asked if path.endswith("/log")]
    assert all("tailLines" in query for query in asked)


def test_containers_that_are_injected_into_the_driver_do_not_matter(world):
    """Kubernetes tells the log of one container only, and a proxy that runs has published nothing."""
    proxy = {"name": "proxy", "state": {"running": {}}}
    world.submit()
    world.driver("", "waiting", injected=[proxy])
    world.run()
    assert "driverPod" not in world.status["spark"]
    world.driver(COMPUTING, injected=[proxy])
    world.spark_state("RUNNING")
    world.run()
    assert world.status["phase"] == "Computing"
    assert world.status["spark"]["driverPod"] == "history-1-driver"


@pytest.mark.parametrize("after", [100, 1000])
def test_report_before_much_else_is_found(world, after):
    """An error and Java's own words about it follow the last report; without that, every attempt would be made."""
    report = {"backfill": {"state": "Refused", "message": "Record 5 of in cannot be read"}}
    world.follow(json.dumps(report) + "\n" + "\tat org.apache.spark\n" * after, "terminated", spark="FAILED")
    assert (world.status["outcome"], world.status["message"]) == ("Refused", "Record 5 of in cannot be read")


def test_last_report_of_a_long_log_is_read_and_not_an_older_one(world):
    """Kubernetes leaves out the end of what is longer than asked for."""
    world.submit()
    computing = json.dumps({"backfill": {"state": "Computing", "notes": ["x" * 8_000]}})
    refused = json.dumps({"backfill": {"state": "Refused", "message": "Record 5 of in cannot be read"}})
    lines = [*[computing] * 2_000, refused, *["\tat org.apache.spark"] * 100]
    world.driver("\n".join(lines) + "\n", "terminated")
    world.spark_state("FAILED")
    world.run()
    assert (world.status["outcome"], world.status["message"]) == ("Refused", "Record 5 of in cannot be read")


def test_log_that_has_lost_its_reports_says_nothing(computing):
    """It was rotated: the job may have begun to publish, so it is not cancelled, and its end is judged as without a log."""
    computing.driver("hello\n")
    computing.delete()
    computing.run()
    assert computing.status["phase"] == "Computing"
    assert (
        computing.status["message"] == "The last lines of the log of pod history-1-driver contain no report of the job."
    )
    computing.driver("hello\n", "terminated")
    computing.spark_state("FAILED")
    computing.condition_since("DriverLogUnreadable", "2026-01-01T00:00:00Z")
    computing.run()
    assert computing.status["phase"] == "Computing"
    computing.ended_at = "2026-01-01T00:00:00Z"
    computing.driver("hello\n", "terminated")
    computing.run()
    conditions = {item["type"]: item["status"] for item in computing.status["conditions"]}
    assert (computing.status["phase"], conditions["PublicationBegun"]) == ("Stopping", "Unknown")
    computing.run()
    conditions = {item["type"]: item["status"] for item in computing.status["conditions"]}
    assert conditions["DriverLogUnreadable"] == "True"


def test_long_error_is_cut_to_what_a_status_may_hold(world):
    """The API server would refuse the status in every pass, and the application would stay stopped."""
    report = {"backfill": {"state": "Refused", "message": f"Record 5 of in cannot be read: {'x' * 40_000}"}}
    world.follow(json.dumps(report) + "\n", "terminated", spark="FAILED")
    assert world.status["message"].startswith("Record 5 of in cannot be read: xxx")
    StreamsBackfillStatus.model_validate(world.status)


def test_stage_of_many_sub_topologies_has_a_name_that_a_status_may_hold(world):
    """Otherwise none of the job's reports could be read, and a deletion would cancel it while it publishes."""
    stages = [{"name": f"sub-topologies {', '.join(map(str, range(200)))}", "tasks": 200, "done": 200}]
    report = {"backfill": {"state": "Publishing", "hasPublished": True, "stages": stages}}
    world.follow(json.dumps(report) + "\n")
    assert (world.status["phase"], world.status["progress"]) == ("Publishing", "1/1")
    assert world.status["stages"][0]["name"].startswith("sub-topologies 0, 1, 2, ")
    StreamsBackfillStatus.model_validate(world.status)


def test_failed_drivers_last_words_are_the_reason(world):
    """A program that cannot be imported reports nothing; its traceback says why."""
    world.submit()
    world.spark_state("FAILED")
    world.driver("Traceback\nModuleNotFoundError: No module named 'pyspark'\n")
    world.run()
    assert "No module named 'pyspark'" in world.status["message"]


@pytest.mark.parametrize("failure", [None, StreamsTimeoutError("no broker answered")])
def test_group_of_attempts_goes_when_the_backfill_has_ended(world, failure):
    """Brokers that do not answer keep neither the application nor the backfill: what is left there expires."""
    world.kafka.failure = failure
    world.submit()
    world.driver('{"backfill": {"state": "Succeeded"}}\n', "terminated")
    pod = PODS.path("default", "history-1-driver")
    world.server.put(pod, {**world.server.objects[pod], "status": {"phase": "Succeeded"}})
    world.spark_state("COMPLETED")
    for _ in range(3):
        assert world.kafka.acted == []
        world.run()
    assert world.status["phase"] == "Succeeded"
    backfill = world.server.objects[BACKFILLS.path("default", "history")]["metadata"]
    assert world.kafka.acted == [("app", DeleteGroup(backfill["uid"]))]
    assert not backfill.get("finalizers")


def test_attempt_after_a_change_of_the_application_has_the_image_of_the_first(world):
    """The first attempt's ConfigMap says what that was: what it has published in part is finished by the same program."""
    world.follow(PUBLISHING)
    world.spec["image"] = "registry.example/app:2"
    world.app_status(currentRevision=world.revision, backfill="history")
    pod = world.driver(PUBLISHING, "terminated")
    world.server.put(PODS.path("default", "history-1-driver"), {**pod, "status": {**pod["status"], "phase": "Failed"}})
    world.spark_state("FAILED")
    world.run()
    world.run()
    assert world.server.objects[SPARK.path("default", "history-2")]["spec"]["image"] == "registry.example/app:1"


def test_somebody_elses_spark_application_is_left_alone(world):
    """Its name is taken, and the status says so; the application is let go."""
    world.serve(SPARK, "history-1", {"type": "Scala"})
    world.run()
    world.app_status(currentRevision=world.revision, backfill="history")
    world.run()
    world.run()
    assert (world.status["phase"], world.status.get("holdsApp")) == ("Refused", None)
    assert "does not belong to this StreamsBackfill" in world.status["message"]
    assert world.server.objects[SPARK.path("default", "history-1")]["spec"] == {"type": "Scala"}


@pytest.mark.parametrize(("kind", "name"), [(CONFIG_MAPS, "history.backfill"), (SPARK, "history-1")])
def test_what_an_earlier_backfill_of_the_name_has_left_is_waited_for(world, kind, name):
    """After `kubectl replace --force` the garbage collector needs a moment. What stays counts as somebody else's."""
    labels = {"app.kubernetes.io/managed-by": MANAGER, BACKFILL_LABEL: "history", BACKFILL_UID_LABEL: "earlier"}
    world.serve(kind, name, {}, metadata={"labels": labels})
    world.run()
    world.app_status(currentRevision=world.revision, backfill="history")
    world.run()
    assert (world.status["phase"], world.status["holdsApp"]) == ("Suspending", True)
    assert f"{kind.kind} {name} belongs to an earlier StreamsBackfill" in world.status["message"]
    left = world.server.objects.pop(kind.path("default", name))
    world.run()
    assert world.status["phase"] == "Submitted"
    assert world.server.objects[kind.path("default", name)]["metadata"]["uid"] != left["metadata"]["uid"]


def test_namespace_that_is_deleted_ends_a_backfill_that_publishes(world):
    """Nothing can be created in it any more, and the finalizer must not keep it."""
    world.allow_one_attempt()
    world.follow(PUBLISHING)
    world.delete()
    config_map, attempt = CONFIG_MAPS.path("default", "history.backfill"), SPARK.path("default", "history-2")
    for path in (config_map, SPARK.path("default", "history-1"), PODS.path("default", "history-1-driver")):
        del world.server.objects[path]
    for path in (config_map, attempt):
        world.server.refused[path] = (403, "forbidden because namespace default is being terminated")
    for _ in range(4):
        world.run()
    assert world.status["phase"] == "Failed"
    assert "is being terminated" in world.status["message"]
    assert not world.server.objects[BACKFILLS.path("default", "history")]["metadata"]["finalizers"]


def left_half(world):
    """Make passes until the backfill was deleted, has left an inconsistent state, and is kept for that."""
    world.spec["state"] = "running"
    world.allow_one_attempt()
    log = PUBLISHING
    world.follow(log)
    world.delete()
    pod = world.driver(log, "terminated")
    world.server.put(PODS.path("default", "history-1-driver"), {**pod, "status": {**pod["status"], "phase": "Failed"}})
    world.spark_state("FAILED")
    for _ in range(4):
        world.run()
    assert (world.status["phase"], world.status["holdsApp"]) == ("Failed", True)
    assert world.server.objects[BACKFILLS.path("default", "history")]["metadata"]["finalizers"] == [FINALIZER]


def test_half_a_state_keeps_a_deleted_backfill_until_another_one_has_succeeded(world):
    """The application would be started on it as soon as the resource is gone."""
    left_half(world)
    assert holding_backfill(world.cluster.resources, APP) == HoldingBackfill("history", has_ended=True)
    succeeded = {"phase": "Succeeded", "completionTime": "2100-01-01T00:00:00Z"}
    world.watch(BACKFILLS, world.serve(BACKFILLS, "again", SPEC, status=succeeded))
    world.run()
    assert not world.server.objects[BACKFILLS.path("default", "history")]["metadata"]["finalizers"]
    assert holding_backfill(world.cluster.resources, APP) is None


@pytest.mark.parametrize("deleted", [{}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
def test_success_stays_until_the_backfill_that_is_kept_has_seen_it(world, deleted):
    """That one would keep the application stopped for ever if the other were deleted before, or had no time to live."""
    left_half(world)
    again, path = ResourceRef("StreamsBackfill", "default", "again"), BACKFILLS.path("default", "again")
    status = {"phase": "Succeeded", "completionTime": "2100-01-01T00:00:00Z"}
    metadata = {"finalizers": [FINALIZER], **deleted}
    spec = {**SPEC, "ttlSecondsAfterFinished": 0}
    world.watch(BACKFILLS, world.serve(BACKFILLS, "again", spec, metadata=metadata, status=status))
    for _ in range(2):
        assert world.passes.run(again, 0) is not None
        assert world.server.objects[path]["metadata"]["finalizers"] == [FINALIZER]
    world.run()
    assert not world.server.objects[BACKFILLS.path("default", "history")]["metadata"]["finalizers"]
    world.passes.run(again, 0)
    assert not world.server.objects[path]["metadata"]["finalizers"]


def test_pass_over_a_backfill_that_has_ended_does_not_read_all_others(world, monkeypatch):
    """There may be hundreds, of which nearly none is kept, and each pass over each would validate all."""
    ended = {"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00Z"}
    for number in range(3):
        name, metadata = f"history-{number}", {"uid": f"h-{number}"}
        world.watch(BACKFILLS, world.serve(BACKFILLS, name, SPEC, metadata=metadata, status=ended))
    read = []

    def desired_from(body, kind):
        read.append(body["metadata"]["name"])
        return observe.desired_from(body, kind)

    monkeypatch.setattr(operation_order, "desired_from", desired_from)
    world.passes.run(ResourceRef("StreamsBackfill", "default", "history-0"), 0)
    assert read == []


OUTCOMES = [
    ("Nothing", "Failed", None),
    ("Parts", "Failed", True),
    ("Everything", "Succeeded", None),
    (None, "Stopping", True),
]


def check_answer(world, answer, phase, held):
    """Check how an attempt ends that has failed and of which no report is known, if the brokers answer this."""
    world.run()
    world.kafka.answer = answer
    world.run()
    if answer is None:
        assert world.status["phase"] == "Stopping"
        world.phase_since("2026-01-01T00:00:00Z")
        world.condition_since("SparkPodsStopped", "2026-01-01T00:00:00Z")
    world.run()
    assert (world.status["phase"], world.status.get("holdsApp")) == (phase, held)


@pytest.mark.parametrize(("answer", "phase", "held"), OUTCOMES)
@pytest.mark.parametrize("seen", [True, False])
def test_brokers_are_asked_what_a_driver_without_a_log_has_published(world, seen, answer, phase, held):
    """It has gone with its pod, and may have published before. While brokers do not answer, nothing begins and nothing ends."""
    world.allow_one_attempt()
    world.submit()
    if seen:
        pod = world.driver("")
        world.run()
        del world.server.objects[PODS.path("default", pod["metadata"]["name"])]
    world.spark_state("FAILED")
    check_answer(world, answer, phase, held)
    uid = world.server.objects[BACKFILLS.path("default", "history")]["metadata"]["uid"]
    assert set(world.kafka.asked) == {("app", uid)}
    assert {plan.application_id for plan in world.kafka.plans} == {"app"}


def cancelled(world):
    """Make passes until a job that computes is being stopped, and return its driver's pod."""
    pod = world.follow()
    world.delete()
    world.run()
    assert (world.status["phase"], world.status["outcome"]) == ("Stopping", "Cancelled")
    return pod


def test_job_that_begins_to_publish_while_it_is_cancelled_is_finished(world):
    """Its pod goes before its log can be read again. The brokers are asked once nothing can be published any more."""
    pod = cancelled(world)
    world.run()
    assert SPARK.path("default", "history-1") not in world.server.objects
    world.run()
    assert world.kafka.asked == []
    world.kafka.answer = "Parts"
    del world.server.objects[PODS.path("default", pod["metadata"]["name"])]
    world.run()
    assert len(world.kafka.asked) == 1
    world.run()
    assert (world.status["phase"], world.status["attempt"], world.status["holdsApp"]) == ("Submitted", 2, True)
    published = next(item for item in world.status["conditions"] if item["type"] == "PublicationBegun")
    assert (published["status"], published["reason"]) == ("True", "Publishing")


def test_brokers_that_the_attempts_had_are_asked(world):
    """The application has others now, which know nothing of the backfill."""
    pod = world.follow()
    before = world.spec["kafka"]["bootstrapServers"]
    world.spec["kafka"] = {**world.spec["kafka"], "bootstrapServers": ["others:9092"]}
    world.app_status(currentRevision=world.revision, backfill="history")
    world.run()
    assert (world.status["phase"], world.status["outcome"]) == ("Stopping", "Cancelled")
    world.run()
    del world.server.objects[PODS.path("default", pod["metadata"]["name"])]
    world.kafka.answer = "Everything"
    world.run()
    assert world.kafka.servers == [before]
    world.run()
    assert world.status["phase"] == "Succeeded"


def test_job_that_was_deleted_with_its_backfill_while_no_operator_ran_is_not_done_again(world):
    """The garbage collector has deleted all that it owned. Its driver was seen before that, so it may have published."""
    pod = world.follow()
    world.delete()
    gone = (SPARK.path("default", "history-1"), CONFIG_MAPS.path("default", "history.backfill"))
    for path in (*gone, PODS.path("default", pod["metadata"]["name"])):
        del world.server.objects[path]
    for _ in range(3):
        world.run()
    assert (world.status["phase"], world.status["attempt"], world.status.get("holdsApp")) == ("Failed", 1, None)
    assert world.status["message"] == "The backfill was deleted. Nothing was published."
    assert SPARK.path("default", "history-2") not in world.server.objects
    assert not world.server.objects[BACKFILLS.path("default", "history")]["metadata"]["finalizers"]


@pytest.mark.parametrize("phase", ["Publishing", "Stopping"])
def test_deleted_backfill_whose_spec_cannot_be_read_keeps_its_application_stopped(world, phase):
    """It has begun with a later operator. Its job has failed while it published, and nobody knows what."""
    world.spec["state"] = "running"
    log = PUBLISHING
    pod = world.follow(log)
    world.delete()
    world.server.put(PODS.path("default", "history-1-driver"), {**pod, "status": {**pod["status"], "phase": "Failed"}})
    world.spark_state("FAILED")
    if phase == "Stopping":
        world.run()
    assert world.status["phase"] == phase
    path = BACKFILLS.path("default", "history")
    backfill = world.server.objects[path]
    world.watch(BACKFILLS, world.server.put(path, {**backfill, "spec": {**backfill["spec"], "later": 1}}))
    for _ in range(3):
        world.run()
    assert (world.status["phase"], world.status["holdsApp"]) == ("Failed", True)
    assert "This operator cannot read the spec" in world.status["message"]
    assert world.server.objects[path]["metadata"]["finalizers"] == [FINALIZER]


def test_phase_of_a_later_operator_stays_in_the_status(world):
    """So that one goes on with the backfill when it is back. Until then the application stays stopped."""
    world.follow(PUBLISHING)
    path = BACKFILLS.path("default", "history")
    backfill = world.server.objects[path]
    later = {**backfill["status"], "phase": "Verifying"}
    world.watch(BACKFILLS, world.server.put(path, {**backfill, "status": later}))
    for _ in range(2):
        assert world.run() == 30.0
    assert (world.status["phase"], world.status["holdsApp"]) == ("Verifying", True)
    assert world.status["message"].startswith("This operator cannot read the phase in the status")


def test_brokers_are_not_asked_what_the_log_of_a_driver_says(world):
    """It was read to its end, so nobody has to guess."""
    world.submit()
    pod = world.driver('{"backfill": {"state": "Failed", "message": "it is full"}}\n', "terminated")
    world.server.put(PODS.path("default", "history-1-driver"), {**pod, "status": {**pod["status"], "phase": "Failed"}})
    world.spark_state("FAILED")
    for _ in range(3):
        world.run()
    assert (world.status["phase"], world.status["attempt"], world.kafka.asked) == ("Submitted", 2, [])


EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}


@pytest.mark.parametrize(("answer", "phase", "held"), OUTCOMES)
@pytest.mark.parametrize("evicted", [False, True])
def test_brokers_are_asked_what_a_driver_whose_log_has_no_report_has_published(world, evicted, answer, phase, held):
    """No operator has run while it did, and all its reports were lost when the log was rotated, or the driver evicted."""
    world.allow_one_attempt()
    world.submit()
    pod = world.driver("hello\n", "terminated")
    status = EVICTED if evicted else {**pod["status"], "phase": "Failed"}
    world.server.put(PODS.path("default", "history-1-driver"), {**pod, "status": status})
    world.spark_state("FAILED")
    check_answer(world, answer, phase, held)


@pytest.mark.parametrize("evicted", [False, True])
def test_cancelled_job_without_a_report_may_have_published_if_brokers_do_not_answer(world, evicted):
    """They are asked until they do, so that there is no inconsistent state."""
    world.spec["state"] = "running"
    pod = world.follow("hello\n")
    world.delete()
    world.run()
    assert (world.status["phase"], world.status["outcome"]) == ("Stopping", "Cancelled")
    status = EVICTED if evicted else {**pod["status"], "phase": "Failed"}
    world.server.put(PODS.path("default", "history-1-driver"), {**pod, "status": status})
    world.spark_state("FAILED")
    world.kafka.answer = None
    check_answer(world, None, "Stopping", True)
    world.kafka.answer = "Nothing"
    world.run()
    assert (world.status["phase"], world.status["attempt"], world.status.get("holdsApp")) == ("Failed", 1, None)


def test_driver_that_ends_while_the_spark_operator_is_away_has_failed(world):
    """The SparkApplication says for ever that it runs, and the application would stay stopped for as long."""
    world.allow_one_attempt()
    world.follow()
    path, log = PODS.path("default", "history-1-driver"), '{"backfill": {"state": "Failed", "message": "it is full"}}\n'

    def ended(at):
        world.ended_at = at
        pod = world.driver(log, "terminated")
        world.server.put(path, {**pod, "status": {**pod["status"], "phase": "Failed"}})
        world.run()
        return world.status["phase"]

    assert ended(timestamp(time.time())) == "Computing"
    assert ended("2026-01-01T00:00:00Z") == "Stopping"
    world.run()
    assert SPARK.path("default", "history-1") not in world.server.objects
    world.run()
    assert (world.status["phase"], world.status.get("holdsApp")) == ("Failed", None)
    assert world.status["message"] == "Attempt 1 failed: it is full"


LOST = [{}, {"containerStatuses": [{"name": "spark-kubernetes-driver", "state": {"running": {}}}]}]


@pytest.mark.parametrize("states", LOST)
def test_driver_that_was_evicted_or_lost_with_its_node_has_failed(world, states):
    """Nobody has seen its container end: its conditions tell when that was."""
    pod = world.follow()

    def ended(at):
        changes = ["2026-01-01T00:00:00Z", None, at]
        conditions = [{"type": str(number), "lastTransitionTime": at} for number, at in enumerate(changes)]
        status = {"phase": "Failed", "conditions": conditions, **states}
        world.server.put(PODS.path("default", "history-1-driver"), {**pod, "status": status})
        world.run()
        return world.status["phase"]

    assert ended(timestamp(time.time())) != "Stopping"
    assert ended("2026-01-01T00:00:01Z") == "Stopping"


def test_spark_application_that_does_not_go_says_who_has_to_end_it(computing):
    """Apache's Spark operator has a finalizer on it: if it is away, the application stays stopped."""
    computing.delete()
    computing.run()
    del computing.server.objects[PODS.path("default", "history-1-driver")]
    computing.application["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    computing.spark_state("RUNNING")
    computing.run()
    stopped = next(item for item in computing.status["conditions"] if item["type"] == "SparkPodsStopped")
    assert stopped["message"] == "SparkApplication history-1 has not ended: check that its Spark operator is running."


def test_log_that_cannot_be_read_once_says_nothing(world):
    """The kubelet may be away for a moment: the job has not published for that, and can still be cancelled."""
    log = COMPUTING
    world.follow(log)
    world.driver(502)
    world.run()
    conditions = {item["type"]: item for item in world.status["conditions"]}
    assert "PublicationBegun" not in conditions
    assert world.status["phase"] == "Computing"
    assert conditions["DriverLogUnreadable"]["status"] == "True"
    assert "The log of pod history-1-driver cannot be read: " in conditions["DriverLogUnreadable"]["message"]
    assert world.status["message"].endswith("If a pod's node is gone for good, force-delete the pod.")
    assert world.run() == 30.0, "each pass would occupy a worker until the kubelet's time is up"
    world.driver(log)
    world.delete()
    world.run()
    assert (world.status["phase"], world.status["outcome"]) == ("Stopping", "Cancelled")


def test_log_that_the_operator_may_not_read_names_the_missing_right(world):
    """Nobody should delete the pod for that: its job goes on."""
    world.follow(403)
    assert world.status["message"].startswith("The log of pod history-1-driver cannot be read: ")
    assert world.status["message"].endswith(". Let the operator's role get pods/log in namespace default.")


def test_webhook_that_does_not_answer_is_waited_for_a_while(world):
    """The API server cannot create the SparkApplication without it; after ten minutes the application is let go."""
    world.server.refused[SPARK.path("default", "history-1")] = (500, "failed calling webhook.")
    world.run()
    world.app_status(currentRevision=world.revision, backfill="history")
    world.run()
    assert (world.status["phase"], world.status["holdsApp"]) == ("Suspending", True)
    assert "failed calling webhook." in world.status["message"]
    world.condition_since("SparkApplicationCreated", "2026-01-01T00:00:00Z")
    world.cluster.working_since = time.time()
    world.run()
    assert world.status["phase"] == "Suspending"
    world.cluster.working_since = 0.0
    world.run()
    world.run()
    assert (world.status["phase"], world.status.get("holdsApp")) == ("Refused", None)
    assert "failed calling webhook." in world.status["message"]


def test_reason_for_the_end_survives_a_request_that_fails_while_it_stops(world):
    """What keeps it from stopping is in a condition meanwhile."""
    world.submit()
    report = {"backfill": {"state": "Refused", "message": "column x is missing"}}
    pod = world.driver(json.dumps(report) + "\n", "terminated")
    world.server.put(PODS.path("default", "history-1-driver"), {**pod, "status": {**pod["status"], "phase": "Failed"}})
    world.spark_state("FAILED")
    world.run()
    assert (world.status["phase"], world.status["message"]) == ("Stopping", "column x is missing")
    world.server.failures.append((503, "ServiceUnavailable"))
    with pytest.raises(TransientError):
        world.run()
    stopped = [item for item in world.status["conditions"] if item["type"] == "SparkPodsStopped"]
    assert ("ServiceUnavailable" in stopped[0]["message"], world.status["message"]) == (True, "column x is missing")
    world.run()
    assert (world.status["phase"], world.status["message"]) == ("Refused", "column x is missing")
    stopped = [item for item in world.status["conditions"] if item["type"] == "SparkPodsStopped"]
    assert stopped[0]["status"] == "True"


def test_missing_rights_do_not_mean_that_no_spark_pod_is_left(computing):
    """Roles may be changed for a moment. Only in a namespace that is being deleted they do not come back."""
    computing.delete()
    computing.run()
    assert (computing.status["phase"], computing.status["outcome"]) == ("Stopping", "Cancelled")
    computing.server.forbidden |= {SPARK.path("default"), PODS.path("default")}
    with pytest.raises(FailedError):
        computing.run()
    assert (computing.status["phase"], computing.status["holdsApp"]) == ("Stopping", True)
    computing.serve(NAMESPACES, "default", {}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    computing.run()
    assert (computing.status["phase"], computing.status.get("holdsApp")) == ("Failed", None)


@pytest.mark.parametrize(("kind", "resource"), [(SPARK, "sparkapplications.sparkoperator.k8s.io"), (PODS, "pods")])
def test_application_is_not_stopped_for_a_job_that_the_operator_may_not_follow(world, kind, resource):
    """It would stay stopped, and nothing could be submitted. The message says which permission is missing."""
    world.server.forbidden.add(kind.path("default"))
    world.run()
    assert (world.status["phase"], world.status.get("holdsApp")) == ("Waiting", None)
    assert f"Let the operator's role list {resource} in namespace default." in world.status["message"]
    assert not world.server.objects[BACKFILLS.path("default", "history")]["metadata"].get("finalizers")
    path = BACKFILLS.path("default", "history")
    backfill = world.server.objects[path]
    status = {**backfill["status"], "startTime": "2026-01-01T00:00:00Z"}
    world.watch(BACKFILLS, world.server.put(path, {**backfill, "status": status}))
    world.run()
    assert (world.status["phase"], world.status.get("holdsApp")) == ("Refused", None)
    assert f"Let the operator's role list {resource} in namespace default." in world.status["message"]


def test_credentials_that_cannot_be_read_do_not_keep_the_application_stopped(world):
    """The operator has lost the right to read the Secret: a backfill that waits for the group is cancelled all the same."""
    world.run()
    assert (world.status["phase"], world.status["holdsApp"]) == ("Suspending", True)
    world.server.forbidden.add(SECRETS.path("default", "credentials"))
    world.kafka.observe_for_reset = lambda *_: world.requests.get(SECRETS, "default", "credentials")
    world.app_status(currentRevision=world.revision, backfill="history")
    world.run()
    assert world.status["message"].startswith("The credentials could not be read: ")
    world.delete()
    for _ in range(2):
        world.run()
    assert (world.status["phase"], world.status.get("holdsApp")) == ("Failed", None)


def test_pod_that_does_not_start_is_named(world):
    """Why a driver is pending is in its pod, not in the SparkApplication."""
    world.submit()
    labels = {**world.application["metadata"]["labels"], "app.kubernetes.io/component": "backfill-driver"}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}
    status = {"phase": "Pending", "conditions": [condition]}
    world.serve(PODS, "history-1-driver", {}, metadata={"labels": labels}, status=status)
    world.run()
    assert world.status["message"] == "Pod history-1-driver does not start: Unschedulable: 0/3 nodes fit"


def test_spark_application_that_is_refused_ends_the_backfill(world):
    """What a Spark operator's webhook or a quota does not let in would never run: the application is released and told why."""
    world.server.refused[SPARK.path("default", "history-1")] = (403, "sparkConf key is not allowed: spark.ui.port.")
    world.run()
    world.app_status(currentRevision=world.revision, backfill="history")
    world.run()
    world.run()
    assert (world.status["phase"], world.status.get("holdsApp")) == ("Refused", None)
    assert "sparkConf key is not allowed: spark.ui.port." in world.status["message"]


def test_nothing_is_created_for_a_backfill_that_was_deleted_meanwhile(world):
    """The watch may be late."""
    world.run()
    world.app_status(currentRevision=world.revision, backfill="history")
    del world.server.objects[BACKFILLS.path("default", "history")]
    assert world.run() == STALE_SECONDS
    assert SPARK.path("default", "history-1") not in world.server.objects


def test_status_is_not_written_to_another_backfill_of_the_name(computing):
    """Somebody removed the finalizer and created it again while the job of the former one was being stopped."""
    computing.delete()
    computing.run()

    def create_again():
        del computing.server.objects[BACKFILLS.path("default", "history")]
        computing.watch(BACKFILLS, computing.serve(BACKFILLS, "history", SPEC))

    computing.server.meanwhile[SPARK.path("default", "history-1")] = create_again
    assert computing.run() == STALE_SECONDS
    assert computing.status == {}


def test_operations_take_turns(world):
    """The older one goes first, and one that has begun keeps even older ones waiting."""
    resources = world.cluster.resources

    def operation(kind, name, created, phase):
        fields = {"metadata": {"creationTimestamp": created, "uid": name}, "status": {"phase": phase}}
        spec = SPEC if kind is BACKFILLS else {"appRef": {"name": "app"}}
        resources.put(kind, world.serve(kind, name, spec, **fields))
        return resources.get(kind, "default", name)

    resources.remove(BACKFILLS, resources.get(BACKFILLS, "default", "history"))
    first = operation(RESETS, "first", "2026-01-01T00:00:00Z", "Waiting")
    second = operation(BACKFILLS, "second", "2026-01-01T00:00:01Z", "Waiting")
    assert unfinished_before(world.cluster.resources, first, "app") == ()
    assert unfinished_before(world.cluster.resources, second, "app") == ("StreamsReset first",)
    operation(BACKFILLS, "second", "2026-01-01T00:00:01Z", "Computing")
    assert unfinished_before(world.cluster.resources, first, "app") == ("StreamsBackfill second",)
    operation(BACKFILLS, "second", "2026-01-01T00:00:01Z", "Succeeded")
    assert unfinished_before(world.cluster.resources, first, "app") == ()


PHASES = [
    (RESETS, "Waiting"),
    (RESETS, "Running"),
    *((BACKFILLS, phase) for phase in ("Waiting", "Suspending", "Submitted", "Computing", "Publishing", "Stopping")),
]


def test_no_two_operations_wait_for_each_other(world):
    """Whatever their names and phases, all that were applied together have one order: no two wait for the same number."""
    resources = world.cluster.resources
    resources.remove(BACKFILLS, resources.get(BACKFILLS, "default", "history"))
    for number, (kind, phase) in enumerate(PHASES):
        for name in (f"a-{number}", f"z-{number}"):
            metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", "uid": name}
            spec = SPEC if kind is BACKFILLS else {"appRef": {"name": "app"}}
            resources.put(kind, world.serve(kind, name, spec, metadata=metadata, status={"phase": phase}))
    operations = [*resources.of_kind(RESETS), *resources.of_kind(BACKFILLS)]
    before = [unfinished_before(world.cluster.resources, operation, "app") for operation in operations]
    assert sorted(map(len, before)) == list(range(2 * len(PHASES)))
    for operation, others in zip(operations, before, strict=True):
        if operation["status"]["phase"] != "Waiting":
            assert not any(name.endswith(("-0", "-2")) for name in others), "none that has begun waits for these"


def test_an_application_that_is_applied_together_with_a_backfill_is_still_new_to_its_watch(world):
    """A pass over the backfill that is made first reads it, and what a watch has that is known leads to no pass."""
    resources = world.cluster.resources
    resources.remove(APPS, resources.get(APPS, "default", "app"))
    app = world.serve(APPS, "app", world.spec, status={"observedGeneration": 1})
    world.run()
    assert ("GET", APPS.path("default", "app")) in [(method, path) for method, path, *_ in world.server.asked]
    assert resources.put(APPS, app)


def test_a_change_of_the_application_before_an_attempt_is_still_new_to_its_watch(world):
    """Whoever reads an application only to check it must not keep the change from its own pass."""
    world.run()
    world.app_status(currentRevision=world.revision, backfill="history")
    app = world.serve(APPS, "app", {**world.spec, "state": "running"}, metadata={"generation": 2})
    assert world.run() == STALE_SECONDS
    assert world.cluster.resources.put(APPS, app)


def test_of_two_that_began_at_the_same_time_the_newer_goes_first(world):
    """Passes over both may be made at once, in which neither sees the other begin; their jobs would fence each other."""
    world.run()
    world.app_status(currentRevision=world.revision, backfill="history")
    status = world.status
    ages = {"history": "2026-01-01T00:00:00Z", "a-twin": "2026-01-01T00:00:01Z"}
    for name, created in ages.items():
        metadata = {"creationTimestamp": created, "uid": name}
        world.watch(BACKFILLS, world.serve(BACKFILLS, name, SPEC, metadata=metadata, status=status))
    world.run()
    assert (
        world.status["message"] == "StreamsBackfill a-twin of the same application has begun as well, and goes first."
    )
    assert SPARK.path("default", "history-1") not in world.server.objects
    assert holding_backfill(world.cluster.resources, APP) == HoldingBackfill("a-twin")
    twin = world.cluster.resources.get(BACKFILLS, "default", "a-twin")
    assert unfinished_before(world.cluster.resources, twin, "app") == ()
    metadata = {"creationTimestamp": ages["a-twin"], "uid": "a-twin"}
    ended = {**status, "phase": "Succeeded", "holdsApp": None}
    world.watch(BACKFILLS, world.serve(BACKFILLS, "a-twin", SPEC, metadata=metadata, status=ended))
    world.run()
    assert world.status["phase"] == "Submitted"


def test_half_a_state_of_a_newer_one_does_not_keep_a_backfill_from_beginning(world):
    """Both were applied together, and the newer one was known first. The other waits until the app is stopped for it."""
    world.run()
    status = {"phase": "Failed", "holdsApp": True, "completionTime": "2026-01-01T00:00:00Z"}
    metadata = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    world.watch(BACKFILLS, world.serve(BACKFILLS, "newer", SPEC, metadata=metadata, status=status))
    holding = holding_backfill(world.cluster.resources, APP)
    assert holding == HoldingBackfill("history", then="newer")
    world.app_status(currentRevision=world.revision, backfill=holding.name)
    world.run()
    assert world.status["phase"] == "Submitted"
