"""An application from its first `kubectl apply` to its deletion, against a real cluster and a real Kafka."""

from __future__ import annotations

import time

import pytest

from e2e.support.application import Application
from e2e.support.word_count import Words


def test_an_application_lives(word_count, words: Words, kafka_topics) -> None:
    """A manifest is all it takes. It is repaired, suspended, deleted and created again, scaled and purged, and counts exactly.

    One application goes through all of it: each step finds what the one before has left.
    """
    words.write(times=20)
    app: Application = word_count(words, replicas=1)
    app.apply()
    app.wait_ready()
    words.wait_exact()
    applied_again_it_is_not_written(app, words)
    it_is_suspended_and_resumed(app, words)
    it_is_deleted_and_created_again_with_its_volumes(app, words)
    deleted_and_edited_children_are_restored(app)
    with words.load():
        scale(app, 3)
        scale(app, 1)
    words.wait_exact()
    assert [pod["metadata"]["name"] for pod in app.pods()] == [f"{app.name}-0"]
    app.wait("one member left", lambda: app.status()["group"]["members"] == 1)
    purged_it_leaves_nothing(app, words, kafka_topics)


def applied_again_it_is_not_written(app: Application, words: Words) -> None:
    """The status tells of all tasks and topics, as `millrace top` does; applying the manifest again causes no writes."""
    app.wait("all tasks run", lambda: app.status()["tasks"]["active"] == 8)
    seen = app.top()
    assert (seen["totals"]["answering"], seen["totals"]["active"]) == (1, 8)
    assert seen["instances"][0]["state"] == "RUNNING"
    app.wait("stable", lambda: (state := app.status()).get("stableRevision") == state["currentRevision"])
    state = app.status()
    assert state["lifecycleState"] == "Running"
    assert state["topology"]["subtopologies"] == 2
    assert state["topology"]["tasks"] == 8
    assert {topic["ok"] for topic in state["internalTopics"]} == {True}
    assert len(state["internalTopics"]) == 2
    before = versions(app)
    app.apply()
    words.write(times=20)
    words.wait_exact()
    assert versions(app) == before


def deleted_and_edited_children_are_restored(app: Application) -> None:
    """Children that somebody deletes or edits are restored."""
    app.kubectl("delete", "service,networkpolicy,poddisruptionbudget,serviceaccount", app.name, "--ignore-not-found")
    app.kubectl("patch", "statefulset", app.name, "--type=merge", "--patch", '{"spec":{"replicas":2}}')
    app.wait("healed", lambda: app.object("service") and app.object("serviceaccount"))
    app.wait("scaled back", lambda: app.object("statefulset")["spec"]["replicas"] == 1 and len(app.pods()) == 1)
    app.wait_ready()


def it_is_suspended_and_resumed(app: Application, words: Words) -> None:
    """Suspending stops the pods and leaves the group; resuming continues with the state on the volumes."""
    app.apply(state="suspended")
    app.wait("suspended", lambda: app.status().get("lifecycleState") == "Suspended")
    assert app.pods() == []
    app.wait("the group left", lambda: app.status()["group"]["members"] == 0)
    words.write(times=10)
    app.apply(state="running")
    app.wait_ready()
    words.wait_exact()
    assert sum(app.instance(pod["metadata"]["name"])["restoration"]["restored_records"] for pod in app.pods()) == 0


def it_is_deleted_and_created_again_with_its_volumes(app: Application, words: Words) -> None:
    """By default, an application that is deleted and applied again continues where it stopped."""
    claims = {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in app.objects("pvc")}
    assert list(claims) == [f"state-{app.name}-0"]
    app.delete()
    app.wait("no children", lambda: not app.objects("statefulset,pod,service,serviceaccount,job"))
    marks = [item["metadata"]["labels"] for item in app.objects("configmap")]
    assert [mark["streams.millrace.dev/retained"] for mark in marks] == ["true", "true"], "a plan, and ids of topics"
    assert {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in app.objects("pvc")} == claims
    words.write(times=10)
    app.apply()
    app.wait_ready()
    words.wait_exact()
    assert app.instance(f"{app.name}-0")["restoration"]["restored_records"] == 0


def purged_it_leaves_nothing(app: Application, words: Words, kafka_topics) -> None:
    """`deletionPolicy: Purge` also deletes internal topics, offsets and volumes, but never the user's topics."""
    app.apply(deletionPolicy="Purge")
    assert [name for name in kafka_topics() if name.startswith(app.spec["applicationId"])]
    app.delete()
    app.wait("no claims", lambda: not app.objects("pvc"))
    app.wait(
        "no internal topics",
        lambda: not [name for name in kafka_topics() if name.startswith(f"{app.spec['applicationId']}-")],
    )
    assert {words.input, words.output} <= set(kafka_topics())


def versions(app: Application) -> dict[str, str]:
    """Return the version of each object that the operator writes."""
    kinds = "statefulset,service,configmap,serviceaccount,networkpolicy,poddisruptionbudget,job,pvc"
    items = [app.resource(), *app.objects(kinds)]
    return {f"{item['kind']}/{item['metadata']['name']}": written(item) for item in items}


