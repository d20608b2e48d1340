"""Which settings of a manifest the operator's own clients use, and which they must not use."""

import pytest
from tests.operator.kafka.support import streams_app

from millrace.errors import ConfigError
from millrace_operator.kafka.client_config import (
    AllowedAccess,
    Credentials,
    TokenEndpointNotAllowedError,
    client_config,
    client_settings,
    is_allowed,
)
from millrace_operator.kafka.clusters import KafkaClusters


def admin_settings(app, credentials=None):
    """Return the settings of librdkafka's admin client."""
    return client_settings(client_config(app, credentials or Credentials())).admin()


def test_security_is_that_of_the_manifest():
    """TLS and SASL are configured as in pods, with values instead of files."""
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
    """The operator reads no file and contacts no address just because a manifest names it; the message says what to use."""
    with pytest.raises(ConfigError, match=f"{key}.*spec.kafka.tls and spec.kafka.auth"):
        client_config(streams_app(kafka={"config": {"security.protocol": "SSL", key: "/etc/passwd"}}), Credentials())


@pytest.mark.parametrize("key", ["plugin.library.paths", "consumer.ssl.ca.location", "linger.ms", "admin.debug"])
def test_other_settings_are_the_pods_business(key):
    """Settings of other clients, or unrelated to reaching the brokers, do not reach the operator's clients."""
    config = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none", key: "1"}
    settings = admin_settings(streams_app(kafka={"config": config}))
    assert "1" not in settings.values()
    assert settings["security.protocol"] == "SSL"
    assert settings["ssl.endpoint.identification.algorithm"] == "none"


def test_sasl_without_credentials_is_refused():
    """A protocol that needs credentials but has none is reported before any connection attempt."""
    with pytest.raises(ConfigError, match=r"name their Secret in spec.kafka.auth"):
        client_config(streams_app(kafka={"config": {"security.protocol": "SASL_SSL"}}), Credentials())


def test_values_of_secrets_are_never_references(tmp_path):
    """A secret that looks like a reference to a file is taken literally: the file is not read."""
    (tmp_path / "token").write_text("the operator's own")
    reference = f"${{directory:{tmp_path}:token}}"
    app = streams_app(kafka={"auth": {"type": "plain", "secretRef": {"name": "user"}}})
    credentials = Credentials.of(app.spec, {"user": {"username": b"me", "password": reference.encode()}})
    settings = client_settings(client_config(app, credentials))
    assert settings.admin()["sasl.password"] == reference
    assert settings.kafka_python()["sasl_plain_password"] == reference


MSK = {"tls": {}, "auth": {"type": "aws-msk-iam", "region": "eu-central-1"}}
SERVERS = "b-1.shop.x1.c2.kafka.eu-central-1.amazonaws.com:9098,b-2.shop.x1.c2.kafka.eu-central-1.amazonaws.com:9098"


@pytest.mark.parametrize(
    "allowed", [(), ("b-1.shop.x1.c2.kafka.eu-central-1.amazonaws.com:9098",), ("*.shop.x1.c2.kafka.*.com:9092",)]
)
def test_operator_identity_is_shown_only_to_allowed_brokers(allowed):
    """The operator does not have the pods' identity; all brokers must be allowed to see its own."""
    with pytest.raises(ConfigError, match=r"may not show its own to b-.*MILLRACE_OPERATOR_CLOUD_IDENTITY"):
        client_config(streams_app(SERVERS, kafka=MSK), Credentials(), AllowedAccess(cloud_identity=allowed))


@pytest.mark.parametrize("auth", [MSK["auth"], {"type": "entra-id"}])
def test_the_operators_identity_is_shown_where_allowed(auth):
    """With all bootstrap servers allowed, the operator gets tokens as pods do, using its own pod's identity."""
    app = streams_app(SERVERS, kafka={"tls": {}, "auth": auth})
    allowed = AllowedAccess(cloud_identity=("*.shop.x1.c2.kafka.eu-central-1.amazonaws.com:9098",))
    config = client_config(app, Credentials(), allowed)
    assert client_settings(config).security("admin.").oauth.method == auth["type"]


