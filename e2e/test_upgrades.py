"""New revisions: rolled one pod at a time, rolled back if they fail to run, refused if the state would not fit."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from tests.waiting import wait_until

from e2e.support.application import PATIENCE_S, Application
from e2e.support.word_count import Words

QUICK = {"gate": {"minStable": "1s", "readyTimeout": "5m"}}


def started(app: Application) -> str:
    """Apply an application, wait until its revision is stable, and return it."""
    app.apply()
    return settled(app)


def settled(app: Application, timeout_s: float = PATIENCE_S) -> str:
    """Wait until the newest manifest runs and is stable, and return its revision."""
    app.wait_ready(timeout_s)
    app.wait("stable", lambda: (state := app.status()).get("stableRevision") == state["currentRevision"])
    return app.status()["stableRevision"]


def uids(app: Application) -> set[str]:
    """Return the existing pods."""
    return {pod["metadata"]["uid"] for pod in app.pods()}


def revisions(app: Application) -> list[str]:
    """Return the revisions of the pods."""
    return [pod["metadata"]["labels"]["streams.millrace.dev/revision"] for pod in app.pods()]


def instances(app: Application) -> list[dict[str, Any]]:
    """Return the status that each instance reports."""
    return [app.instance(pod["metadata"]["name"]) for pod in app.pods()]


def generations(app: Application) -> set[int]:
    """Return the group's generations, as its members know them: every rebalance starts another."""
    return {status["group"]["generation"] for status in instances(app)}


def is_at_rest(app: Application) -> bool:
    """Return whether all members are in the same generation of the group, and none has to rejoin."""
    groups = [status["group"] for status in instances(app)]
    return len({group["generation"] for group in groups}) == 1 and {group["state"] for group in groups} == {"STABLE"}


def reasons(app: Application) -> set[str]:
    """Return the reasons of the application's Events."""
    return {event["reason"] for event in app.events()}


def test_roll_moves_no_task_and_restores_no_record(word_count, words: Words) -> None:
    """Static members keep their tasks and volumes: the group stays in its generation, nothing is restored, counts are exact."""
    patient = {"config": {"producer.transaction.timeout.ms": 120_000}}
    app: Application = word_count(words, replicas=3, upgrade=QUICK, membership={"sessionTimeout": "5m"}, kafka=patient)
    first = started(app)
    words.write(times=20)
    words.wait_exact()
    app.wait("the group at rest", lambda: is_at_rest(app))
    before, old = generations(app), uids(app)
    assert len(before) == 1
    fewest = 3
    with words.load():
        app.apply(app={"entrypoint": "versions:compatible"})

        def count_running() -> None:
            nonlocal fewest
            fewest = min(fewest, sum(pod["status"]["phase"] == "Running" for pod in app.pods()))

        wait_until(
            lambda: not old & uids(app) and app.condition("Ready").get("status") == "True",
            app.story,
            PATIENCE_S,
            meanwhile=count_running,
            poll_s=0.2,
        )
        second = settled(app)
    words.wait_exact()
    assert first != second
    assert fewest >= 2
    assert generations(app) == before
    assert [status["restoration"]["restored_records"] for status in instances(app)] == [0, 0, 0]


@pytest.mark.thorough
def test_growing_topology_is_rolled_out_without_a_crash(word_count, words: Words) -> None:
    """While old pods exist, nobody assigns them tasks that they do not know: all keep running, and counts are exact."""
    app: Application = word_count(words, replicas=2, upgrade=QUICK)
    started(app)
    restarts: dict[str, int] = {}
    with words.load():
        app.apply(app={"entrypoint": "versions:extended"})
        app.wait("all pods are new", lambda: restarts.update(restarts_of(app)) or len(set(restarts)) == 4)
        settled(app)
    restarts.update(restarts_of(app))
    words.wait_exact()
    assert set(restarts.values()) == {0}
    app.wait("the tasks that are new run too", lambda: app.status()["tasks"]["active"] == 12)


def restarts_of(app: Application) -> dict[str, int]:
    """Return how often each pod's program was restarted."""
    return {
        pod["metadata"]["uid"]: each["restartCount"]
        for pod in app.pods()
        for each in pod["status"].get("containerStatuses", ())
    }


