"""Real failures in a cluster: killed processes, deleted pods, unreachable brokers, unreadable records."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from e2e.support.application import Application
from e2e.support.word_count import Words


def test_killed_processes_and_pods_keep_their_state(word_count, words: Words, cluster) -> None:
    """SIGKILL and `kubectl delete pod --force` under load: pods come back with their names and volumes, and counts are exact."""
    app: Application = word_count(words, replicas=2)
    app.apply()
    app.wait_ready()
    claims = {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in app.objects("pvc")}
    with words.load():
        for pod in (f"{app.name}-0", f"{app.name}-1"):
            container = status_of_container(app, pod)
            cluster.node.kill_container(container["containerID"])
            app.wait(
                f"{pod} restarted",
                lambda pod=pod, before=container["restartCount"]: (
                    status_of_container(app, pod).get("restartCount", 0) > before
                ),
            )
            app.wait_ready()
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in app.pods()}
        app.kubectl("delete", "pod", f"{app.name}-0", "--grace-period=0", "--force")
        app.wait("replaced", lambda: uids[f"{app.name}-0"] not in {pod["metadata"]["uid"] for pod in app.pods()})
        app.wait_ready()
    words.wait_exact()
    assert {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in app.objects("pvc")} == claims
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in app.pods()}[f"{app.name}-1"] == uids[
        f"{app.name}-1"
    ]


def status_of_container(app: Application, pod: str) -> dict[str, Any]:
    """Return the status of a pod's container; empty if there is none."""
    found = app.object("pod", pod)
    return next(iter(found["status"].get("containerStatuses", ())), {}) if found else {}


@pytest.mark.thorough
def test_long_broker_outage_is_survived(own_words, word_count) -> None:
    """Kafka is down for longer than the session timeout and the status says so; when it is back, everything counts exactly."""
    kafka, words = own_words
    app: Application = word_count(words, replicas=2, membership={"sessionTimeout": "10s"})
    app.apply()
    app.wait_ready()
    words.write(times=10)
    words.wait_exact()
    time.sleep(2)  # until all transaction markers are written: a single broker killed before that would never do it
    kafka.kill()
    app.wait("told", lambda: app.condition("BrokersReachable").get("status") == "False")
    away_for(app, 20)
    kafka.restart_broker()
    words.write(times=10)
    app.wait("told to be back", lambda: app.condition("BrokersReachable").get("status") == "True")
    words.wait_exact()
    app.wait_ready()


def away_for(app: Application, seconds: int) -> None:
    """Wait until the brokers have been reported as down for some time."""
    app.wait(f"{seconds} s away", lambda: _since(app.condition("BrokersReachable")["lastTransitionTime"]) > seconds)


def _since(then: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(then)).total_seconds()


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["Retain", "Purge"])
def test_application_that_never_ran_is_deleted_at_once(word_count, words: Words, policy: str) -> None:
    """A resource that was wrong from the start is deleted without waiting for anything, and leaves nothing."""
    app: Application = word_count(words, replicas=1, image="localhost/nobody-built-this:1", deletionPolicy=policy)
    app.apply()
    app.wait_for("Stalled", "True", "PlanImageUnavailable")
    app.delete()
    app.wait("nothing left", lambda: not app.objects("statefulset,pod,job,configmap,service,serviceaccount,pvc"))
    assert "KafkaLeftBehind" not in {event["reason"] for event in app.events()}


@pytest.mark.thorough
def test_unreadable_record_is_reported_and_the_remedy_works(word_count, words: Words, admin) -> None:
    """By default it stops the replica, and conditions and `millrace explain` name the record; once skipped, all continues."""
    dead_letters = f"{words.input}-dead"
    admin.create_topics([NewTopic(dead_letters, 1, 1)])[dead_letters].result(30)
    app: Application = word_count(words, replicas=1, app={"entrypoint": "versions:keyed"})
    app.apply()
    app.wait_ready()
    words.write()
    words.wait_exact()
    words.poison(b"not a number")
    words.write()
    app.wait(
        "told",
        lambda: (ready := app.condition("Ready")).get("reason") == "PodsFailing" and words.input in ready["message"],
    )
    told = app.explain()
    assert words.input in told
    assert "errorPolicy" in told
    app.apply(processing={"errorPolicy": {"deserialization": "Continue"}, "deadLetterTopic": dead_letters})
    app.wait_ready()
    words.wait_exact()
    (letter,) = words.read(dead_letters, 1)
    assert (letter.key(), letter.value()) == (b"not a number", b"poison")
    assert dict(letter.headers())["__streams.errors.topic"] == words.input.encode()
    assert "is not processing" not in app.explain()
    admin.delete_topics([dead_letters])[dead_letters].result(30)
