"""A small world for backfills: an application, its pods and group, and a Spark operator, changed only by decisions and events."""

from dataclasses import dataclass, field, replace

from tests.operator.fake_operator import FakeOperator, plan_object, pod_object, served
from tests.operator.kafka.support import count_plan, streams_app

from millrace.manifest import StreamsAppStatus, StreamsBackfillSpec
from millrace.manifest.streamsbackfill import Driver
from millrace.manifest.streamsreset import AppReference
from millrace.plan.reset import ActiveMember
from millrace_operator.backfills.context import BackfillContext
from millrace_operator.backfills.driver_log import Progress
from millrace_operator.backfills.observed_backfill import ObservedBackfill, SparkPod
from millrace_operator.backfills.reconciler import (
    CreateObject,
    DeleteAttemptsGroup,
    DeleteBackfill,
    DeleteSparkApplication,
    has_begun,
    needs_members,
    reconcile_backfill,
)
from millrace_operator.backfills.spark_application import shown_state, state_of
from millrace_operator.children.naming import FINALIZER
from millrace_operator.model import DesiredApp, DesiredBackfill, SetFinalizer
from millrace_operator.reconcile.operation_context import has_ended
from millrace_operator.reconcile.revisions import revision_of, spec_of
from millrace_operator.reconcile.timestamps import timestamp

KUBEFLOW, APACHE = "sparkoperator.k8s.io/v1beta2", "spark.apache.org/v1"
FOREIGN = ActiveMember("m-9", None, "java-1-StreamThread-1-consumer", "/10.0.0.9")


def spec(**fields):
    """Return the spec of a backfill."""
    given = {
        "app_ref": AppReference(name="app"),
        "driver": Driver(service_account_name="spark"),
        **fields,
    }
    return StreamsBackfillSpec(**given)


