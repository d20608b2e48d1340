"""Replicas that follow the load, measured on real pods: more while they cannot keep up, fewer when there is nothing to do."""

from __future__ import annotations

import pytest

from e2e.support.application import KUBECTL_PATIENCE, Application
from e2e.support.word_count import Words

_QUICK = {"min": 1, "max": 3, "targetCatchUp": "30s", "cooldown": {"rebalance": "5s", "scaleDown": "10s"}}


@pytest.mark.thorough
def test_replicas_follow_the_load(word_count, words: Words) -> None:
    """More lines than one pod can process start more pods, which go away again afterwards; `spec.replicas` is not written."""
    app: Application = word_count(words, app={"entrypoint": "versions:slow"}, autoscaling={"mode": "Auto", **_QUICK})
    app.apply()
    app.wait_ready()
    generation = app.resource()["metadata"]["generation"]
    with words.load(lines_per_second=150):
        app.wait("more replicas", lambda: len(app.pods()) > 1)
        assert app.status()["autoscaling"]["recommended"] > 1
    words.wait_exact()
    app.wait("one replica", lambda: len(app.pods()) == 1 and app.status().get("replicas") == 1)
    assert app.status()["autoscaling"]["recommended"] == 1
    assert app.resource()["metadata"]["generation"] == generation
    words.write()
    words.wait_exact()


@pytest.mark.thorough
def test_recommendations_change_nothing(word_count, words: Words) -> None:
    """In mode Recommend the status says how many replicas there should be, and why, but the number does not change."""
    app: Application = word_count(
        words, app={"entrypoint": "versions:slow"}, autoscaling={"mode": "Recommend", **_QUICK}
    )
    app.apply()
    app.wait_ready()
    with words.load(lines_per_second=150):
        app.wait("advised", lambda: advises_more(app))
    assert len(app.pods()) == 1


def advises_more(app: Application) -> bool:
    """Return whether the status wants more replicas, and says why."""
    advice = app.status().get("autoscaling") or {}
    return advice.get("recommended", 1) > 1 and "do not keep up" in advice["reason"]


@pytest.mark.thorough
def test_scaling_to_zero_and_back(word_count, words: Words) -> None:
    """An autoscaler may scale to zero: the application rests, and returning pods have their volumes and continue counting."""
    app: Application = word_count(words, replicas=3, upgrade={"gate": {"minStable": "1s"}})
    app.apply()
    app.wait_ready()
    words.write(times=20)
    words.wait_exact()
    claims = claim_uids(app)
    with words.load(40):
        scale(app, 0)
        app.wait_for("Ready", reason="ScaledToZero")
        app.wait("at rest", lambda: app.condition("Reconciling")["status"] == "False")
        assert app.pods() == []
        assert app.condition("Stalled")["status"] == "False"
        assert (app.status()["lifecycleState"], app.status()["replicas"]) == ("Suspended", 0)
        app.kubectl("wait", "streamsapp", app.name, "--for=condition=Ready", KUBECTL_PATIENCE)
        scale(app, 3)
        app.wait_ready()
    words.wait_exact()
    assert claim_uids(app) == claims
    assert len(claims) == 3


def claim_uids(app: Application) -> list[str]:
    """Return the application's claims."""
    return [claim["metadata"]["uid"] for claim in app.objects("pvc")]


def scale(app: Application, replicas: int) -> None:
    """Set the number of replicas through the scale subresource, as an autoscaler does."""
    app.kubectl("scale", "streamsapp", app.name, f"--replicas={replicas}")
