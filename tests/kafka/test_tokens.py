"""SASL/OAUTHBEARER: where tokens come from, how long they are used, and that every client authenticates with them."""

import base64
import logging
import secrets
import urllib.parse

import pytest
from confluent_kafka import TopicPartition as Place
from tests.apart import run_apart
from tests.brokers import new_topic
from tests.kafka.identity_providers import IdentityProvider, jwt
from tests.kafka.support import Group
from tests.operator.kafka.certificates import Authority
from tests.waiting import PATIENCE_S

from millrace.config import StreamsConfig
from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import AuthenticationError, BrokerUnreachableError, ConfigError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin, open_consumer, open_producer
from millrace.kafka.connection_check import check_connection
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.tokens import Token, Tokens

APP = f"app-{secrets.token_hex(4)}"


@pytest.fixture
def provider():
    """Yield a token endpoint."""
    provider = IdentityProvider()
    yield provider
    provider.close()


def oidc(provider, servers="127.0.0.1:9", **others):
    """Return settings of an application with a client secret."""
    return {
        "application.id": APP,
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "orders",
        "sasl.oauthbearer.client.secret": provider.secret if provider else "s",
        "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token" if provider else "https://nowhere.invalid",
        **others,
    }


def of(settings, **how):
    """Return the clients' settings."""
    return ClientSettings(StreamsConfig.of(settings), "test", **how)


def use_every_client(settings, kafka):
    """Produce, consume, administer and join a group, each with its own client."""
    topic = new_topic(kafka)
    clients = of(settings)
    check_connection(clients, PATIENCE_S)
    admin = open_admin(clients.admin())
    assert topic in admin.list_topics(timeout=PATIENCE_S).topics
    producer = open_producer(clients.producer(1))
    producer.produce(topic, b"seen")
    assert producer.flush(PATIENCE_S) == 0
    for given in (clients.main_consumer(1), clients.restore_consumer(1), clients.global_consumer()):
        consumer = open_consumer(given)
        consumer.assign([Place(topic, 0, 0)])
        messages = iter(lambda consumer=consumer: consumer.poll(1.0), object())
        assert next(message for message in messages if message is not None and not message.error()).value() == b"seen"
        consumer.close()
    group = Group(settings["bootstrap.servers"], topic, 1, **settings)
    group.join("a")
    group.settle()
    with GroupAdmin(clients, PATIENCE_S) as groups:
        assert len(groups.of_group(APP, PATIENCE_S).members()) == 1
    return group


@pytest.mark.broker
def test_every_client_authenticates_with_a_token(provider, kafka):
    """The check, admin client, producer, all consumers, member and group administration reach brokers that require tokens."""
    group = use_every_client(oidc(provider, kafka.sasl_bootstrap_servers), kafka)
    group.close()
    assert {path for path, _, _ in provider.requests} == {"/token"}


@pytest.mark.broker
def test_tokens_are_renewed_while_clients_are_open(kafka):
    """All clients have a new token when brokers ask for it because the old one expires, and the member stays in its group.

    They authenticate again every second, which librdkafka may not survive.
    """
    run_apart(renew_tokens, kafka.directory)


def renew_tokens(directory):
    """Do so with the broker that runs in a directory."""
    kafka, provider = EmbeddedKafka.attach(directory), IdentityProvider()
    topic = new_topic(kafka)
    provider.lives_s = 8.0
    settings = oidc(provider, kafka.sasl_bootstrap_servers)
    producer = open_producer(of(settings).producer(1))
    group = Group(settings["bootstrap.servers"], topic, 1, **settings)
    group.join("a")
    group.settle()
    before = len(provider.requests)

    def sends():
        producer.produce(topic, b"x")
        assert producer.flush(PATIENCE_S) == 0
        return len(provider.requests) >= before + 2

    group.until(sends)
    assert group.balanced()
    assert group.rebalances == 1
    group.close()
    provider.close()


@pytest.mark.broker
def test_a_refused_token_is_an_authentication_error(provider, kafka):
    """An expired token is refused, and the error names the token, not a password."""
    provider.answer = lambda *_: (200, f'{{"access_token": "{jwt("orders", -100)}", "expires_in": 60}}')
    with pytest.raises(AuthenticationError, match="does not accept the token"):
        check_connection(of(oidc(provider, kafka.sasl_bootstrap_servers)), PATIENCE_S)


