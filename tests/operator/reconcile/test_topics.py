"""What verification finds about topics, and what is done about it."""

from dataclasses import replace

import pytest
from tests.operator.reconcile.world import INPUT, SMALL, World, plan

from millrace.manifest import StreamsAppSpec
from millrace.plan.topology_plan import PlannedRepartitionTopic, PlannedSubtopology
from millrace_operator import model
from millrace_operator.children.naming import ACCEPT_LOSS_ANNOTATION
from millrace_operator.model import KafkaState, Topic
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.topics import examine

CHANGELOG = "words-v1-counts-changelog"
GOOD = Topic("id-1", 4, 3, {"cleanup.policy": "compact", "min.insync.replicas": "2", "retention.ms": "604800000"})


def found(changelog=GOOD, *, known=None, accepted=(), spec=None, brokers=3, the_plan=None, topics=None):
    """Return the findings about an application with one changelog."""
    existing = {INPUT: Topic("input", 4, 3), **({} if changelog is None else {CHANGELOG: changelog}), **(topics or {})}
    state = KafkaState(topics=existing, brokers=brokers)
    manifest = StreamsAppSpec.model_validate(SMALL | {"internalTopics": spec or {}})
    return examine(the_plan or plan(), manifest, state, known or {}, frozenset(accepted))


def reasons(topics):
    """Return the reasons of all findings."""
    return [finding.reason for finding in topics.findings]


def test_topics_that_fit():
    """Nothing is found, and the status remembers the id."""
    topics = found()
    assert topics.ready
    assert topics.findings == ()
    assert [(item.name, item.topic_id, item.ok) for item in topics.statuses] == [(CHANGELOG, "id-1", True)]
    assert topics.tasks == 4


def test_a_topic_that_never_was_is_created():
    """A missing changelog without a known id is created, and nothing starts before that."""
    topics = found(None)
    assert topics.create == (CHANGELOG,)
    assert not topics.ready


def test_a_topic_is_not_created_by_verification():
    """With VerifyOnly a missing topic is reported with the settings it needs."""
    topics = found(None, spec={"management": "VerifyOnly"})
    assert topics.create == ()
    assert reasons(topics) == [ConditionReason.INTERNAL_TOPIC_MISSING]
    assert "4 partitions" in topics.findings[0].message
    assert "cleanup.policy=compact" in topics.findings[0].message


def test_more_replicas_than_brokers():
    """Creating a topic is not attempted if it cannot succeed."""
    topics = found(None, spec={"replicationFactor": 5})
    assert topics.create == ()
    assert reasons(topics) == [ConditionReason.TOO_FEW_BROKERS]


@pytest.mark.parametrize("changelog", [None, replace(GOOD, id="id-2")])
def test_a_changelog_that_was_lost_is_not_made_again(changelog):
    """A changelog that is gone, or has another id, is reported; its old id stays remembered."""
    topics = found(changelog, known={CHANGELOG: "id-1"})
    assert topics.create == ()
    assert reasons(topics) == [ConditionReason.CHANGELOG_LOST]
    assert not topics.ready
    assert topics.statuses[0].topic_id == "id-1"
    assert f"{ACCEPT_LOSS_ANNOTATION}=id-1" in topics.findings[0].message


def test_a_loss_that_was_accepted():
    """With the id in the annotation, a lost topic is created and a recreated one is accepted."""
    assert found(None, known={CHANGELOG: "id-1"}, accepted=["id-1"]).create == (CHANGELOG,)
    taken = found(replace(GOOD, id="id-2"), known={CHANGELOG: "id-1"}, accepted=["id-1"])
    assert taken.ready
    assert taken.statuses[0].topic_id == "id-2"


@pytest.mark.parametrize("known", [None, "id-1"])
def test_the_id_of_a_topic_that_does_not_fit(known):
    """Its id is kept only if it was known before: while nothing may start on a topic, its loss does not matter."""
    topics = found(replace(GOOD, partitions=2), known={} if known is None else {CHANGELOG: known})
    assert topics.statuses[0].topic_id == known