@pytest.mark.thorough
def test_recreate_replaces_all_pods_at_once(word_count, words: Words) -> None:
    """Old and new pods never run at the same time; that costs a pause, but no count."""
    app: Application = word_count(words, replicas=2, upgrade={**QUICK, "strategy": "Recreate"})
    started(app)
    old = uids(app)
    with words.load():
        app.apply(app={"entrypoint": "versions:compatible"})

        def replaced() -> bool:
            now = uids(app)
            return bool(now - old) and len(now) >= 2

        def check_apart() -> None:
            now = uids(app)
            assert not now & old or now <= old, "a new pod next to an old one"

        wait_until(replaced, app.story, PATIENCE_S, meanwhile=check_apart)
        settled(app)
    words.wait_exact()
    assert not uids(app) & old


@pytest.mark.thorough
def test_missing_image_leaves_running_pods_alone(word_count, words: Words) -> None:
    """What runs keeps running, the condition says why, and a good manifest fixes everything."""
    app: Application = word_count(words, replicas=1, upgrade=QUICK)
    started(app)
    image, pods = app.spec["image"], uids(app)
    app.apply(image="localhost/nobody-built-this:1")
    app.wait_for("RolledBack", reason="UpgradeNotBegun")
    assert "nobody-built-this" in app.condition("RolledBack")["message"]
    assert app.condition("Stalled")["reason"] == "PlanImageUnavailable"
    words.write()
    words.wait_exact()
    assert uids(app) == pods
    app.apply(image=image)
    settled(app)
    assert app.condition("RolledBack")["status"] == "False"
    assert uids(app) == pods


@pytest.mark.thorough
def test_failed_plan_leaves_running_pods_alone(word_count, words: Words) -> None:
    """The condition shows the program's own error, what runs keeps running, and another restartNonce runs the program again."""
    app: Application = word_count(words, replicas=1, upgrade=QUICK)
    started(app)
    pods = uids(app)
    app.apply(app={"entrypoint": "versions:unplannable"})
    app.wait_for("Stalled", reason="PlanFailed")
    assert f"LookupError: There is no dictionary for {words.input}" in app.condition("Stalled")["message"]
    jobs = {job["metadata"]["uid"] for job in app.objects("jobs")}
    app.apply(restartNonce=1)
    app.wait("asked again", lambda: jobs and not jobs & {job["metadata"]["uid"] for job in app.objects("jobs")})
    app.wait_for("Stalled", reason="PlanFailed")
    words.write()
    words.wait_exact()
    assert uids(app) == pods
    app.apply(app={"entrypoint": "wordcount:topology"}, restartNonce=0)
    settled(app)
    assert app.condition("Stalled")["status"] == "False"
    assert uids(app) == pods


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("version", "reason", "timeout"),
    [
        ("failing", "PodCrashed", "5m"),
        pytest.param("hanging", "ReadyTimeout", "30s", marks=pytest.mark.thorough),
    ],
)
def test_revision_whose_pods_fail_is_rolled_back(
    word_count, words: Words, version: str, reason: str, timeout: str
) -> None:
    """The plan is fine but the pods fail: the failed pod goes back to the stable revision, and counts are exact."""
    app: Application = word_count(words, replicas=2, upgrade=QUICK, drain={"terminationGracePeriodSeconds": 10})
    stable = started(app)
    with words.load(40):
        app.apply(app={"entrypoint": f"versions:{version}"}, upgrade={"gate": {"readyTimeout": timeout}})
        app.wait_for("RolledBack", reason=reason)
        assert "restartNonce" in app.condition("RolledBack")["message"]
        app.wait("the stable revision runs", lambda: revisions(app) == [stable] * 2)
        app.wait_for("Ready")
    words.wait_exact()
    assert {"RolledBack", reason} <= reasons(app)
    state = app.status()
    assert state["currentRevision"] == state["stableRevision"] == stable


@pytest.mark.thorough
def test_failure_with_an_external_cause_can_be_retried(word_count, words: Words) -> None:
    """A revision that waited in vain for a Secret is rolled back; once the Secret exists, another restartNonce is enough."""
    app: Application = word_count(words, replicas=1, upgrade=QUICK)
    stable = started(app)
    dictionary = {"name": "dictionary", "secret": {"secretName": "dictionary"}}
    mount = {"name": "dictionary", "mountPath": "/dictionary", "readOnly": True}
    impatient, patient = ({"gate": {"readyTimeout": time}} for time in ("40s", "5m"))
    app.apply(podTemplate={"volumes": [dictionary], "volumeMounts": [mount]}, upgrade=impatient)
    app.wait_for("RolledBack", reason="ReadyTimeout")
    app.wait("the stable revision runs", lambda: revisions(app) == [stable])
    app.kubectl("create", "secret", "generic", "dictionary", "--from-literal=words=all")
    app.apply(restartNonce=1, upgrade=patient)
    assert settled(app) not in {stable, None}
    assert app.condition("RolledBack")["status"] == "False"
    words.write()
    words.wait_exact()


