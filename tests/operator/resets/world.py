"""A small world for resets: an application's resource, its volumes and its topics, changed only by the decisions."""

from dataclasses import dataclass, field, replace

from tests.operator.fake_operator import FakeOperator, plan_object, pod_object, served
from tests.operator.kafka.support import count_plan, streams_app

from millrace.errors import ActiveGroupError
from millrace.manifest import StreamsAppStatus, StreamsResetSpec
from millrace.manifest.streamsapp_status import InternalTopicStatus
from millrace.plan import reset
from millrace.plan.topology_plan import TopologyPlan
from millrace.records import TopicPartition
from millrace_operator.children import naming
from millrace_operator.children.config_maps import retained_config_map
from millrace_operator.children.naming import FINALIZER, REVISION_LABEL, STARTED_ANNOTATION, labels
from millrace_operator.model import (
    Apply,
    Delete,
    DeleteTopics,
    DesiredApp,
    DesiredReset,
    Key,
    SetFinalizer,
    SetOffsets,
)
from millrace_operator.resets.reconciler import ObservedReset, PatchApp, question_for, reconcile_reset

REPARTITION, CHANGELOG, OLD_CHANGELOG = "app-c-repartition", "app-c-changelog", "app-old-changelog"
INPUT = [TopicPartition("in", 0), TopicPartition("in", 1)]