def written(item: dict) -> str:
    """Return what changes when the operator writes an object, but not when others do (a StatefulSet's status, for example)."""
    fields = [
        (entry.get("subresource", ""), entry["time"])
        for entry in item["metadata"].get("managedFields", ())
        if entry["manager"] == "millrace-operator"
    ]
    return str(sorted(fields)) if fields else item["metadata"]["resourceVersion"]


def scale(app: Application, replicas: int) -> None:
    """Scale as an autoscaler does, and wait until the tasks have settled."""
    app.kubectl("scale", "streamsapp", app.name, f"--replicas={replicas}")
    app.spec["replicas"] = replicas
    app.wait(f"{replicas} replicas", lambda: len(app.pods()) == replicas and app.status().get("replicas") == replicas)
    app.wait_ready()


@pytest.mark.thorough
def test_pod_drains_when_annotated_but_not_on_request_from_another_pod(word_count, words: Words) -> None:
    """A request from another pod changes nothing. The annotation reaches the instance, which hands over, and is replaced."""
    app: Application = word_count(words, replicas=2)
    app.apply()
    app.wait_ready()
    words.write()
    app.kubectl("annotate", "streamsapp", app.name, "streams.millrace.dev/pause=true")
    app.wait("the pause", lambda: app.condition("ReconciliationPaused").get("status") == "True")
    neighbour = app.object("pod", f"{app.name}-1")
    assert neighbour is not None
    asked = app.kubectl("exec", f"{app.name}-0", "--", "python3", "-c", ASK_TO_DRAIN, neighbour["status"]["podIP"])
    assert asked.strip() == "501"
    assert app.instance(f"{app.name}-1")["state"] in {"RUNNING", "REBALANCING"}
    before, uid = time.monotonic(), neighbour["metadata"]["uid"]
    app.kubectl("annotate", "pod", f"{app.name}-1", "streams.millrace.dev/drain=true")
    app.wait("the pod to drain", lambda: app.instance(f"{app.name}-1")["state"] == "DRAINED")
    print(f"annotated to drained: {time.monotonic() - before:.1f} s")  # noqa: T201 - shown by `-s`
    app.wait("the other to have all tasks", lambda: app.instance(f"{app.name}-0")["task_counts"]["active"] == 8)
    app.kubectl("annotate", "streamsapp", app.name, "streams.millrace.dev/pause-")
    app.wait("another pod", lambda: len(app.pods()) == 2 and uid not in {pod["metadata"]["uid"] for pod in app.pods()})
    app.wait_ready()
    words.write()
    words.wait_exact()


ASK_TO_DRAIN = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], 8080, timeout=60)
connection.request("POST", "/drain")
print(connection.getresponse().status)
"""


@pytest.mark.parametrize("policy", [pytest.param("Retain", marks=pytest.mark.thorough), "Purge"])
@pytest.mark.thorough
def test_deletion_completes_while_kafka_is_down(word_count, own_words, policy: str) -> None:
    """An application whose brokers are down can be deleted, whatever its policy."""
    kafka, words = own_words
    app: Application = word_count(words, replicas=1, deletionPolicy=policy, drain={"terminationGracePeriodSeconds": 10})
    app.apply()
    app.wait_ready()
    kafka.stop()
    app.delete()
    app.wait("no pods", lambda: not app.objects("pods"))


@pytest.mark.thorough
def test_orphaned_application_keeps_running_and_is_adopted(word_count, words: Words) -> None:
    """`deletionPolicy: Orphan` leaves everything running, and the same manifest takes it over without a restart."""
    app: Application = word_count(words, replicas=1, deletionPolicy="Orphan")
    app.apply()
    app.wait_ready()
    pods = [pod["metadata"]["uid"] for pod in app.pods()]
    app.delete()
    words.write()
    words.wait_exact()
    app.apply()
    app.wait_ready()
    assert [pod["metadata"]["uid"] for pod in app.pods()] == pods


@pytest.mark.thorough
def test_paused_application_is_left_alone(word_count, words: Words) -> None:
    """With the annotation `streams.millrace.dev/pause` the operator only watches."""
    app: Application = word_count(words, replicas=1)
    app.apply()
    app.wait_ready()
    app.kubectl("annotate", "streamsapp", app.name, "streams.millrace.dev/pause=true")
    app.wait("paused", lambda: app.condition("ReconciliationPaused").get("status") == "True")
    app.kubectl("delete", "service", app.name)
    app.apply(replicas=2)
    app.wait("seen", lambda: app.status().get("observedGeneration") == app.resource()["metadata"]["generation"])
    assert len(app.pods()) == 1
    assert app.object("service") is None
    app.kubectl("annotate", "streamsapp", app.name, "streams.millrace.dev/pause-")
    app.wait_ready()
    assert len(app.pods()) == 2
    assert app.object("service")


@pytest.mark.thorough
def test_restart_nonce_restarts_pods(word_count, words: Words) -> None:
    """Changing `restartNonce` replaces every pod, one by one."""
    app: Application = word_count(words, replicas=2)
    app.apply()
    app.wait_ready()
    before = {pod["metadata"]["uid"] for pod in app.pods()}
    app.apply(restartNonce=1)
    app.wait("all replaced", lambda: len(app.pods()) == 2 and not before & {p["metadata"]["uid"] for p in app.pods()})
    app.wait_ready()
    words.write()
    words.wait_exact()
