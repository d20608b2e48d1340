"""The worlds in which controllers are tested."""

from tests.operator.kafka.support import count_plan, streams_app

from millrace_operator.app.app_controller import ControllerContext
from millrace_operator.app.broker_access import BrokerAccess
from millrace_operator.children.config_maps import plan_config_map
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.events import EventRecorder
from millrace_operator.cluster.executor import Executor
from millrace_operator.cluster.instance_status_client import InstanceStatusClient
from millrace_operator.cluster.kinds import CONFIG_MAPS
from millrace_operator.cluster.observe import PlanJobOutputs
from millrace_operator.kafka.state_cache import KafkaStateCache
from millrace_operator.model import AppRevision
from millrace_operator.reconcile.revisions import revision_of


class PassWorld:
    """An API server over HTTP, access to it, and brokers that a test provides.

    Args:
        server: The API server.
        requests: Sends requests to it.
        kafka: The brokers.
        brokers: What is known about brokers.
        access: How they are reached; as the applications say if not given.
    """

    def __init__(self, server, requests, kafka, brokers, access=None):
        self.server, self.requests, self.kafka, self.brokers = server, requests, kafka, brokers
        resources, children, instances = Cache(), Cache(), InstanceStatusClient(1)
        self.cluster = ControllerContext(
            requests=requests,
            resources=resources,
            children=children,
            instances=instances,
            executor=Executor(requests, resources, children),
            outputs=PlanJobOutputs(requests),
            recorder=EventRecorder(requests, "operator-0"),
            access=BrokerAccess(requests) if access is None else access,
            kafka=kafka,
            operator_namespace="millrace",
        )

    def close(self):
        """Stop the threads and close the connections."""
        self.brokers.close()
        self.cluster.instances.close()


class OperationWorld(PassWorld):
    """A suspended application with a plan, and the controller of an operation on it.

    Args:
        server: The API server.
        requests: Sends requests to it.
        kafka: The brokers.
        controller: The class of the controller.
        ref: The operation that passes are made over.
        revision: The revision that the plan is of; that of the application's spec if not given.
    """

    def __init__(self, server, requests, kafka, controller, ref, revision=None):
        super().__init__(server, requests, kafka, KafkaStateCache(lambda _: None, lambda: 0.0))
        self.passes, self.ref = controller(self.cluster, self.brokers), ref
        app = streams_app(state="suspended")
        self.revision = revision or revision_of(app.spec)
        of = AppRevision("default", "app", self.revision, app.spec)
        self.cluster.children.put(CONFIG_MAPS, plan_config_map(of, count_plan("in", "app").to_json()))
        self.spec = app.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]

    def serve(self, kind, name, spec, **fields):
        """Make the API server serve a resource with this spec."""
        metadata = {"name": name, "namespace": "default", "generation": 1, **fields.pop("metadata", {})}
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec, **fields}
        return self.server.put(kind.path("default", name), body)

    def watch(self, kind, obj):
        """Deliver the API server's current object to the operator."""
        self.cluster.resources.put(kind, obj)

    def run(self):
        """Make a pass."""
        return self.passes.run(self.ref, 0)