@pytest.mark.parametrize(
    ("changelog", "reason", "words"),
    [
        (replace(GOOD, partitions=2), ConditionReason.TOPIC_MISCONFIGURED, "has 2 partitions but needs 4"),
        (replace(GOOD, config={"cleanup.policy": "delete"}), ConditionReason.TOPIC_MISCONFIGURED, "would be removed"),
        (
            replace(GOOD, replication_factor=1),
            ConditionReason.TOPIC_MISCONFIGURED,
            "1 replicas but min.insync.replicas=2: nothing can be written",
        ),
    ],
)
def test_topics_that_do_not_fit(changelog, reason, words):
    """Problems that would lose state or block writes hold everything back."""
    topics = found(changelog)
    assert reasons(topics) == [reason]
    assert words in topics.findings[0].message
    assert not topics.ready
    assert not topics.statuses[0].ok


@pytest.mark.parametrize(
    ("spec", "words"),
    [({"replicationFactor": 5}, "3 replicas, 5 are wanted"), ({"minInsyncReplicas": 1}, "min.insync.replicas=2, 1")],
)
def test_topics_that_differ_are_only_reported(spec, words):
    """Topics that work but differ from the spec hold nothing back."""
    topics = found(spec=spec, brokers=5)
    assert reasons(topics) == [ConditionReason.TOPIC_DIFFERS]
    assert words in topics.findings[0].message
    assert topics.ready


def test_missing_dead_letter_topic_is_reported():
    """Nothing waits for it: brokers may create it on the first write. Once it exists nothing is reported."""
    letters = plan().model_copy(update={"dead_letter_topic": "words-failed"})
    topics = found(the_plan=letters)
    assert reasons(topics) == [ConditionReason.DEAD_LETTER_TOPIC_MISSING]
    assert (
        "The dead letter topic words-failed (processing.deadLetterTopic) does not exist" in topics.findings[0].message
    )
    assert topics.ready
    assert reasons(found(the_plan=letters, topics={"words-failed": Topic("id-9", 1, 3)})) == []


def test_a_dead_letter_topic_that_was_not_asked_for():
    """If the brokers were not asked about it, or may not answer, nothing is reported."""
    letters = plan().model_copy(update={"dead_letter_topic": "words-failed"})
    state = KafkaState(
        topics={INPUT: Topic("input", 4, 3), CHANGELOG: GOOD}, asked=frozenset({INPUT, CHANGELOG}), brokers=3
    )
    topics = examine(letters, StreamsAppSpec.model_validate(SMALL), state, {}, frozenset())
    assert topics is not None
    assert topics.findings == ()


@pytest.mark.parametrize(("kept", "differs"), [("1000", True), ("9000", False), ("-1", False)])
def test_a_retention_that_is_too_short(kept, differs):
    """A windowed store's changelog must keep records for as long as the store does."""
    wanted = plan()
    windowed = (
        wanted.subtopologies[0]
        .changelog_topics[0]
        .model_copy(update={"config": {"cleanup.policy": "compact,delete", "retention.ms": "5000"}})
    )
    subtopology = wanted.subtopologies[0].model_copy(update={"changelog_topics": (windowed,)})
    config = {"cleanup.policy": "delete,compact", "retention.ms": kept}
    topics = found(replace(GOOD, config=config), the_plan=wanted.model_copy(update={"subtopologies": (subtopology,)}))
    assert reasons(topics) == ([ConditionReason.TOPIC_DIFFERS] if differs else [])


def test_a_lost_repartition_topic():
    """Its records in transit are lost with it, which is a separate reason."""
    through = "words-v1-by-word-repartition"
    first = PlannedSubtopology(id=0, source_topics=(INPUT,), sink_topics=(through,))
    second = PlannedSubtopology(
        id=1, source_topics=(through,), repartition_topics=(PlannedRepartitionTopic(name=through, config={}),)
    )
    wanted = plan().model_copy(update={"subtopologies": (first, second)})
    assert found(None, the_plan=wanted).create == (through,)
    lost = found(None, the_plan=wanted, known={through: "id-9"})
    assert reasons(lost) == [ConditionReason.REPARTITION_TOPIC_LOST]
    assert found(None, the_plan=wanted, topics={through: Topic("id-9", 4, 1)}).ready


