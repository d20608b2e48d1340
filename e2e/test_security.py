"""Credentials, from the Secret to brokers that require authentication."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster import Cluster
from e2e.cluster.pki import Authority
from e2e.helm import Release
from e2e.support.application import Application
from e2e.support.secured_kafka import SESSION_S, SecuredKafka, secured_kafka
from e2e.support.word_count import Words

LOGIN = "login"


@pytest.fixture(scope="module")
def secured(cluster: Cluster) -> Iterator[SecuredKafka]:
    """Return a Kafka for these tests, which requires passwords and certificates."""
    with secured_kafka(cluster.host_address) as kafka:
        yield kafka


@pytest.fixture
def words(secured: SecuredKafka) -> Words:
    """Return topics for this test."""
    return Words(secured.kafka.bootstrap_servers, f"e2e-{secrets.token_hex(3)}")


@pytest.fixture
def user(secured: SecuredKafka) -> tuple[str, str]:
    """Return the name of a user that the brokers know, and the password."""
    name, password = f"user-{secrets.token_hex(3)}", f"canary-{secrets.token_hex(12)}"
    secured.set_password(name, password)
    return name, password


def with_password(address: str, **tls: str) -> dict[str, Any]:
    """Return `spec.kafka` of an application with a password; `ca="trusted"` names the Secret with the CA certificate."""
    kafka = {"bootstrapServers": [address], "auth": {"type": "scram-sha-512", "secretRef": {"name": LOGIN}}}
    return kafka | ({"tls": {"caSecretRef": {"name": tls["ca"]}}} if tls else {})


def give(app: Application, name: str, **values: str) -> None:
    """Create or update a Secret; server-side apply leaves no copy of it in an annotation."""
    data = {key.replace("_", "."): base64.b64encode(value.encode()).decode() for key, value in values.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
    app.kubectl("apply", "--server-side", "--filename", "-", stdin=json.dumps(secret))


def incarnations(app: Application) -> dict[str, int]:
    """Return how often the container of each pod was restarted, by the pod's uid."""
    return {pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in app.pods()}


def test_passwords_are_never_shown_and_may_change(word_count, operator: Release, secured, words, user) -> None:
    """A password appears in no object, Event, log, page, process or readable file; a new one is used without a restart.

    The plan fails at first, because only then is the log of a plan Job kept and copied to the status. Session and transaction
    timeouts are long, for busy machines: brokers fence a producer whose transaction is open for too long, by default
    10 s, and its thread then rejoins the group, whatever the password.
    """
    name, old = user
    new = f"canary-{secrets.token_hex(12)}"
    app: Application = word_count(
        words,
        replicas=2,
        kafka=with_password(secured.scram) | {"config": {"producer.transaction.timeout.ms": 300_000}},
        membership={"sessionTimeout": "5m"},
        observability={"metrics": {"podMonitor": {"enabled": True}}},
        deletionPolicy="Purge",
    )
    program = app.spec["app"]["entrypoint"]
    give(app, LOGIN, username=name, password=old)
    app.apply(app={"entrypoint": "versions:unplannable"})
    app.wait_for("Stalled", "True", "PlanFailed")
    failed = readable(app, operator)
    assert re.search(r"log of counts-[0-9a-f]{10}-", failed)
    app.apply(app={"entrypoint": program})
    app.wait_ready()
    words.write()
    words.wait_exact()
    before, generation = incarnations(app), app.instance("counts-0")["group"]["generation"]

    secured.set_password(name, new)
    give(app, LOGIN, username=name, password=new)
    pods = [pod["metadata"]["name"] for pod in app.pods()]
    handed_out = "use them from their next authentication on"
    app.wait("the password to reach the pods", lambda: all(handed_out in app.kubectl("logs", pod) for pod in pods))
    changed = {pod: app.instance(pod)["time_ms"] for pod in pods}
    words.write()
    words.wait_exact()
    app.wait(
        "the brokers to have asked all clients again, twice",
        lambda: all(app.instance(pod)["time_ms"] - changed[pod] > 2_000 * SESSION_S for pod in pods),
    )
    words.write()
    words.wait_exact()
    app.wait_ready()
    assert incarnations(app) == before
    assert app.instance("counts-0")["group"]["generation"] == generation

    seen = failed + readable(app, operator)
    inside = "".join(app.kubectl("exec", pod, "--", "python3", "-c", LOOK_AROUND) for pod in pods)
    assert f"applicationId: {app.spec['applicationId']}" in seen
    assert sum(processed(app, pod) for pod in pods) > 0
    assert "millrace_operator_reconcile_seconds" in seen
    assert "POD_NAME=counts-0" in inside
    assert "--secrets-dir" in inside
    for password in (old, new):
        assert found_in(seen + inside, password) == []
    assert found_in(app.kubectl("get", "secret", LOGIN, "--output=yaml"), new), "the search finds nothing at all"
    app.delete()  # with its topics in Kafka, for which the operator needs the new password
    app.wait("no claims", lambda: not app.objects("pvc"))
    left = [topic for topic in words.topics() if topic.startswith(app.spec["applicationId"])]
    assert left == []


LOOK_AROUND = """
import pathlib
files = [file for kind in ("environ", "cmdline") for file in pathlib.Path("/proc").glob(f"[0-9]*/{kind}")]
files += [file for folder in ("/var/lib/millrace", "/tmp", "/etc/millrace/app") for file in pathlib.Path(folder).rglob("*")]
for file in files:
    try:
        print(file, file.read_bytes().decode("latin-1").replace("\\0", "\\n"))
    except OSError:
        pass
"""
"""Everything readable in a container except the Secret's files: environments, command lines, the volume's files."""


