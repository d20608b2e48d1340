"""Plans: what a topology needs, as data."""

from __future__ import annotations

import json

from millrace.config import StreamsConfig
from millrace.dsl import Consumed, Materialized, StreamsBuilder, TimeWindows
from millrace.plan.topology_plan import TopologyPlan
from millrace.serdes import Serdes


def counts(materialized="counts", **settings):
    """Return the plan of a count by value."""
    builder = StreamsBuilder()
    words = builder.stream("in", Consumed.with_(Serdes.string(), Serdes.string()))
    words.group_by(lambda _key, value: value).count(materialized).to_stream().to("out")
    config = StreamsConfig.of({"application.id": "app", **settings})
    return builder.build(config).build(config).plan()


def test_plan_lists_topics_and_stores_per_subtopology():
    """The repartition topic is written by the first sub-topology and belongs to the second."""
    first, second = counts().subtopologies
    assert first.source_topics == ("in",)
    assert first.sink_topics == ("app-counts-repartition",)
    assert second.repartition_topics[0].config["retention.ms"] == "-1"
    assert second.changelog_topics[0].name == "app-counts-changelog"
    assert second.changelog_topics[0].config["cleanup.policy"] == "compact"
    (store,) = second.stores
    assert (store.name, store.kind, store.value_format, store.persistent) == (
        "counts",
        "key-value",
        "timestamped",
        True,
    )


def test_plan_survives_json():
    """JSON has camelCase names and gives the same plan back."""
    plan = counts()
    assert TopologyPlan.from_json(plan.to_json()) == plan
    assert "applicationId" in json.loads(plan.to_json())


def test_hash_changes_with_what_state_depends_on():
    """Another store or format changes the hash; another topic setting does not."""
    base = counts().hash
    assert counts("other").hash != base
    assert counts(**{"dsl.store.format": "headers"}).hash != base
    assert counts(**{"topic.segment.ms": "60000"}).hash == base


def test_dead_letter_topic_is_in_the_plan_and_not_in_the_hash():
    """No state depends on it: plans made before it existed, and without it, stay the same."""
    base, with_letters = counts(), counts(**{"errors.dead.letter.queue.topic.name": "failed"})
    assert with_letters.dead_letter_topic == "failed"
    assert with_letters.hash == base.hash
    assert json.loads(with_letters.to_json())["deadLetterTopic"] == "failed"
    assert "deadLetterTopic" not in json.loads(base.to_json())
    assert TopologyPlan.from_json(with_letters.to_json()) == with_letters


def test_topic_settings_go_from_library_to_application_to_store():
    """A store's own settings win over the application's, which win over the library's."""
    plan = counts(Materialized.as_("counts").with_logging_enabled({"segment.ms": "1"}), **{"topic.segment.ms": "2"})
    assert plan.subtopologies[1].changelog_topics[0].config["segment.ms"] == "1"
    assert plan.subtopologies[1].repartition_topics[0].config["segment.ms"] == "2"


def test_window_changelogs_keep_what_late_records_can_change():
    """Retention is the windows' size and grace plus a day or what is set, whatever the application's retention setting."""
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_and_grace(1000, 500)
    builder.stream("in").group_by_key().windowed_by(windows).count("w")
    config = StreamsConfig.of({"application.id": "app", "topic.retention.ms": "5"})
    (subtopology,) = builder.build(config).build(config).plan().subtopologies
    assert subtopology.changelog_topics[0].config["retention.ms"] == str(1500 + 86_400_000)
    assert subtopology.changelog_topics[0].config["cleanup.policy"] == "compact,delete"
    config = StreamsConfig.of({"application.id": "app", "windowstore.changelog.additional.retention.ms": 7})
    (subtopology,) = builder.build(config).build(config).plan().subtopologies
    assert subtopology.changelog_topics[0].config["retention.ms"] == "1507"