def test_topics_that_were_not_asked_for_are_not_judged():
    """An answer older than the plan says nothing about the plan's topics."""
    spec = StreamsAppSpec.model_validate(SMALL)
    assert examine(plan(), spec, KafkaState(asked=frozenset({INPUT})), {}, frozenset()) is None


@pytest.fixture
def world():
    """A healthy application."""
    world = World()
    world.run()
    world.log.clear()
    return world


def test_a_missing_input_topic_is_waited_for():
    """Nothing starts before the input topic exists, and everything starts once it does."""
    world = World(topics={})
    world.run(60)
    assert world.condition("TopicsReady") == ("False", "InputTopicMissing")
    assert INPUT in world.message("TopicsReady")
    assert world.pods() == []
    assert not world.done(model.ProvisionTopics)
    world.topics[INPUT] = Topic("input", 4, 1)
    world.run()
    assert world.condition("Ready")[0] == "True"


def test_a_topic_that_was_in_the_way_is_not_missed():
    """A foreign topic with the changelog's name is reported; once it is deleted the changelog is created and work continues."""
    world = World(topics={INPUT: Topic("input", 4, 1), CHANGELOG: replace(GOOD, partitions=3)})
    world.run(60)
    assert world.condition("TopicsReady") == ("False", "TopicMisconfigured")
    assert world.pods() == []
    del world.topics[CHANGELOG]
    world.run(60)
    assert world.condition("Ready")[0] == "True"


def test_a_changelog_deleted_behind_the_back_is_reported(world):
    """The running pods are left alone, nothing is recreated, and Stalled and TopicsReady give the remedy."""
    del world.topics[CHANGELOG]
    world.run()
    assert world.condition("TopicsReady") == ("False", "ChangelogLost")
    assert world.condition("Stalled") == ("True", "TopicsUnfit")
    assert world.log == []
    assert len(world.pods()) == 1
    lost = world.status.internal_topics[0].topic_id
    world.annotations[ACCEPT_LOSS_ANNOTATION] = f"other, {lost}"
    world.run()
    assert world.condition("TopicsReady") == ("True", "TopicsFit")
    assert world.status.internal_topics[0].topic_id not in {lost, None}


def test_an_accepted_loss_accepts_no_other(world):
    """The annotation stays on the resource but does not cover the next loss."""
    world.annotations[ACCEPT_LOSS_ANNOTATION] = world.status.internal_topics[0].topic_id
    del world.topics[CHANGELOG]
    world.run()
    assert CHANGELOG in world.topics
    del world.topics[CHANGELOG]
    world.run()
    assert world.condition("TopicsReady") == ("False", "ChangelogLost")


def test_a_reset_forgets_topics():
    """A reset clears the ids in the status, so topics are created again when the application starts."""
    world = World()
    world.run()
    world.change(state="suspended")
    world.run()
    world.status = world.status.model_copy(update={"internal_topics": (), "stable_revision": None})
    del world.topics[CHANGELOG]
    world.run()
    assert CHANGELOG not in world.topics
    assert world.condition("Stalled")[0] == "False"
    world.change(state="running")
    world.run()
    assert CHANGELOG in world.topics
    assert world.condition("Ready")[0] == "True"


def test_internal_topics_get_the_wanted_replication():
    """The action carries spec.internalTopics.replicationFactor."""
    world = World()
    world.change(internalTopics={"replicationFactor": 3})
    world.run()
    assert world.topics[CHANGELOG].replication_factor == 3


@pytest.mark.parametrize(
    "reason", ["Unreachable", "AuthenticationFailed", "NotAuthorized", "BadConfiguration", "SecretMissing"]
)
def test_reason_why_brokers_cannot_be_asked_is_reported(world, reason):
    """BrokersReachable has the reason and message of the Kafka observation."""
    world.brokers_up = False
    world.kafka_reason = reason
    world.run(10)
    assert world.condition("BrokersReachable") == ("False", reason)
    assert world.condition("TopicsReady")[0] == "Unknown"
    assert world.log == []


def test_brokers_that_were_not_asked_yet_change_no_condition(world):
    """After an operator restart, the known state stays until there is an answer."""
    before = world.status
    world.brokers_up = False
    world.kafka_reason = "Unknown"
    world.pass_over()
    assert world.status.conditions == before.conditions
