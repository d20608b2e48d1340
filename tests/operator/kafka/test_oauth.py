"""The operator reaches brokers that require tokens."""

import pytest
from tests.kafka.identity_providers import IdentityProvider
from tests.operator.kafka.support import count_plan, patient_clusters, streams_app

from millrace_operator.kafka.client_config import AllowedAccess, Credentials

pytestmark = pytest.mark.broker


@pytest.fixture
def provider():
    """Give the token provider."""
    provider = IdentityProvider()
    yield provider
    provider.close()


@pytest.fixture
def clusters(monkeypatch, provider):
    """Give the object under test, which may fetch tokens from the provider."""
    clusters = patient_clusters(monkeypatch, AllowedAccess([provider.url]))
    yield clusters
    clusters.close()


def test_topics_and_group_are_seen_with_a_token(clusters, kafka, topic_factory, provider):
    """The operator gets tokens with the application's own credentials, and its clients present them to the brokers."""
    topic = topic_factory("in", partitions=2)
    plan = count_plan(topic)
    auth = {"type": "oauthbearer", "secretRef": {"name": "login"}, "scope": "all"}
    app = streams_app(kafka.sasl_bootstrap_servers, plan.application_id, kafka={"auth": auth})
    login = {"clientId": b"orders", "clientSecret": provider.secret.encode(), "tokenEndpoint": provider.url.encode()}
    state = clusters.observe(app, Credentials.of(app.spec, {"login": login}), plan)
    assert (state.error, set(state.topics)) == (None, {topic})
    assert provider.requests[0][2]["scope"] == "all"
    refused = {**login, "clientSecret": b"wr0ng"}
    state = clusters.observe(app, Credentials.of(app.spec, {"login": refused}), plan)
    assert state.reason == "AuthenticationFailed"
    assert "invalid_client" in state.error
    assert "Secret login" in state.error
    assert "wr0ng" not in state.error


def test_brokers_that_may_not_see_the_operators_identity_are_not_asked(clusters, kafka):
    """The condition says that the operator has no identity for them, and which setting gives it one."""
    address = kafka.sasl_bootstrap_servers
    app = streams_app(address, kafka={"tls": {}, "auth": {"type": "entra-id"}})
    state = clusters.observe(app, Credentials())
    assert state.reason == "BadConfiguration"
    assert f"may not show its own to {address}: list the bootstrap servers in MILLRACE_OPERATOR_CLOUD" in state.error