def test_tokens_are_fetched_as_the_manifest_says():
    """Scope, extensions and the authority of the endpoint reach the operator's clients, in memory."""
    auth = {
        "type": "oauthbearer",
        "secretRef": {"name": "login"},
        "scope": "kafka",
        "extensions": {"logicalCluster": "lkc-1"},
        "tokenEndpointCaSecretRef": {"name": "ca"},
    }
    app = streams_app(kafka={"auth": auth})
    login = {"clientId": b"id", "clientSecret": b"s", "tokenEndpoint": b"https://login.example/token"}
    credentials = Credentials.of(app.spec, {"login": login, "ca": {"ca.crt": b"CA"}})
    config = client_config(app, credentials, AllowedAccess(["https://login.example"]))
    oauth = client_settings(config).security("admin.").oauth
    assert (oauth.client_id, oauth.client_secret, oauth.token_endpoint) == ("id", "s", "https://login.example/token")
    assert (oauth.scope, oauth.extensions, oauth.ca_pem) == ("kafka", {"logicalCluster": "lkc-1"}, "CA")


ENDPOINT = "https://login.example/realms/team/token"


@pytest.mark.parametrize(
    ("endpoint", "allowed", "is_so"),
    [
        (ENDPOINT, [], False),
        (ENDPOINT, [ENDPOINT], True),
        (ENDPOINT, ["https://other.example", "https://LOGIN.example:443/realms/"], True),
        (ENDPOINT, ["http://login.example"], False),
        ("http://login.example/token", ["https://login.example"], False),
        ("http://login.example/token", ["http://login.example"], True),
        (ENDPOINT, ["https://login.example/realms/te"], False),
        ("https://login.example.evil/realms", ["https://login.example"], False),
        ("https://login.example:8443/realms", ["https://login.example"], False),
        ("https://login.example@10.0.0.1/", ["https://login.example"], False),
        ("https://login.example\\@10.0.0.1/", ["https://login.example"], False),
        ("https://login.example/realms/../admin", ["https://login.example/realms"], False),
        ("https://login.example/realms/%2e%2e/admin", ["https://login.example/realms"], False),
        ("file:///var/run/secrets/token", ["https://login.example"], False),
        ("https://login.example:x/", ["https://login.example:x/"], False),
    ],
)
def test_token_endpoints_are_those_allowed(endpoint, allowed, is_so):
    """A URL must be under one that the platform team allows; no spelling trick gets around that."""
    assert is_allowed(endpoint, allowed) is is_so


def test_a_token_endpoint_that_is_not_allowed_is_not_asked():
    """The endpoint is in a tenant's Secret: nothing is sent there, and the condition tells the platform team what to do."""
    app = streams_app(kafka={"auth": {"type": "oauthbearer", "secretRef": {"name": "oauth"}}})
    asked = "http://169.254.169.254/latest?key=c4n4ry"
    data = {"clientId": b"me", "clientSecret": b"pw", "tokenEndpoint": asked.encode()}
    credentials = Credentials.of(app.spec, {"oauth": data})
    with pytest.raises(TokenEndpointNotAllowedError, match="MILLRACE_OPERATOR_TOKEN_ENDPOINTS") as caught:
        client_config(app, credentials, AllowedAccess([ENDPOINT]))
    assert "c4n4ry" not in str(caught.value)
    state = KafkaClusters(connections=lambda: pytest.fail("connected")).observe(app, credentials)
    assert state.reason == "TokenEndpointNotAllowed"
    assert "169.254.169.254/latest)" in state.error
    assert client_config(app, credentials, AllowedAccess(["http://169.254.169.254/"])).application_id == "app"
