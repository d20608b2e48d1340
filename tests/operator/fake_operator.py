"""The operator in a world without a cluster: it decides, and what it decides happens."""

import json

from millrace_operator.children.config_maps import plan_config_map
from millrace_operator.children.naming import labels
from millrace_operator.model import AppRevision, Key


class FakeOperator:
    """Makes passes over a resource; a world is one that knows what the operator sees and how its actions change that."""

    events: list
    """All that were written."""

    def decide(self):
        """Return the decision about what is there now."""
        raise NotImplementedError

    def do(self, action):
        """Carry out an action; repeating it does no harm."""
        raise NotImplementedError

    def keep_status(self, status):
        """Keep a status that was written."""
        raise NotImplementedError

    def pass_over(self, crash_after=None):
        """Run one pass and return the decision; the operator dies after this many actions if a number is given."""
        return self.carry_out(self.decide(), crash_after)

    def carry_out(self, decision, crash_after=None):
        """Carry out a decision, or only its first actions."""
        for action in decision.actions[:crash_after]:
            self.do(action)
        if crash_after is None:
            if decision.status is not None:
                self.keep_status(decision.status)
            self.events += decision.events
        return decision


def served(status):
    """Return a status as the API server serves it after it was written, in JSON."""
    return json.loads(status.model_dump_json(by_alias=True, exclude_none=True))


def plan_object(revision, spec, plan):
    """Return the ConfigMap with the plan of a revision of the application, and its key."""
    item = plan_config_map(AppRevision("default", "app", revision, spec), plan.to_json())
    item["metadata"]["uid"] = f"m-{revision}"
    return Key("ConfigMap", item["metadata"]["name"]), item


def pod_object(name):
    """Return a pod of the application, and its key."""
    metadata = {"name": name, "uid": name, "labels": labels("app"), "creationTimestamp": "2026-01-01T00:00:00Z"}
    return Key("Pod", name), {"metadata": metadata, "spec": {"containers": []}, "status": {}}
