"""A node whose kubelet dies: nothing starts, stops or probes its pods until the kubelet is back."""

from __future__ import annotations

import pytest

from e2e.support.application import Application
from e2e.support.word_count import Words

pytestmark = pytest.mark.disturbs


@pytest.mark.thorough
def test_dead_kubelet_stops_nothing(word_count, words: Words, cluster) -> None:
    """Pods keep processing without it; an upgrade requested meanwhile happens when it is back, and counts are exact."""
    app: Application = word_count(words, replicas=1)
    app.apply()
    app.wait_ready()
    uid = app.pods()[0]["metadata"]["uid"]
    cluster.node.kill_kubelet()
    try:
        words.write(times=20)
        words.wait_exact()
        app.apply(restartNonce=1)
        app.wait("the plan to be waited for", lambda: app.status().get("lifecycleState") == "Planning")
        words.write(times=20)
        words.wait_exact()
    finally:
        cluster.node.start_kubelet()
    app.wait("replaced", lambda: [pod["metadata"]["uid"] for pod in app.pods()] not in ([], [uid]))
    app.wait_ready()
    words.write()
    words.wait_exact()
    assert app.instance(f"{app.name}-0")["restoration"]["restored_records"] == 0