@dataclass
class World(FakeOperator):
    """The actual state of the cluster."""

    spec: StreamsBackfillSpec = field(default_factory=spec)
    now: float = 1_700_000_000.0
    working_since: float = 0.0
    """When the operator began to work."""
    refusal: str | None = None
    """Why the API server does not let SparkApplications in for now."""
    state: str = "running"
    app_changes: dict = field(default_factory=dict)
    """What the StreamsApp's spec has besides what it had when it was created."""
    app_unreadable: bool = False
    """Whether the operator cannot read the application's spec, here or as attempts have it."""
    exists: bool = True
    app_deleting: bool = False
    paused: bool = False
    planned: bool = True
    pods: int = 2
    members: tuple = ()
    """Members of the group besides the application's pods."""
    brokers_answer: bool = True
    served: str | None = KUBEFLOW
    before: tuple = ()
    claimants: tuple = ()
    app_sees: str | None = None
    """The backfill in the application's status."""
    applications: dict = field(default_factory=dict)
    """The SparkApplications by name."""
    config_maps: dict = field(default_factory=dict)
    spark_pods: dict = field(default_factory=dict)
    """Pods by name, each with whether it lives."""
    ended: dict = field(default_factory=dict)
    """When drivers ended, by name, of those whose end a node has seen."""
    troubles: dict = field(default_factory=dict)
    """Why pods do not start, by name."""
    progress: Progress | None = None
    """The last report of the latest driver."""
    unreadable: bool = False
    """Whether the logs of drivers cannot be read, although they are there."""
    published: int = 0
    """How many attempts have published everything."""
    in_one_transaction: bool = False
    """Whether jobs publish everything in one transaction."""
    attempts_group: bool = False
    """Whether the group is there by which the next attempt knows that one has handed over."""
    half: bool = False
    """Whether one has published something, and none has finished since."""
    repaired: bool = False
    """Whether another backfill has succeeded since this one has ended."""
    older: bool = False
    """Whether an operator runs that does not know the phase, which later ones have once a backfill has begun."""
    status: object = None
    finalizers: tuple = ()
    deleted: bool = False
    deleted_at: float = 0.0
    """When it was deleted, which counts if it was."""
    gone: bool = False
    events: list = field(default_factory=list)
    done: list = field(default_factory=list)

    @property
    def held(self):
        """Whether the backfill keeps the application stopped; a resource that is gone does not."""
        return bool(self.status is not None and self.status.holds_app and not self.gone)

    @property
    def is_kept(self):
        """Whether it has ended and was deleted, and stays until its user has done something about the half state it has left."""
        return self.deleted and self.held and has_ended(self.status) and self.state == "running"

    def app(self):
        """Return the application as the operator sees it."""
        app = streams_app(state=self.state, **self.app_changes)
        annotations = {"streams.millrace.dev/pause": "true"} if self.paused else {}
        return DesiredApp(
            namespace="default",
            name="app",
            uid="u-1",
            generation=1,
            spec=None if self.app_unreadable else app.spec,
            manifest=app.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            status=StreamsAppStatus(current_revision=revision_of(app.spec), backfill=self.app_sees),
            annotations=annotations,
            deleting=self.app_deleting,
        )

    def objects(self):
        """Return the application's children."""
        objects = {}
        if self.planned:
            spec = streams_app(**self.app_changes).spec
            key, item = plan_object(revision_of(spec), spec, count_plan("in", "app"))
            objects[key] = item
        return objects | dict(pod_object(f"app-{index}") for index in range(self.pods))

    def look(self):
        """Return the backfill and what a pass observes."""
        desired = DesiredBackfill(
            *("default", "history", "b-1", 1, self.spec),
            status=self._read_status(),
            finalizers=self.finalizers,
            deleting=self.deleted,
            deletion_time=self.deleted_at if self.deleted else None,
        )
        own = tuple(
            ActiveMember(f"m-{index}", None, f"app-{index}.u-StreamThread-1-consumer", "/10.0.0.1")
            for index in range(self.pods)
        )
        log_is_there = any("driver" in name for name in self.spark_pods if self._is_current(name))
        observed = ObservedBackfill(
            self.now,
            working_since=self.working_since,
            app=self.app() if self.exists else None,
            objects=self.objects() if self.exists else {},
            before=self.before,
            claimants=self.claimants,
            served=self.served,
            applications=tuple(self.applications.values()),
            pods=tuple(
                SparkPod(
                    name,
                    "driver" in name,
                    int(name.split("-")[1]),
                    lives,
                    self.troubles.get(name, ""),
                    has_started=name not in self.troubles,
                    ended_at=self.ended.get(name),
                )
                for name, lives in self.spark_pods.items()
            ),
            progress=self.progress if self._is_current(self._latest()) and not self.unreadable else None,
            log_is_there=log_is_there,
            log_problem="The node of the driver does not answer" if log_is_there and self.unreadable else "",
            first_spec=self._first_spec(),
            repaired=self.repaired,
        )
        answer = {}
        if needs_members(desired) and self.exists:
            answer = {"members": own + self.members}
        elif has_begun(desired.status) and BackfillContext(desired, observed).asks_brokers and self.exists:
            assert self.current() is None, "a Spark operator may still start a driver"
            assert not any(self.spark_pods.values()), "a job may still publish"
            answer = {"published": "Everything" if self.attempts_group else "Parts" if self.half else "Nothing"}
        if answer and not self.brokers_answer:
            answer = {"problem": "The brokers do not answer"}
        return desired, replace(observed, **answer)

    def _read_status(self):
        """Return the status as the operator that runs can read it."""
        return self.status.model_copy(update={"phase": None}) if self.older and has_begun(self.status) else self.status

    def _first_spec(self):
        """Return what the attempts' ConfigMap says of the application, if that has another spec now."""
        app, made = self.app().spec, self.config_maps.get("history.backfill")
        changed = app is not None and self.status is not None and revision_of(app) != self.status.revision
        return spec_of(made) if made and changed else None

    def decide(self):
        """Return the decision about the backfill."""
        assert not self.gone
        decision = reconcile_backfill(*self.look())
        if self.refusal and any(isinstance(action, CreateObject) for action in decision.actions):
            desired, observed = self.look()
            decision = reconcile_backfill(desired, replace(observed, refusal=self.refusal))
        return decision

    def keep_status(self, status):
        """Keep the backfill's status."""
        text = served(status)
        if self.older and status.phase is None:  # what an operator cannot read it leaves there
            text["phase"] = self.status.phase
        self.status = type(status).model_validate(text)

    def do(self, action):
        """Carry out an action; repeating it does no harm."""
        self.done.append(action)
        match action:
            case SetFinalizer(present):
                self.finalizers = (FINALIZER,) if present else ()
                if self.deleted and not present:
                    self.gone = True
            case CreateObject(obj):
                name = obj["metadata"]["name"]
                if obj["kind"] == "ConfigMap":
                    self.config_maps.setdefault(name, obj)
                elif name not in self.applications:
                    assert not (self.held and self.pods), "nothing is computed while the application runs"
                    uid = f"s-{len(self.done)}"
                    self.applications[name] = {**obj, "metadata": {**obj["metadata"], "uid": uid}}
                    self.progress = None
            case DeleteSparkApplication(_, name, uid):
                assert self.applications.get(name, {"metadata": {"uid": uid}})["metadata"]["uid"] == uid
                if name in self.applications:
                    del self.applications[name]
                    for pod in [pod for pod in self.spark_pods if pod.startswith(name.removeprefix("history"))]:
                        del self.spark_pods[pod]
                    self.progress = None
            case DeleteAttemptsGroup():
                assert has_ended(self.status), "another attempt would not know that one has handed over"
                assert not any(self.spark_pods.values()), "a job may still hand over"
                self.attempts_group = False
            case DeleteBackfill():
                self.deleted, self.gone = True, not self.finalizers

    # What others do

    def app_pass(self):
        """Let the operator's pass over the application happen, and its pods follow."""
        if self.app_unreadable:  # nothing starts and nothing stops
            self.app_sees = None
            return
        self.app_sees = "history" if self.held and not self.paused else None
        if self.app_sees or self.state == "suspended":
            self.pods = 0
        elif not self.paused:
            assert not any(self.spark_pods.values()) or not self.spec.changes_kafka, "two write at the same time"
            self.pods = 2

    def current(self):
        """Return the latest SparkApplication that has not ended, or None."""
        found = [item for item in self.applications.values() if state_of(item) not in {"Succeeded", "Failed"}]
        return found[-1] if found else None

    def spark(self, event):
        """Let something happen to the latest SparkApplication: start, compute, publish, report, succeed, fail, die, vanish."""
        item = self.current()
        if item is None:
            return
        name = item["metadata"]["name"]
        driver, executor = f"{name.removeprefix('history')}-driver", f"{name.removeprefix('history')}-exec-1"
        state = self._state(item)
        if event == "start" and state is None:
            self.spark_pods |= {driver: True, executor: True}
            self._set(item, "RUNNING")
        elif state is None:
            return
        elif event == "compute":
            self.progress = self.progress or Progress(state="Computing")
        elif event == "publish" and self.progress is not None and self.progress.state != "Succeeded":
            one = self.in_one_transaction
            self.progress = Progress(state="Publishing", has_published=True, in_one_transaction=one)
            self.half = self.spec.changes_kafka and not one
        elif event in {"report", "succeed"} and self.progress is not None:
            self.published += self.spec.changes_kafka and self.progress.state != "Succeeded"
            self.attempts_group = self.attempts_group or self.spec.changes_kafka
            self.progress, self.half = Progress(state="Succeeded", has_published=True), False
            if event == "succeed":
                self.spark_pods |= {driver: False, executor: False}
                self.ended[driver] = timestamp(self.now)
                self._set(item, "COMPLETED")
        elif event in {"fail", "refuse"}:
            self.spark_pods |= {driver: False, executor: False}
            self.ended[driver] = timestamp(self.now)
            self._set(item, "FAILED")
            if self.progress is not None and self.progress.state == "Succeeded":
                return
            state = "Refused" if event == "refuse" else "Failed"
            begun = self.progress is not None and self.progress.has_published
            one = begun and self.in_one_transaction
            self.progress = Progress(
                state=state, message="it is full", has_published=begun or self.half, in_one_transaction=one
            )
        elif event == "die":
            self.spark_pods[driver] = False
            self._set(item, "FAILED")
        elif event == "vanish":
            del self.applications[name]
            self.spark_pods.pop(driver, None), self.spark_pods.pop(executor, None)
            self.progress = None

    def fail_submission(self):
        """Let the Spark operator fail to start the latest SparkApplication."""
        item = self.current()
        if item is not None and self._state(item) is None:
            self._set(item, "FAILED")

    def _latest(self):
        """Return the name of the latest SparkApplication, as the names of its pods begin."""
        return f"{(list(self.applications) or [''])[-1].removeprefix('history')}-"

    def _is_current(self, pod):
        return self.status is not None and pod.startswith(f"-{self.status.attempt}-")

    def executors_end(self):
        """Let executors notice that their driver is gone."""
        if self.current() is None:
            self.spark_pods = dict.fromkeys(self.spark_pods, False)

    def _state(self, item):
        return shown_state(item) or None

    def _set(self, item, state):
        """Write a state as the Spark operator of this kind does."""
        name, status = item["metadata"]["name"], {"applicationState": {"state": state}}
        if item["apiVersion"] == APACHE:
            summary = {"RUNNING": "RunningHealthy", "COMPLETED": "Succeeded", "FAILED": "Failed"}[state]
            status = {"currentState": {"currentStateSummary": summary}}
        self.applications[name] = {**item, "status": status}

    def settle(self, passes=60):
        """Run everything until the backfill has nothing left to do; jobs succeed."""
        for _ in range(passes):
            if self.gone:
                return
            if self.pass_over().again_after is None and not self.finalizers:
                self.app_pass()
                return
            self.app_pass()
            if self.is_kept:
                return
            for event in ("start", "compute", "publish", "succeed"):
                self.spark(event)
            self.executors_end()
            self.now += 5
        raise AssertionError(f"no end: {self.status}")
