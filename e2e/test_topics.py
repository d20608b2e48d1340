"""Internal topics on a real Kafka: created before pods start, checked afterwards, and never silently recreated."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from tests.waiting import wait_until

from e2e.support.application import PATIENCE_S, Application
from e2e.support.word_count import Words


def changelog(app: Application) -> str:
    """Return the name of the changelog of the counts."""
    return f"{app.spec['applicationId']}-counts-changelog"


def create(admin: AdminClient, name: str, partitions: int, **config: str) -> None:
    """Create a topic as somebody else would."""
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)


def delete(admin: AdminClient, name: str) -> None:
    """Delete a topic behind the application's back."""
    admin.delete_topics([name])[name].result(30)
    wait_until(lambda: name not in admin.list_topics(timeout=30).topics, "the topic to go", PATIENCE_S)


def told(app: Application, reason: str) -> str:
    """Wait until TopicsReady says what is wrong, check that nothing was started, and return its message."""
    app.wait_for("TopicsReady", "False", reason)
    assert app.pods() == []
    return app.condition("TopicsReady")["message"]


@pytest.mark.thorough
def test_wrong_partition_count_is_reported_before_pods_start(word_count, words: Words, admin) -> None:
    """Somebody else's topic is named with its and the required partitions, and left alone; once it is gone, all continues."""
    app: Application = word_count(words, replicas=1)
    create(admin, changelog(app), 3, **{"cleanup.policy": "compact"})
    app.apply()
    message = told(app, "TopicMisconfigured")
    assert f"{changelog(app)} has 3 partitions but needs 4" in message
    app.wait_for("Stalled", reason="TopicsUnfit")
    assert len(admin.list_topics(timeout=30).topics[changelog(app)].partitions) == 3
    delete(admin, changelog(app))
    app.wait_ready()
    assert app.condition("Stalled")["status"] == "False"


@pytest.mark.thorough
def test_replication_factor_below_the_in_sync_minimum_is_reported(word_count, words: Words, admin) -> None:
    """With fewer replicas than min.insync.replicas nothing could ever be written: reported, and the given remedy works."""
    app: Application = word_count(words, replicas=1)
    create(admin, changelog(app), 4, **{"cleanup.policy": "compact", "min.insync.replicas": "2"})
    app.apply()
    message = told(app, "TopicMisconfigured")
    assert f"{changelog(app)} has 1 replicas but min.insync.replicas=2" in message
    entry = ConfigEntry("min.insync.replicas", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, changelog(app), incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    app.wait_ready()


@pytest.mark.thorough
def test_missing_input_topics_are_named(word_count, words: Words, admin) -> None:
    """Input topics belong to the user: without them nothing starts, the condition names them, and later ones are found."""
    app: Application = word_count(words, replicas=1)
    missing = f"{words.input}-other"
    app.apply(app={"config": {"input": missing}})
    assert missing in told(app, "InputTopicMissing")
    create(admin, missing, 2)
    app.wait_ready()
    assert app.status()["topology"]["tasks"] == 4
    delete(admin, missing)


@pytest.mark.thorough
def test_verify_only_creates_nothing(word_count, words: Words, admin, kafka_topics) -> None:
    """`management: VerifyOnly` names what is missing and how to create it; once others have created it, it is used."""
    app: Application = word_count(words, replicas=1, internalTopics={"management": "VerifyOnly"})
    app.apply()
    message = told(app, "InternalTopicMissing")
    lines = [line for line in message.splitlines() if "does not exist" in line]
    assert len(lines) == 2
    assert not [name for name in kafka_topics() if name.startswith(f"{app.spec['applicationId']}-")]
    for line in lines:
        name = line.partition("Internal topic ")[2].partition(" ")[0]
        wanted = line.partition("partitions and ")[2].rstrip(".")
        create(admin, name, 4, **dict(setting.split("=") for setting in wanted.split(", ")))
    app.wait_ready()
    words.write()
    words.wait_exact()


@pytest.mark.thorough
def test_changelog_deleted_while_suspended_is_not_recreated(word_count, words: Words, admin, kafka_topics) -> None:
    """The state's backup is gone: nothing starts until the user accepts the loss; then the state starts empty."""
    app: Application = word_count(words, replicas=1)
    app.apply()
    app.wait_ready()
    words.write()
    words.wait_exact()
    app.apply(state="suspended")
    app.wait("suspended", lambda: app.status().get("lifecycleState") == "Suspended")
    delete(admin, changelog(app))
    app.apply(state="running")
    message = told(app, "ChangelogLost")
    assert changelog(app) in message
    assert changelog(app) not in kafka_topics()
    annotation = message.partition("--overwrite ")[2].split()[0]
    app.kubectl("annotate", "streamsapp", app.name, "--overwrite", annotation)
    app.wait_ready()
    assert changelog(app) in kafka_topics()
    words.written.clear()
    mark = words.mark()
    words.write()
    words.wait_exact(since=mark)


@pytest.mark.thorough
def test_changelog_deleted_under_running_pods_is_not_recreated(word_count, words: Words, admin, kafka_topics) -> None:
    """Neither the operator nor a restarted pod creates it; a reset is a way out, after which everything is counted again."""
    app: Application = word_count(words, replicas=1)
    app.apply()
    app.wait_ready()
    words.write(times=5)
    words.wait_exact()
    delete(admin, changelog(app))
    app.wait_for("TopicsReady", "False", "ChangelogLost")
    uid = app.pods()[0]["metadata"]["uid"]
    app.kubectl("delete", "pod", f"{app.name}-0", "--wait=false")
    app.wait("a new pod that fails", lambda: [1 for pod in app.pods() if pod["metadata"]["uid"] != uid and failed(pod)])
    assert changelog(app) not in kafka_topics()
    app.wait_for("Stalled", reason="TopicsUnfit")
    app.apply(state="suspended")
    app.wait("suspended", lambda: app.status().get("lifecycleState") == "Suspended")
    reset = app.reset("lost")
    app.wait("reset", lambda: reset().get("phase") == "Succeeded")
    mark = words.mark()
    app.apply(state="running")
    app.wait_ready()
    words.wait_exact(since=mark)
    assert changelog(app) in kafka_topics()


def failed(pod: dict) -> bool:
    """Return whether a pod's program has ended with an error."""
    states = [
        item.get(key, {}) for item in pod["status"].get("containerStatuses", ()) for key in ("state", "lastState")
    ]
    return any(state.get("terminated", {}).get("exitCode") for state in states)
