"""What is read from Secrets, and what is reported if it is missing."""

import pytest
from tests.operator.kafka.support import streams_app

from millrace.manifest.kafka import Kafka
from millrace_operator.kafka.client_config import Credentials, client_config, client_settings, needed_secrets

CANARY = b"c4n4ry-s3cret"
SCRAM = {"auth": {"type": "scram-sha-512", "secretRef": {"name": "user"}}}
TLS = {"caSecretRef": {"name": "ca"}, "clientCertSecretRef": {"name": "user", "keys": {"tls.crt": "user.crt"}}}


def spec(**kafka):
    """Return the spec of an application with this way of reaching its brokers."""
    return streams_app(kafka=kafka).spec


@pytest.mark.parametrize(
    ("kafka", "names"),
    [
        ({}, ()),
        ({"tls": {}}, ()),
        (SCRAM, ("user",)),
        ({"tls": TLS, "auth": {"type": "mtls"}}, ("ca", "user")),
        ({"tls": TLS, **SCRAM}, ("user", "ca")),
        ({"schemaRegistry": {"url": "http://registry:8081", "secretRef": {"name": "registry"}}}, ()),
    ],
)
def test_secrets_that_reach_the_brokers_are_needed(kafka, names):
    """Each Secret of `tls` and `auth` is named once; others concern only the pods."""
    assert needed_secrets(spec(**kafka)) == names


def test_keys_become_settings_in_memory():
    """Each key becomes a setting with the value itself; keys may be renamed, and a trailing line feed is dropped."""
    secrets = {
        "ca": {"ca.crt": b"CA"},
        "user": {"user.crt": b"CERT", "tls.key": b"KEY", "username": b"me", "password": CANARY + b"\n"},
    }
    credentials = Credentials.of(spec(tls=TLS, **SCRAM), secrets)
    assert credentials.problem is None
    assert dict(credentials.settings) == {
        "ssl.ca.pem": "CA",
        "ssl.certificate.pem": "CERT",
        "ssl.key.pem": "KEY",
        "sasl.username": "me",
        "sasl.password": CANARY.decode(),
    }


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "Secret user of spec.kafka.auth.secretRef does not exist: create it with the key password"),
        ({"username": b"me"}, "Secret user of spec.kafka.auth.secretRef has no key password"),
        ({"username": b"me", "password": b""}, "has no key password"),
        ({"username": b"\xff", "password": CANARY}, "holds no text under the key username"),
    ],
)
def test_what_is_missing_is_named(data, told):
    """A missing Secret or key is reported with the field that needs it, and nothing incomplete is used."""
    credentials = Credentials.of(spec(**SCRAM), {"user": data})
    assert told in credentials.problem
    assert not credentials.settings


def test_printing_credentials_shows_no_secret():
    """Neither the credentials nor their settings show a value, however they are printed."""
    credentials = Credentials.of(spec(**SCRAM), {"user": {"username": b"me", "password": CANARY}})
    assert CANARY.decode() not in f"{credentials} {credentials!r} {credentials.settings} {credentials.settings!r}"


JAAS = b'org.apache.kafka.common.security.scram.ScramLoginModule required username="prefixed" password="c4n4ry-s3cret";'


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        ({"password": CANARY}, {"sasl.username": "user", "sasl.password": CANARY.decode()}),
        (
            {"password": CANARY, "sasl.jaas.config": JAAS},
            {"sasl.password": CANARY.decode(), "sasl.jaas.config": JAAS.decode()},
        ),
        (
            {"password": CANARY, "username": b"me", "sasl.jaas.config": JAAS},
            {"sasl.username": "me", "sasl.password": CANARY.decode()},
        ),
    ],
)
def test_a_kafka_users_secret_serves_as_it_is(data, settings):
    """A Strimzi KafkaUser Secret has no user name: it comes from the login entry, or else from the Secret's own name."""
    assert dict(Credentials.of(spec(**SCRAM), {"user": data}).settings) == settings


def test_a_kafka_users_certificate_serves_as_it_is():
    """Strimzi's names for certificate and key are found; cert-manager's take precedence, and `keys` over both."""
    theirs = {"user.crt": b"CERT", "user.key": b"KEY", "user.p12": b"\xff", "user.password": CANARY, "ca.crt": b"CA"}
    tls = {"clientCertSecretRef": {"name": "user"}}
    found = Credentials.of(spec(tls=tls, auth={"type": "mtls"}), {"user": theirs})
    assert dict(found.settings) == {"ssl.certificate.pem": "CERT", "ssl.key.pem": "KEY"}
    both = theirs | {"tls.crt": b"OTHER", "tls.key": b"OTHER KEY"}
    found = Credentials.of(spec(tls=tls, auth={"type": "mtls"}), {"user": both})
    assert found.settings["ssl.certificate.pem"] == "OTHER"
    tls["clientCertSecretRef"]["keys"] = {"tls.crt": "user.crt", "tls.key": "user.key"}
    found = Credentials.of(spec(tls=tls, auth={"type": "mtls"}), {"user": both})
    assert found.settings["ssl.certificate.pem"] == "CERT"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"ca.crt": b"CA"}, "has neither the keys tls.crt and tls.key nor user.crt and user.key: add them"),
        ({"user.crt": b"CERT"}, "has no key user.key: add it"),
        ({"tls.key": b"KEY"}, "has no key tls.crt: add it"),
        (None, "does not exist: create it with the keys tls.crt and tls.key"),
    ],
)
def test_missing_certificate_is_reported_with_the_accepted_keys(data, told):
    """If both pairs are missing, both are named; if one is incomplete, its missing part is."""
    tls = {"clientCertSecretRef": {"name": "user"}}
    problem = Credentials.of(spec(tls=tls, auth={"type": "mtls"}), {"user": data}).problem
    assert problem.startswith(f"Secret user of spec.kafka.tls.clientCertSecretRef {told}")


BINDING = {
    "type": b"kafka",
    "bootstrapServers": b"a:9093,b:9093\n",
    "securityProtocol": b"SASL_SSL",
    "saslMechanism": b"SCRAM-SHA-512",
    "username": b"me",
    "password": CANARY,
    "ca.crt": b"CA",
}


def bound():
    """Return an application whose broker addresses are in a Secret."""
    app = streams_app()
    kafka = Kafka.model_validate({"bindingSecretRef": {"name": "binding"}})
    return app.model_copy(update={"spec": app.spec.model_copy(update={"kafka": kafka})})


def test_a_binding_leads_to_the_brokers():
    """The operator reads the same Secret as the pods, and connects to the same brokers."""
    app = bound()
    assert needed_secrets(app.spec) == ("binding",)
    credentials = Credentials.of(app.spec, {"binding": BINDING})
    settings = client_settings(client_config(app, credentials)).admin()
    assert settings["bootstrap.servers"] == "a:9093,b:9093"
    assert settings["security.protocol"] == "SASL_SSL"
    assert (settings["sasl.mechanism"], settings["sasl.username"]) == ("SCRAM-SHA-512", "me")
    assert (settings["sasl.password"], settings["ssl.ca.pem"]) == (CANARY.decode(), "CA")
    assert CANARY.decode() not in repr(credentials)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "Secret binding of spec.kafka.bindingSecretRef does not exist"),
        ({**BINDING, "securityProtocol": b"x"}, "has 'x' under the key securityProtocol, which must be one of"),
        ({"password": CANARY}, "has no key bootstrap-servers"),
    ],
)
def test_missing_keys_of_a_binding_are_reported(data, told):
    """A Secret that is missing or incomplete is reported by name."""
    assert told in Credentials.of(bound().spec, {"binding": data}).problem