@pytest.mark.broker
def test_workload_identity_reaches_brokers(kafka, monkeypatch, tmp_path):
    """Entra ID's own library exchanges a pod's projected token for one that brokers accept."""
    authority = Authority()
    provider = IdentityProvider(tls=authority.issue("entra"))
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "token").write_text(provider.secret)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", provider.url)
    monkeypatch.setenv("AZURE_TENANT_ID", "0000-tenant")
    monkeypatch.setenv("AZURE_CLIENT_ID", "0000-client")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    settings = {
        key: value for key, value in oidc(None, kafka.sasl_bootstrap_servers).items() if "oauthbearer" not in key
    }
    group = use_every_client(settings | {"sasl.oauthbearer.method": "entra-id"}, kafka)
    group.close()
    path, _, form = provider.requests[0]
    provider.close()
    assert path == "/0000-tenant/oauth2/v2.0/token"
    assert form["client_assertion"] == provider.secret
    assert form["scope"] == "https://127.0.0.1/.default"


AWS = {
    "application.id": "app",
    "bootstrap.servers": "b-1.example.kafka.eu-central-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "aws-msk-iam",
    "sasl.oauthbearer.aws.region": "eu-central-1",
}


def test_web_identity_signs_a_token_for_msk(provider, monkeypatch, tmp_path):
    """AWS's own library exchanges a pod's projected token for credentials, which sign the token for MSK's brokers."""
    (tmp_path / "token").write_text("projected")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", provider.url)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/orders")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    value, _, _, _ = of(AWS).admin()["oauth_cb"]("")
    assert provider.requests[0][2]["WebIdentityToken"] == "projected"
    url = urllib.parse.urlparse(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode())
    query = urllib.parse.parse_qs(url.query)
    assert url.hostname == "kafka.eu-central-1.amazonaws.com"
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Credential"][0].startswith("ASIAFAKE/")
    assert query["X-Amz-Security-Token"] == ["session"]


def test_a_missing_cloud_identity_is_an_error(monkeypatch, tmp_path):
    """Without a cloud identity, the error says what the pod needs."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AuthenticationError, match=r"no AWS identity.*give the pod's ServiceAccount an IAM role"):
        open_admin(of(AWS).admin())


def test_a_library_that_is_not_installed_is_an_error(monkeypatch):
    """The error names the extra that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"install 'millrace-streams\[aws\]'"):
        open_admin(of(AWS).admin())


def test_scope_and_extensions_are_sent(provider):
    """The scope is sent to the endpoint, and the extensions to brokers by both client libraries."""
    extensions = "logicalCluster=lkc-1,identityPoolId=pool-2"
    settings = oidc(provider, **{"sasl.oauthbearer.scope": "kafka all", "sasl.oauthbearer.extensions": extensions})
    clients = of(settings)
    value, expires_at, principal, told = clients.producer(1)["oauth_cb"]("")
    assert told == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
    assert principal == "orders"
    _, headers, form = provider.requests[0]
    assert form == {"grant_type": "client_credentials", "scope": "kafka all"}
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == f"orders:{provider.secret}"
    shown = clients.kafka_python()["sasl_oauth_token_provider"]
    assert (shown.token(), shown.extensions()) == (value, told)
    assert len(provider.requests) == 1, "clients of one process share a token"
    assert expires_at > 0


