"""Brokers that require mutual TLS, reached with certificates that are never written to disk."""

import os
import tempfile
from pathlib import Path

import pytest
from tests.kafka.support import Group
from tests.operator.kafka.certificates import Authority
from tests.operator.kafka.support import count_plan, patient_clusters, streams_app

from millrace.dev._ports import free_ports
from millrace_operator.kafka.client_config import Credentials
from millrace_operator.model import DeleteGroup, RemoveMembers

pytestmark = pytest.mark.broker

HOST = "127.0.0.1"
KAFKA = {
    "tls": {"caSecretRef": {"name": "ca"}, "clientCertSecretRef": {"name": "client"}},
    "auth": {"type": "mtls"},
}


@pytest.fixture(scope="module")
def authority():
    """Give the certificate authority of the brokers and their clients."""
    return Authority()


@pytest.fixture(scope="module")
def brokers(authority):
    """Give a Kafka with a mutual TLS listener in addition to the open one, and the address of the former."""
    from millrace.dev.kafka import EmbeddedKafka

    plain, controller, tls = free_ports(3, HOST)
    with EmbeddedKafka(ports=[plain], config=authority.broker_settings(plain, controller, tls)) as kafka:
        yield kafka, f"{HOST}:{tls}"


@pytest.fixture
def clusters(monkeypatch):
    """Give the object under test."""
    clusters = patient_clusters(monkeypatch)
    yield clusters
    clusters.close()


def credentials(app, authority, client_of):
    """Return the credentials of a client that trusts one authority and is certified by another."""
    certificate, key = client_of.issue("client")
    secrets = {
        "ca": {"ca.crt": authority.pem.encode()},
        "client": {"tls.crt": certificate.encode(), "tls.key": key.encode()},
    }
    return Credentials.of(app.spec, secrets)


def test_certificates_in_memory_reach_the_brokers(clusters, brokers, authority, monkeypatch):
    """Topics and groups are observed and changed over mutual TLS without temporary files."""
    monkeypatch.setattr(tempfile, "mkstemp", lambda *_, **__: pytest.fail("a file was made"))
    kafka, address = brokers
    kafka.create_topics("in", partitions=2)
    plan = count_plan("in", "app")
    app = streams_app(address, kafka=KAFKA)
    mine = credentials(app, authority, authority)
    group = Group(kafka.bootstrap_servers, "in", 2, **{"application.id": "app", "session.timeout.ms": 120_000})
    group.join("app-0", **{"group.instance.id": "app-0"})
    group.settle()
    group.members["app-0"].close(leave_group=False)
    state = clusters.observe(app, mine, plan)
    assert state.error is None
    assert state.topics["in"].partitions == 2
    assert [member.instance_id for member in state.group.members] == ["app-0"]
    clusters.act(app, mine, RemoveMembers(("app-0",), tuple(item.member_id for item in state.group.members)))
    clusters.act(app, mine, DeleteGroup())
    assert clusters.observe(app, mine, plan).group is None


def test_mismatched_certificates_are_reported(clusters, brokers, authority):
    """An untrusted broker certificate and an untrusted client certificate are distinguished."""
    _, address = brokers
    app, other = streams_app(address, kafka=KAFKA), Authority("other")
    untrusted = clusters.observe(app, credentials(app, other, authority))
    assert untrusted.reason == "AuthenticationFailed"
    assert "certificate is not trusted" in untrusted.error
    refused = clusters.observe(app, credentials(app, authority, other))
    assert refused.reason == "AuthenticationFailed"
    assert "PRIVATE KEY" not in refused.error + untrusted.error


def test_text_that_is_not_a_certificate_is_reported(clusters, brokers):
    """The error names the Secret but does not show its content."""
    _, address = brokers
    app = streams_app(address, kafka=KAFKA)
    secrets = {"ca": {"ca.crt": b"c4n4ry"}, "client": {"tls.crt": b"c4n4ry", "tls.key": b"c4n4ry"}}
    state = clusters.observe(app, Credentials.of(app.spec, secrets))
    assert state.reason == "BadConfiguration"
    assert "c4n4ry" not in state.error


def test_keys_do_not_stay_in_memory_files(clusters, brokers, authority):
    """The file that Python's ssl needs exists only for a moment, even if it cannot be read."""
    _, address = brokers
    app = streams_app(address, kafka=KAFKA)
    assert clusters.observe(app, credentials(app, authority, authority)).error is None
    secrets = {"ca": {"ca.crt": authority.pem.encode()}, "client": {"tls.crt": b"c4n4ry", "tls.key": b"c4n4ry"}}
    assert clusters.observe(app, Credentials.of(app.spec, secrets)).reason == "BadConfiguration"
    assert not [link for link in Path("/proc/self/fd").iterdir() if "memfd:millrace" in os.path.realpath(link)]