def found_in(text: str, password: str) -> list[str]:
    """Return the text around a password, plain and in base64 as in the API."""
    encoded = base64.b64encode(password.encode()).decode()
    return [text[max(0, match.start() - 200) : match.end()] for match in re.finditer(f"{password}|{encoded}", text)]


def readable(app: Application, operator: Release) -> str:
    """Return everything readable of an app, and of the operator, without permission to read Secrets."""
    listed = app.cluster.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    kinds = ",".join(kind for kind in listed if kind != "secrets")
    parts = [app.kubectl("get", kinds, "--output=yaml", "--show-managed-fields")]
    for pod in app.objects("pods"):
        name = pod["metadata"]["name"]
        parts.append(f"log of {name}\n{app.kubectl('logs', name)}")
        if pod in app.pods():
            parts += [page(app.cluster, app.namespace, name, path) for path in ("/status", "/metrics", "/readyz")]
    own = ("--namespace", operator.namespace)
    selector = "--selector=app.kubernetes.io/name=millrace-operator"
    for pod in app.cluster.kubectl("get", "pods", *own, selector, "--output=name").split():
        parts.append(app.cluster.kubectl("logs", *own, pod))
        parts.append(page(app.cluster, operator.namespace, pod.removeprefix("pod/"), "/metrics"))
    parts.append(app.cluster.kubectl("get", "all,configmaps,events,leases", *own, "--output=yaml"))
    parts.append(operator.helm("get", "all", operator.name))
    return "\n".join(parts)


def processed(app: Application, pod: str) -> float:
    """Return how many records a pod reports to Prometheus as processed."""
    families = text_string_to_metric_families(page(app.cluster, app.namespace, pod, "/metrics"))
    name = "org_apache_kafka_stream_thread_process_total"
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def page(cluster: Cluster, namespace: str, pod: str, path: str) -> str:
    """Return a page that a pod serves."""
    return cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:8080/proxy{path}")


@pytest.mark.thorough
def test_problem_with_a_secret_is_reported_until_fixed(word_count, secured, words, user) -> None:
    """If it is missing, incomplete or has a wrong password, the condition says which Secret and what; fixed, it recovers."""
    name, password = user
    app: Application = word_count(words, kafka=with_password(secured.scram_over_tls, ca="trusted"))
    app.apply()
    told_of(app, "SecretMissing", f"Secret {LOGIN} of spec.kafka.auth.secretRef does not exist", "Secret trusted")
    give(app, "trusted", ca_crt=secured.authority)
    give(app, LOGIN, username=name)
    told_of(app, "SecretMissing", f"Secret {LOGIN} of spec.kafka.auth.secretRef has no key password")
    assert app.pods() == []
    give(app, LOGIN, username=name, password="canary-wrong")
    told_of(app, "AuthenticationFailed", LOGIN)
    give(app, LOGIN, username=name, password=password)
    app.wait_ready()
    words.write()
    words.wait_exact()
    events = " ".join(event["message"] for event in app.events())
    assert "AuthenticationFailed" in {event["reason"] for event in app.events()}
    assert found_in(json.dumps(app.resource()) + events, "canary-wrong") == []


def told_of(app: Application, reason: str, *words: str) -> None:
    """Wait until the condition has a reason, and a message with these words."""

    def holds() -> bool:
        condition = app.condition("BrokersReachable")
        return condition.get("reason") == reason and all(word in condition["message"] for word in words)

    app.wait(f"BrokersReachable {reason} with {words}", holds)


@pytest.mark.thorough
def test_brokers_and_application_authenticate_with_certificates(word_count, secured, words, tmp_path) -> None:
    """Brokers signed by another authority are not trusted, and the status says so; with the right one, mutual TLS works.

    Clients read certificates only once: for a new one the operator restarts the pod.
    """
    tls = {"caSecretRef": {"name": "trusted"}, "clientCertSecretRef": {"name": "identity"}}
    kafka = {"bootstrapServers": [secured.mutual_tls], "tls": tls, "auth": {"type": "mtls"}}
    app: Application = word_count(words, kafka=kafka, upgrade={"gate": {"minStable": "1s"}})
    Authority(tmp_path)
    certificate, key = secured.identity("first")
    give(app, "identity", tls_crt=certificate, tls_key=key)
    give(app, "trusted", ca_crt=(tmp_path / "ca.crt").read_text())
    app.apply()
    told_of(app, "AuthenticationFailed", "certificate is not trusted")
    assert app.pods() == []
    give(app, "trusted", ca_crt=secured.authority)
    app.wait_ready()
    words.write()
    words.wait_exact()
    before = {pod["metadata"]["uid"] for pod in app.pods()}
    certificate, key = secured.identity("second")
    give(app, "identity", tls_crt=certificate, tls_key=key)
    app.wait(
        "the pod to be restarted",
        lambda: app.pods() and not before & {pod["metadata"]["uid"] for pod in app.pods()},
    )
    app.wait_ready()
    words.write()
    words.wait_exact()
    assert "RollingOut" in {event["reason"] for event in app.events()}
    assert "PRIVATE KEY" not in app.kubectl("logs", "counts-0") + json.dumps(app.resource())