def test_a_java_login_entry_is_accepted(provider):
    """Id, secret, scope and extensions may come from a Java application's login entry."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    entry = f'{module} clientId="java" clientSecret="{provider.secret}" scope="all" extension_logicalCluster="lkc-7";'
    settings = oidc(provider, **{"sasl.jaas.config": entry})
    assert of(settings).admin()["oauth_cb"]("")[2:] == ("java", {"logicalCluster": "lkc-7"})
    assert provider.requests[0][2]["scope"] == "all"


def test_the_endpoints_authority_is_checked(tmp_path):
    """The secret is not sent to an endpoint with an untrusted certificate, but is if its certificate authority is configured."""
    authority = Authority()
    provider = IdentityProvider(tls=authority.issue("tokens"))
    with pytest.raises(BrokerUnreachableError, match=r"https://.*/token cannot be reached .*https\.ca\.location"):
        of(oidc(provider)).admin()["oauth_cb"]("")
    assert not provider.requests
    (tmp_path / "ca.crt").write_text(authority.pem)
    assert of(oidc(provider, **{"https.ca.location": str(tmp_path / "ca.crt")})).admin()["oauth_cb"]("")
    assert of(oidc(provider, **{"https.ca.pem": authority.pem})).admin()["oauth_cb"]("")
    provider.close()


def test_a_refused_secret_is_an_error_and_not_shown(provider, caplog):
    """The error has the endpoint and its answer; neither errors nor logs contain the secret."""
    settings = oidc(provider, **{"sasl.oauthbearer.client.secret": "wr0ng-s3cret"})
    with pytest.raises(AuthenticationError, match="invalid_client: Bad secret") as caught:
        open_admin(of(settings).admin())
    assert "wr0ng-s3cret" not in f"{caught.value}{caplog.text}{of(settings).admin()}{of(settings).security('admin.')}"


def test_redirects_are_not_followed(provider):
    """The secret is sent only to the configured address."""
    other = IdentityProvider()
    provider.status, provider.headers = 307, {"Location": f"{other.url}/token"}
    with pytest.raises(ConfigError, match="redirects to another address"):
        of(oidc(provider)).admin()["oauth_cb"]("")
    assert not other.requests
    other.close()


def test_a_changed_secret_is_used_for_the_next_token(provider, tmp_path):
    """The inputs of a token are read for every token, so a changed secret needs no restart."""
    (tmp_path / "secret").write_text("old")
    settings = oidc(provider, **{"sasl.oauthbearer.client.secret": f"${{directory:{tmp_path}:secret}}"})
    clients = of(settings)
    watch = clients.watch_credentials()
    callback = clients.admin()["oauth_cb"]
    with pytest.raises(AuthenticationError):
        callback("")
    (tmp_path / "secret").write_text(provider.secret)
    watch.check()
    assert not watch.stale
    assert callback("")


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_a_token_is_used_for_three_quarters_of_its_life(caplog):
    """Then it is replaced or, if that fails, used until it expires, which is logged."""
    clock, made, failing = Clock(), [], []

    def fetch():
        if failing:
            raise BrokerUnreachableError("nobody there")
        made.append(Token(f"t{len(made)}", clock.now + 100))
        return made[-1]

    tokens = Tokens(fetch, {}, clock)
    assert tokens.current() is made[0]
    clock.now += 74
    assert tokens.current() is made[0]
    clock.now += 2
    assert tokens.current() is made[1]
    failing.append(True)
    clock.now += 80
    with caplog.at_level(logging.WARNING):
        assert tokens.current() is made[1]
    assert "nobody there" in caplog.text
    assert tokens.token() == "t1"
    clock.now += 16
    with pytest.raises(BrokerUnreachableError):
        tokens.current()
    with pytest.raises(BrokerUnreachableError):
        tokens.token()


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("sasl.oauthbearer.method", "default", "must be one of oidc, aws-msk-iam, entra-id"),
        ("sasl.oauthbearer.assertion.file", "/x", "sasl.oauthbearer.assertion.file is not supported"),
        ("sasl.oauthbearer.client.secret", "", "needs sasl.oauthbearer.client.secret"),
        ("sasl.oauthbearer.extensions", "logicalCluster", "must be key=value"),
        ("sasl.oauthbearer.extensions", "auth=x", "must be key=value"),
        ("sasl.oauthbearer.method", "aws-msk-iam", "needs sasl.oauthbearer.aws.region"),
    ],
)
def test_wrong_settings_are_errors(setting, value, told):
    """An unsupported, missing or malformed setting is named before anything is sent."""
    with pytest.raises(ConfigError, match=told):
        of(oidc(None, **{setting: value})).admin()


def test_settings_are_checked_without_their_files():
    """Where the files do not exist, as for a plan, no token is requested."""
    reference = {"sasl.oauthbearer.client.secret": "${directory:/nowhere:secret}"}
    assert of(oidc(None, **reference), resolve_references=False).admin()["sasl.mechanism"] == "OAUTHBEARER"
