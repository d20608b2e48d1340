"""What of a manifest the operator's own clients take over, and what they must not."""

import pytest
from tests.operator.kafka.support import streams_app

from millrace.errors import ConfigError
from millrace_operator.kafka import Credentials
from millrace_operator.kafka.settings import client_config, client_settings


def admin_settings(app, credentials=None):
    """Return the settings of librdkafka's admin client."""
    return client_settings(client_config(app, credentials or Credentials())).admin()


def test_security_is_that_of_the_manifest():
    """TLS and SASL are as in pods, with the values themselves in place of files."""
    app = streams_app(
        "a:1,b:2",
        kafka={
            "tls": {"caSecretRef": {"name": "ca"}},
            "auth": {"type": "scram-sha-512", "secretRef": {"name": "user"}},
        },
    )
    data = {"ca": {"ca.crt": b"CA"}, "user": {"username": b"me", "password": b"pw"}}
    settings = admin_settings(app, Credentials.of(app.spec, data))
    expected = {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "pw",
        "ssl.ca.pem": "CA",
        "ssl.endpoint.identification.algorithm": "https",
    }
    assert {key: settings[key] for key in expected} == expected


def test_mutual_tls_has_no_sasl():
    """`mtls` is TLS with the client's certificate."""
    tls = {"caSecretRef": {"name": "ca"}, "clientCertSecretRef": {"name": "cert"}}
    app = streams_app(kafka={"tls": tls, "auth": {"type": "mtls"}})
    data = {"ca": {"ca.crt": b"CA"}, "cert": {"tls.crt": b"CERT", "tls.key": b"KEY"}}
    settings = admin_settings(app, Credentials.of(app.spec, data))
    assert settings["security.protocol"] == "SSL"
    assert (settings["ssl.certificate.pem"], settings["ssl.key.pem"]) == ("CERT", "KEY")


@pytest.mark.parametrize(
    "key",
    [
        "ssl.ca.location",
        "ssl.key.location",
        "admin.ssl.engine.location",
        "ssl.providers",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.assertion.file",
        "sasl.kerberos.keytab",
        "sasl.username",
    ],
)
def test_what_leads_to_files_and_addresses_is_refused(key):
    """The operator reads no file and asks no address because a manifest names it; the message says what to use."""
    with pytest.raises(ConfigError, match=f"{key}.*spec.kafka.tls and spec.kafka.auth"):
        client_config(streams_app(kafka={"config": {"security.protocol": "SSL", key: "/etc/passwd"}}), Credentials())


@pytest.mark.parametrize("key", ["plugin.library.paths", "consumer.ssl.ca.location", "linger.ms", "admin.debug"])
def test_other_settings_are_the_pods_business(key):
    """Settings that are not about reaching the brokers, or of other clients, do not reach the operator's."""
    config = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none", key: "1"}
    settings = admin_settings(streams_app(kafka={"config": config}))
    assert "1" not in settings.values()
    assert settings["security.protocol"] == "SSL"
    assert settings["ssl.endpoint.identification.algorithm"] == "none"


def test_sasl_without_credentials_is_refused():
    """A protocol that asks for credentials, without any, is told before anything is tried."""
    with pytest.raises(ConfigError, match=r"name their Secret in spec.kafka.auth"):
        client_config(streams_app(kafka={"config": {"security.protocol": "SASL_SSL"}}), Credentials())


def test_values_of_secrets_are_never_references(tmp_path):
    """A secret that is written like a reference to a file stays what it is: the file is not read."""
    (tmp_path / "token").write_text("the operator's own")
    reference = f"${{directory:{tmp_path}:token}}"
    app = streams_app(kafka={"auth": {"type": "plain", "secretRef": {"name": "user"}}})
    credentials = Credentials.of(app.spec, {"user": {"username": b"me", "password": reference.encode()}})
    settings = client_settings(client_config(app, credentials))
    assert settings.admin()["sasl.password"] == reference
    assert settings.kafka_python()["sasl_plain_password"] == reference