@dataclass
class World(FakeOperator):
    """The actual state of the cluster."""

    spec: StreamsResetSpec
    state: str = "suspended"
    now: float = 1_700_000_000.0
    topics: dict = field(default_factory=lambda: {"in": 2, "out": 2, REPARTITION: 2, CHANGELOG: 2, OLD_CHANGELOG: 2})
    committed: dict = field(default_factory=lambda: {INPUT[0]: 50})
    ends: dict = field(default_factory=lambda: {INPUT[0]: 60, INPUT[1]: 8})
    begins: dict = field(default_factory=lambda: {INPUT[0]: 10, INPUT[1]: 0})
    members: tuple = ()
    pods: tuple = ()
    stateful_set: tuple | None = None
    """Its generation and the observed one; its wanted and its existing replicas."""
    pods_uid: str = "u"
    """The part of a StreamsApp's uid that pods were told to use in their member ids."""
    claims: dict = field(default_factory=lambda: {"state-app-0": "c-0", "state-app-1": "c-1"})
    terminating: set = field(default_factory=set)
    annotations: dict = field(default_factory=dict)
    status: StreamsAppStatus = field(
        default_factory=lambda: StreamsAppStatus(
            stable_revision="old",
            internal_topics=tuple(
                InternalTopicStatus(name=name, topic_id=f"id-{name}", ok=True)
                for name in (REPARTITION, CHANGELOG, OLD_CHANGELOG)
            ),
        )
    )
    exists: bool = True
    deleting: bool = False
    problem: str | None = None
    planned: bool = True
    started: set = field(default_factory=lambda: {"new", "old"})
    """Revisions whose pods have run."""
    earlier: str = ""
    """The record that an earlier application of the name left behind, as JSON."""
    before: tuple = ()
    reset_status: object = None
    finalizers: tuple = ()
    deleted_at: float | None = None
    """When the reset was deleted; it is gone once it has no finalizer."""
    events: list = field(default_factory=list)
    done: list = field(default_factory=list)

    def app(self):
        """Return the application as the operator sees it."""
        app = streams_app(state=self.state)
        return DesiredApp(
            namespace="default",
            name="app",
            uid="u-1",
            generation=1,
            spec=app.spec,
            status=self.status,
            annotations=dict(self.annotations),
            deleting=self.deleting,
        )

    def objects(self):
        """Return the application's children."""
        objects = {}
        if self.planned:
            for revision, store in (("new", "c"), ("old", "old")):
                text = count_plan("in", "app").to_json().replace("app-c-changelog", f"app-{store}-changelog")
                key, item = plan_object(revision, streams_app().spec, TopologyPlan.from_json(text))
                if revision in self.started:
                    item["metadata"]["annotations"] = {STARTED_ANNOTATION: "1690000000"}
                objects[key] = item
        if self.earlier:
            item = retained_config_map("default", "app", self.earlier)
            item["metadata"]["uid"] = "m-retained"
            objects[Key("ConfigMap", item["metadata"]["name"])] = item
        for name, uid in self.claims.items():
            metadata = {"name": name, "uid": uid, "labels": labels("app")}
            if name in self.terminating:
                metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            spec = {"resources": {"requests": {"storage": "1Gi"}}}
            objects[Key("PersistentVolumeClaim", name)] = {"metadata": metadata, "spec": spec}
        if self.stateful_set is not None:
            generation, seen, wanted, present = self.stateful_set
            objects[Key("StatefulSet", "app")] = {
                "metadata": {"name": "app", "uid": "s-1", "labels": labels("app"), "generation": generation},
                "spec": {"replicas": wanted, "template": {"spec": {"containers": [{"args": self._arguments()}]}}},
                "status": {"observedGeneration": seen, "replicas": present},
            }
        return objects | dict(map(pod_object, self.pods))

    def _arguments(self):
        return ["run", "-c", f"client.id={naming.member('$(POD_NAME)', self.pods_uid)}"]

    def look(self):
        """Return the reset and what a pass observes."""
        desired = DesiredReset(
            *("default", "again", "r-1", 1, self.spec),
            status=self.reset_status,
            finalizers=self.finalizers,
            deleting=self.deleted_at is not None,
            deletion_time=self.deleted_at,
        )
        observed = ObservedReset(
            self.now, self.app() if self.exists else None, self.objects() if self.exists else {}, before=self.before
        )
        if (question := question_for(desired, observed)) is None:
            return desired, observed
        if self.problem is not None:
            return desired, replace(observed, problem=self.problem)
        assert question.target == self.spec.target()
        brokers = reset.ObservedApplication(
            topics=dict(self.topics),
            groups=frozenset({"app"}),
            members=self.members,
            committed=dict(self.committed),
            earliest=dict(self.begins),
            latest=dict(self.ends),
            at_time=dict(self.begins),
        )
        return desired, replace(observed, brokers=brokers)

    def decide(self):
        """Return the decision about the reset."""
        return reconcile_reset(*self.look())

    def keep_status(self, status):
        """Keep the reset's status."""
        self.reset_status = type(status).model_validate(served(status))

    def do(self, action):
        """Carry out an action; repeating it does no harm."""
        self.done.append(action)
        match action:
            case SetFinalizer(present):
                self.finalizers = (FINALIZER,) if present else ()
            case SetOffsets(leaving, offsets):
                self.members = tuple(member for member in self.members if member not in leaving)
                if self.members:
                    raise ActiveGroupError("a member has joined")
                self.committed.update(offsets)
            case DeleteTopics(topics):
                assert self.lost() == set(), "topics are deleted only when their loss is accepted"
                for name in topics:
                    self.topics.pop(name, None)
            case Delete(Key("ConfigMap"), uid):
                assert uid == "m-retained"
                self.earlier = ""
            case Delete(key, uid):
                assert self.claims.get(key.name, uid) == uid
                if key.name in self.claims:
                    self.terminating.add(key.name)
            case Apply(item):
                assert STARTED_ANNOTATION not in item["metadata"]["annotations"]
                self.started.remove(item["metadata"]["labels"][REVISION_LABEL])
            case PatchApp(uid, annotations, status):
                assert uid == "u-1"
                self.annotations.update(annotations)
                text = self.status.model_dump(mode="json", by_alias=True, exclude_none=True)
                self.status = StreamsAppStatus.model_validate({k: v for k, v in text.items() if k not in status})

    def lost(self):
        """Return the ids of remembered topics whose loss would be reported if they were gone."""
        accepted = set(self.annotations.get("streams.millrace.dev/accept-loss", "").split(","))
        return {item.topic_id for item in self.status.internal_topics} - accepted

    def volumes_go(self):
        """Finish the deletion of volumes."""
        for name in self.terminating:
            self.claims.pop(name)
        self.terminating.clear()

    def run(self, passes=20):
        """Run passes until nothing is left to do."""
        for _ in range(passes):
            if self.pass_over().again_after is None:
                return
            self.volumes_go()
        raise AssertionError(f"no end: {self.reset_status}")


def claim(index):
    """Return the name of a replica's claim."""
    return naming.claim("app", index)
