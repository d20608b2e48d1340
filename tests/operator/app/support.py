"""The world in which app and reset passes are tested."""

from millrace_operator.app.app_controller import ControllerContext
from millrace_operator.app.broker_access import BrokerAccess
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.events import EventRecorder
from millrace_operator.cluster.executor import Executor
from millrace_operator.cluster.instance_status_client import InstanceStatusClient
from millrace_operator.cluster.observe import PlanJobOutputs


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
