"""The runtime image counts words in a pod, without the operator."""

from __future__ import annotations

import json

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from tests.waiting import wait_until

from e2e.support.application import KUBECTL_PATIENCE, PATIENCE_S

_LINES = ["to be or not to be", "that is the question", "to sleep to dream"]
_COUNTS = {"to": 4, "be": 2, "or": 1, "not": 1, "that": 1, "is": 1, "the": 1, "question": 1, "sleep": 1, "dream": 1}


@pytest.fixture
def topics(topic_factory):
    """Create the word count's topics."""
    return {"input": topic_factory("lines", partitions=2), "output": topic_factory("counts", partitions=2)}


def _manifest(name, namespace, image, kafka, topics):
    return {
        "apiVersion": "streams.millrace.dev/v1alpha1",
        "kind": "StreamsApp",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "applicationId": f"{name}-{namespace}",
            "image": image,
            "app": {"entrypoint": "wordcount:topology", "config": topics},
            "replicas": 1,
            "kafka": {"bootstrapServers": [kafka.bootstrap_servers]},
            "processing": {"guarantee": "exactly_once_v2", "commitInterval": "200ms"},
            "storage": {"size": "1Gi"},
        },
    }


def _objects(name, manifest):
    labels = {"app": name}
    probe = {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 1}
    command = ["run", "-f", "/etc/millrace/app/streamsapp.yaml", "--replica", "0"]
    container = {
        "name": "main",
        "image": manifest["spec"]["image"],
        "args": [*command, "--state-dir", "/var/lib/millrace", "--http", "0.0.0.0:8080"],
        "readinessProbe": probe,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "app", "mountPath": "/etc/millrace/app"},
            {"name": "state", "mountPath": "/var/lib/millrace"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "app", "configMap": {"name": name}}, {"name": "tmp", "emptyDir": {}}],
    }
    stateful_set = {
        "serviceName": name,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
        "volumeClaimTemplates": [{"metadata": {"name": "state"}, "spec": claim}],
    }
    metadata = {"name": name, "namespace": manifest["metadata"]["namespace"]}
    return (
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"streamsapp.yaml": yaml.safe_dump(manifest)},
        },
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": stateful_set},
    )


def _produce(kafka, topic):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, line in enumerate(_LINES):
        producer.produce(topic, value=line, key=str(number))
    assert producer.flush(60) == 0


def _final_counts(kafka, topic):
    """Return the last count of each word, as soon as they are as expected."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    counts = {}
    consumer = Consumer(settings)
    consumer.subscribe([topic])

    def look():
        for message in consumer.consume(100, timeout=0.5):
            assert message.error() is None
            counts[message.key().decode()] = int.from_bytes(message.value(), "big")
        return counts == _COUNTS

    try:
        wait_until(look, lambda: f"the counts. {json.dumps(counts)}", PATIENCE_S, poll_s=0)
    finally:
        consumer.close()


def test_word_count_runs_in_a_pod(cluster, images, kafka, namespaces, topics):
    """A pod with the runtime image becomes ready under Restricted rules, counts exactly, and ends cleanly when told to."""
    namespace = namespaces(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    cluster.apply(*_objects("wordcount", _manifest("wordcount", namespace, images.apps, kafka, topics)))
    _produce(kafka, topics["input"])

    cluster.kubectl("rollout", "status", "statefulset/wordcount", "-n", namespace, KUBECTL_PATIENCE)
    _final_counts(kafka, topics["output"])

    cluster.kubectl("scale", "statefulset/wordcount", "-n", namespace, "--replicas=0")
    log = cluster.kubectl("logs", "wordcount-0", "-n", namespace, "--follow", check=False)
    assert "Traceback" not in log
    cluster.kubectl("wait", "--for=delete", "pod/wordcount-0", "-n", namespace, KUBECTL_PATIENCE)


def test_operator_installs_from_its_chart(cluster, operator):
    """Helm installs the operator from the image built here, its pod becomes ready, and `helm test` passes."""
    assert "streamsapps" in cluster.kubectl("get", "crd", "-o", "name")
    operator.helm("test", operator.name, KUBECTL_PATIENCE)
