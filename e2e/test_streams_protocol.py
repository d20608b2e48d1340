"""Applications whose brokers assign the tasks (`kafka.groupProtocol: streams`) in a cluster."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from e2e.support.application import Application
from e2e.support.word_count import Words
from e2e.test_faults import status_of_container
from millrace.config import StreamsConfig
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.group_settings import group_settings


@pytest.mark.thorough
def test_brokers_assign_the_tasks(word_count, words: Words, cluster, admin: AdminClient) -> None:
    """A running application changes the protocol, survives a killed process, and scales; its exactly-once counts are exact."""
    app: Application = word_count(words, replicas=1)
    app.apply()
    app.wait_ready()
    words.write()
    words.wait_exact()
    with words.load():
        app.apply(
            replicas=2,
            standby={"replicas": 1},
            membership={"sessionTimeout": "30m"},
            kafka={"groupProtocol": "streams", "config": {"heartbeat.interval.ms": 500}},
        )
        app.wait("the streams protocol", lambda: app.status()["group"].get("protocol") == "streams")
        app.wait_ready()
        settings = group_settings(admin, app.spec["applicationId"])
        assert settings["streams.num.standby.replicas"].value == "1"
        assert settings["streams.session.timeout.ms"].value == "1800000"
        _lose_a_process(app, words, cluster)
        app.apply(replicas=3)
        pods = [f"{app.name}-{number}" for number in range(3)]
        app.wait("tasks on all pods", lambda: all(app.instance(pod)["task_counts"]["active"] for pod in pods))
        app.wait("their status", lambda: [item["name"] for item in app.status()["tasks"]["pods"]] == pods)
        app.apply(replicas=1, standby={"replicas": 0})
        app.wait("one pod", lambda: len(app.pods()) == 1)
        app.wait_ready()
    words.wait_exact()
    assert group_settings(admin, app.spec["applicationId"])["streams.num.standby.replicas"].value == "0"


def _lose_a_process(app: Application, words: Words, cluster) -> None:
    """Kill a process: the brokers would wait half an hour for its members, which the operator removes from the group."""
    killed, other = f"{app.name}-0", f"{app.name}-1"
    app.wait("standbys", lambda: all(app.instance(pod)["task_counts"]["standby"] for pod in (killed, other)))
    dead = {thread["member_id"] for thread in app.instance(killed)["threads"]}
    cluster.node.kill_container(status_of_container(app, killed)["containerID"])
    settings = StreamsConfig.of(
        {"application.id": app.spec["applicationId"], "bootstrap.servers": words.bootstrap_servers}
    )
    with GroupAdmin(ClientSettings(settings, "test")) as group:
        app.wait("a group without the dead", lambda: dead.isdisjoint(item.member_id for item in group.members()))
    app.wait_ready()
