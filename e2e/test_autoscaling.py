"""Replicas that follow the load, measured on real pods: out while they do not keep up, back when there is nothing to do."""

from __future__ import annotations

from e2e.support.application import Application
from e2e.support.words import Words

_QUICK = {"min": 1, "max": 3, "targetCatchUp": "30s", "cooldown": {"rebalance": "5s", "scaleDown": "10s"}}


def test_replicas_follow_the_load(word_count, words: Words) -> None:
    """More lines than one pod manages: more pods, and one when the lines have ended; `spec.replicas` is not written."""
    app: Application = word_count(words, app={"entrypoint": "versions:slow"}, autoscaling={"mode": "Auto", **_QUICK})
    app.apply()
    app.wait_ready()
    generation = app.resource()["metadata"]["generation"]
    with words.load(lines_per_second=150):
        app.wait("more replicas", lambda: len(app.pods()) > 1, 240)
        assert app.status()["autoscaling"]["recommended"] > 1
    words.wait_exact(400)
    app.wait("one replica", lambda: len(app.pods()) == 1 and app.status().get("replicas") == 1, 240)
    assert app.status()["autoscaling"]["recommended"] == 1
    assert app.resource()["metadata"]["generation"] == generation
    words.write()
    words.wait_exact()


def test_recommendations_move_nothing(word_count, words: Words) -> None:
    """With the mode Recommend the status says how many replicas there should be, and why; there are as many as before."""
    app: Application = word_count(
        words, app={"entrypoint": "versions:slow"}, autoscaling={"mode": "Recommend", **_QUICK}
    )
    app.apply()
    app.wait_ready()
    with words.load(lines_per_second=150):
        app.wait("advised", lambda: advises_more(app), 240)
    assert len(app.pods()) == 1


def advises_more(app: Application) -> bool:
    """Return whether the status wants more replicas, and says why."""
    advice = app.status().get("autoscaling") or {}
    return advice.get("recommended", 1) > 1 and "do not keep up" in advice["reason"]