def assert_refused(app: Application, reason: str) -> None:
    """Check that the newest topology is refused, with all of these reasons."""
    app.wait_for("TopologyCompatible", "False", reason)
    message = app.condition("TopologyCompatible")["message"]
    prefix = app.spec["applicationId"]
    assert "store counts was renamed to tallies" in message
    assert f"repartition topic {prefix}-counts-repartition was renamed to {prefix}-tallies-repartition" in message


@pytest.mark.thorough
def test_incompatible_topology_is_refused_before_a_pod_is_touched(word_count, words: Words, kafka_topics) -> None:
    """Nothing changes until the change is reverted; with policy Warn it is reported, allowed, and everything is recounted."""
    app: Application = word_count(words, replicas=2, upgrade=QUICK)
    stable = started(app)
    words.write()
    pods = uids(app)
    app.apply(app={"entrypoint": "versions:incompatible"})
    assert_refused(app, "NeedsReset")
    assert app.condition("Stalled")["reason"] == "TopologyHeldBack"
    words.write()
    words.wait_exact()
    assert (uids(app), set(revisions(app))) == (pods, {stable})
    assert f"{app.spec['applicationId']}-tallies-changelog" not in kafka_topics()
    app.apply(app={"entrypoint": "wordcount:topology"})
    assert settled(app) == stable
    assert app.condition("TopologyCompatible")["status"] == "True"
    assert uids(app) == pods
    anew = Words(words.bootstrap_servers, f"e2e-{secrets.token_hex(3)}")
    anew.input = words.input
    app.apply(
        app={"entrypoint": "versions:incompatible", "config": {"output": anew.output}},
        upgrade={"topologyPolicy": "Warn", "gate": {"minStable": "20s", "readyTimeout": "5m"}},
    )
    assert_refused(app, "NeedsResetIgnored")
    app.wait("all pods are new", lambda: len(uids(app) - pods) == 2)
    assert settled(app) != stable
    assert "NeedsResetIgnored" in reasons(app)
    anew.write(times=10)
    anew.wait_exact()


@pytest.mark.thorough
def test_new_topology_is_compared_with_a_first_revision_that_is_not_stable(word_count, words: Words) -> None:
    """Pods that have just started already have state, and suspending them does not change that; reverting the change helps."""
    app: Application = word_count(words, replicas=1, upgrade={"gate": {"minStable": "1h"}})
    app.apply()
    app.wait_ready()
    words.write()
    words.wait_exact()
    first = revisions(app)
    pods = uids(app)
    app.apply(app={"entrypoint": "versions:incompatible"})
    assert_refused(app, "NeedsReset")
    assert (uids(app), revisions(app)) == (pods, first)
    app.apply(state="suspended")
    app.wait("suspended", lambda: app.status().get("lifecycleState") == "Suspended")
    assert app.pods() == []
    app.apply(state="running")
    assert_refused(app, "NeedsReset")
    app.wait_for("Ready")
    assert revisions(app) == first
    app.apply(app={"entrypoint": "wordcount:topology"})
    app.wait_ready()
    words.write()
    words.wait_exact()
    assert app.condition("TopologyCompatible")["status"] == "True"
    assert revisions(app) == first
    assert app.status().get("stableRevision") is None


@pytest.mark.thorough
def test_volumes_grow_under_running_pods(word_count, words: Words) -> None:
    """A larger storage.size reaches claims and StatefulSet, which is recreated under its pods; none of them is restarted."""
    app: Application = word_count(words, replicas=2, upgrade=QUICK)
    started(app)
    pods, before = uids(app), app.object("statefulset")
    assert before is not None
    with words.load():
        app.apply(storage={"size": "2Gi"})
        app.wait("larger claims", lambda: sizes(app) == ["2Gi"] * 2)
        app.wait("a StatefulSet for larger claims", lambda: template_size(app) == "2Gi")
        app.wait_ready()
    words.wait_exact()
    after = app.object("statefulset")
    assert after is not None
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert uids(app) == pods
    assert set(restarts_of(app).values()) == {0}
    app.apply(replicas=3)
    app.wait_ready()
    assert sizes(app) == ["2Gi"] * 3
    words.write()
    words.wait_exact()


def sizes(app: Application) -> list[str]:
    """Return the capacity of each claim."""
    return [claim["status"].get("capacity", {}).get("storage", "") for claim in app.objects("pvc")]


def template_size(app: Application) -> str | None:
    """Return the size of claims for new pods."""
    found = app.object("statefulset")
    return found["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] if found else None
