"""A StreamsReset of an application that really ran: all state is deleted together, and everything is counted again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer
from tests.waiting import wait_until

from e2e.support.application import PATIENCE_S, Application
from e2e.support.word_count import Words


@pytest.mark.thorough
def test_reset_application_counts_from_the_beginning(word_count, words: Words, kafka_topics) -> None:
    """It waits while anybody is in the group; after a dry run it is done: no state is left, and the recount is exact."""
    app: Application = word_count(words, replicas=1)

    def topics() -> list[str]:
        return [name for name in kafka_topics() if name.startswith(f"{app.spec['applicationId']}-")]

    app.apply()
    app.wait_ready()
    words.write(times=10)
    words.wait_exact()
    made, claims = topics(), [claim["metadata"]["name"] for claim in app.objects("pvc")]
    assert len(made) == 2

    early = app.reset("early")
    app.wait("waiting while it runs", lambda: "spec.state: suspended" in early().get("message", ""))
    app.kubectl("delete", "streamsreset", "early")

    app.apply(state="suspended")
    app.wait("suspended", lambda: app.status().get("lifecycleState") == "Suspended")
    app.wait("an empty group", lambda: app.status()["group"]["members"] == 0)
    dry = app.reset("dry", dryRun=True)
    app.wait("dry run", lambda: dry().get("phase") == "Succeeded")
    assert dry()["plan"]["deletedTopics"] == made == topics()
    assert [claim["metadata"]["name"] for claim in app.objects("pvc")] == claims

    with stranger(words, app.spec["applicationId"]):
        reset = app.reset("again")
        told = f"Members of group {app.spec['applicationId']} are not pods of StreamsApp counts: rdkafka ("
        app.wait("waiting while others read", lambda: told in reset().get("message", ""))
        assert reset()["phase"] == "Waiting"
        assert topics() == made
    app.wait("reset", lambda: reset().get("phase") == "Succeeded")
    assert reset()["result"] == dry()["plan"]
    assert topics() == []
    app.wait("no claims", lambda: not app.objects("pvc"))

    mark = words.mark()
    words.write()
    app.apply(state="running")
    app.wait_ready()
    words.wait_exact(since=mark)
    assert topics() == made
    app.wait_for("TopicsReady")


@contextmanager
def stranger(words: Words, group: str) -> Iterator[None]:
    """Add another member to the application's group."""
    settings = {"bootstrap.servers": words.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([words.output])
        wait_until(consumer.assignment, "partitions", PATIENCE_S, meanwhile=lambda: consumer.poll(0.5))
        yield
    finally:
        consumer.close()
