"""Observing: manifests and statuses as they are, the output of plan Jobs, lists page by page."""

import pytest

from millrace_operator.cluster.cache import Cache, relist
from millrace_operator.cluster.kinds import APPS, CONFIG_MAPS, PODS, RESETS
from millrace_operator.cluster.observe import PlanJobOutputs, StorageClasses, desired_from
from millrace_operator.cluster.requests import ApiError
from millrace_operator.model import DesiredApp, DesiredReset, Key, ResourceRef

SPEC = {
    "applicationId": "orders-v1",
    "image": "registry.example/orders:1",
    "app": {"entrypoint": "orders:topology"},
    "kafka": {"bootstrapServers": ["kafka:9092"]},
}


def app(spec=None, status=None, **metadata):
    """A StreamsApp as the API returns it."""
    return {
        "apiVersion": "streams.millrace.dev/v1alpha1",
        "kind": "StreamsApp",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "u", "generation": 3, **metadata},
        "spec": SPEC if spec is None else spec,
        **({} if status is None else {"status": status}),
    }


def test_resource_becomes_what_is_desired():
    """Spec and status become models; the manifest stays as it was written."""
    desired = desired_from(app(status={"currentRevision": "a"}, finalizers=["f"], annotations={"x": "y"}), DesiredApp)
    assert desired.spec is not None
    assert (desired.spec.replicas, desired.manifest, desired.problems) == (1, SPEC, ())
    assert desired.status is not None
    assert desired.status.current_revision == "a"
    assert (desired.generation, desired.finalizers, desired.annotations) == (3, ("f",), {"x": "y"})
    assert not desired.deleting


def test_deletion_has_its_time():
    """The time since the deletion started is known."""
    desired = desired_from(app(deletionTimestamp="1970-01-01T00:01:00Z"), DesiredApp)
    assert (desired.deleting, desired.deletion_time) == (True, 60.0)


def test_broken_spec_becomes_problems():
    """A resource from an older or newer CRD is reported to its user instead of causing a failure."""
    desired = desired_from(app({**SPEC, "replicas": "many"}), DesiredApp)
    assert desired.spec is None
    assert "spec.replicas" in desired.problems[0]


def test_unreadable_part_of_a_status_does_not_cost_the_rest():
    """What an earlier operator recorded stays, even next to a field that this one cannot read."""
    status = {"currentRevision": "a", "lifecycleState": "Dreaming", "replicas": "x", "newField": 1}
    desired = desired_from(app(status=status), DesiredApp)
    assert desired.status is not None
    assert (desired.status.current_revision, desired.status.lifecycle_state) == ("a", None)


def test_reset_becomes_what_is_desired():
    """A reset is read like an app."""
    body = {"apiVersion": APPS.api_version, "kind": "StreamsReset", "metadata": app()["metadata"]}
    good = desired_from({**body, "spec": {"appRef": {"name": "orders"}}, "status": {"phase": "Waiting"}}, DesiredReset)
    assert good.spec is not None
    assert good.status is not None
    assert (good.spec.app_ref.name, good.status.phase) == ("orders", "Waiting")
    assert desired_from({**body, "spec": {}}, DesiredReset).problems


def job(kind="Complete", message=""):
    """A Job that has ended."""
    condition = {"type": kind, "status": "True", "message": message}
    return {"metadata": {"name": "j", "uid": "job"}, "status": {"conditions": [condition]}}


def pod(phase, message=None, name="j-1"):
    """A pod of the Job."""
    ended = [{"state": {"terminated": {"message": message}}}] if message else []
    return {
        "metadata": {"name": name, "labels": {"batch.kubernetes.io/job-name": "j"}, "creationTimestamp": name},
        "status": {"phase": phase, "containerStatuses": ended},
    }


def objects(*found):
    """An app's objects by key."""
    kinds = {"j": "Job"}
    return {Key(kinds.get(obj["metadata"]["name"], "Pod"), obj["metadata"]["name"]): obj for obj in found}


def test_plan_is_read_once_from_the_pods_log(server, requests):
    """A finished Job's log does not change, so it is read only once."""
    outputs = PlanJobOutputs(requests)
    server.logs["/api/v1/namespaces/shop/pods/j-1/log"] = '{"version": 1}'
    for _ in range(3):
        assert outputs.of("shop", objects(job(), pod("Succeeded"))) == {"j": '{"version": 1}'}
    assert len(server.asked) == 1


def test_plan_is_found_among_what_the_program_printed(server, requests):
    """A pod's log mixes both streams: the plan is its last line of JSON, and everything before or after it is ignored."""
    plan = '{"version":1,"applicationId":"a"}'
    text = f'WARNING: a setting is odd\n{{"mine": 1}}\n{plan}\nbye\n'
    server.logs["/api/v1/namespaces/shop/pods/j-1/log"] = text
    assert PlanJobOutputs(requests).of("shop", objects(job(), pod("Succeeded"))) == {"j": plan}


@pytest.mark.parametrize("found", [(pod("Running"),), (job(), pod("Running")), (job("Failed"), pod("Running"))])
def test_output_of_what_has_not_ended_is_not_known(server, requests, found):
    """Job and pod are observed at different times: the pod's state may be older."""
    assert PlanJobOutputs(requests).of("shop", objects(*found)) == {}
    assert server.asked == []


