"""Applications and plans for tests of what the operator does with Kafka."""

import secrets

from millrace.manifest import StreamsApp
from millrace.plan.topology_plan import PlannedChangelogTopic, PlannedRepartitionTopic, PlannedSubtopology, TopologyPlan
from millrace_operator.kafka.clusters import KafkaClusters
from millrace_operator.kafka.connections import AdminConnection, Connections


def streams_app(bootstrap_servers="127.0.0.1:9092", application_id="app", *, uid="u-1", kafka=None, **spec):
    """Return a StreamsApp; further arguments are fields of the spec, camelCase."""
    return StreamsApp.model_validate(
        {
            "apiVersion": "streams.millrace.dev/v1alpha1",
            "kind": "StreamsApp",
            "metadata": {"name": application_id, "namespace": "default", "uid": uid},
            "spec": {
                "applicationId": application_id,
                "image": "registry.example/app:1",
                "app": {"entrypoint": "app:topology"},
                "kafka": {"bootstrapServers": bootstrap_servers.split(","), **(kafka or {})},
                **spec,
            },
        }
    )


def patient_clusters(monkeypatch, allowed=None):
    """Return clients with longer timeouts than the operator's, for tests of what brokers say."""
    monkeypatch.setattr("millrace_operator.kafka.clusters.LOOK_TIMEOUT_S", 60.0)
    monkeypatch.setattr("millrace_operator.kafka.clusters._ALL_LOOKS_S", 60.0)
    return KafkaClusters(allowed, Connections(lambda config: AdminConnection(config, 60.0)))


def count_plan(source, application_id=None, *, config=None):
    """Return the plan of a count by another key: a repartition topic and a changelog."""
    app = application_id or f"app-{secrets.token_hex(4)}"
    return TopologyPlan(
        application_id=app,
        hash="",
        subtopologies=(
            PlannedSubtopology(id=0, source_topics=(source,), sink_topics=(f"{app}-c-repartition",)),
            PlannedSubtopology(
                id=1,
                source_topics=(f"{app}-c-repartition",),
                repartition_topics=(
                    PlannedRepartitionTopic(
                        name=f"{app}-c-repartition", config={"cleanup.policy": "delete", "retention.ms": "-1"}
                    ),
                ),
                changelog_topics=(
                    PlannedChangelogTopic(
                        name=f"{app}-c-changelog",
                        config={"cleanup.policy": "compact", "segment.bytes": "52428800", **(config or {})},
                    ),
                ),
            ),
        ),
    )