def test_last_of_several_pods_counts(server, requests):
    """A Job may have needed two attempts."""
    server.logs["/api/v1/namespaces/shop/pods/j-2/log"] = "{}"
    found = objects(job(), pod("Failed", "no", "j-1"), pod("Succeeded", None, "j-2"))
    assert PlanJobOutputs(requests).of("shop", found) == {"j": "{}"}


def test_failed_job_gives_its_reason(server, requests):
    """The reason is the termination message, or else the end of the log, or else the Job's condition."""
    outputs = lambda *found: PlanJobOutputs(requests).of("shop", objects(*found))["j"]  # noqa: E731
    assert outputs(job("Failed"), pod("Failed", "no such module")) == "no such module"
    server.logs["/api/v1/namespaces/shop/pods/j-1/log"] = "x" * 5000 + "the end"
    assert outputs(job("Failed"), pod("Failed")).endswith("xthe end")
    overdue = job("Failed", "Job was active longer than specified deadline")
    assert outputs(overdue).startswith("Job was active longer")
    ending = pod("Running")
    ending["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z"
    assert outputs(overdue, ending).startswith("Job was active longer")


def test_log_that_cannot_be_read_is_read_by_the_next_pass(server, requests):
    """A kubelet may be unreachable for a while."""
    outputs, found = PlanJobOutputs(requests), objects(job(), pod("Succeeded"))
    server.failures.append((500, "InternalError"))
    with pytest.raises(ApiError):
        outputs.of("shop", found)
    server.logs["/api/v1/namespaces/shop/pods/j-1/log"] = "{}"
    assert outputs.of("shop", found) == {"j": "{}"}


def test_storage_class_is_asked_now_and_then(server, requests):
    """Whether claims may grow is cached, not requested in each pass; without claims nothing is requested."""
    now = [0.0]
    expandable = StorageClasses(requests, lambda: now[0])
    claim = {"metadata": {"name": "c"}, "spec": {"storageClassName": "fast"}}
    found = {Key("PersistentVolumeClaim", "c"): claim}
    assert expandable.of({}) is None
    server.put("/apis/storage.k8s.io/v1/storageclasses/fast", {"metadata": {}, "allowVolumeExpansion": True})
    assert [expandable.of(found) for _ in range(3)] == [True] * 3
    assert len(server.asked) == 1
    server.put("/apis/storage.k8s.io/v1/storageclasses/fast", {"metadata": {}})
    now[0] = 601
    assert expandable.of(found) is False


def test_storage_class_that_may_not_be_read_is_not_known(server, requests):
    """In namespaced mode the operator has no right to read storage classes."""
    server.failures.append((403, "Forbidden"))
    claim = {"metadata": {"name": "c"}, "spec": {"storageClassName": "fast"}}
    assert StorageClasses(requests).of({Key("PersistentVolumeClaim", "c"): claim}) is None


def test_lists_fill_the_caches_page_by_page(server, requests):
    """All namespaces and all pages are listed, and the apps with changes are returned."""
    resources, children = Cache(), Cache()
    for number in range(3):
        server.put(f"/apis/streams.millrace.dev/v1alpha1/streamsapps/{number}", app(name=f"app-{number}"))
    labels = {"streams.millrace.dev/app": "app-1", "managed": "yes"}
    for number in range(1203):
        metadata = {"name": f"m{number}", "namespace": "shop", "labels": labels}
        server.put(f"/api/v1/configmaps/m{number}", {"metadata": metadata})
    changed, pod_monitors = relist(requests, resources, children, (), "managed=yes")
    assert changed == {ResourceRef("StreamsApp", "shop", f"app-{number}") for number in range(3)}
    assert len(children.of_app("shop", "app-1")) == 1203
    assert pod_monitors
    asked = [query for _, path, query, _ in server.asked if path == "/api/v1/configmaps"]
    assert [query.get("continue") for query in asked] == [None, "500", "1000"]
    assert all(query["labelSelector"] == "managed=yes" for query in asked)


def test_cluster_without_pod_monitors_is_served(server, requests):
    """This kind is optional; if any other list fails, that is a failure."""
    answer = server._answer
    missing = {"podmonitors": (404, {"reason": "NotFound"})}
    server._answer = lambda method, url, *more: (
        missing.get(url.split("?")[0].rpartition("/")[2]) or answer(method, url, *more)
    )
    assert relist(requests, Cache(), Cache(), ("shop",), "x") == (set(), False)
    missing["pods"] = (403, {"reason": "Forbidden"})
    with pytest.raises(ApiError):
        relist(requests, Cache(), Cache(), ("shop",), "x")


def test_kinds_have_their_paths():
    """Paths are right for the core group and others, namespaced or not."""
    assert PODS.path() == "/api/v1/pods"
    assert CONFIG_MAPS.path("shop", "m") == "/api/v1/namespaces/shop/configmaps/m"
    assert (
        RESETS.path("shop", "r", "status")
        == "/apis/streams.millrace.dev/v1alpha1/namespaces/shop/streamsresets/r/status"
    )
