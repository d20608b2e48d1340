"""What deleting an application still needs when its namespace has already lost Secrets and ConfigMaps."""

import base64
import secrets

import pytest
from tests.operator.kafka.support import patient_clusters, streams_app

from millrace.manifest import StreamsAppStatus
from millrace.manifest.streamsapp_status import InternalTopicStatus
from millrace_operator.app.broker_access import BrokerAccess
from millrace_operator.cluster.requests import ApiError
from millrace_operator.model import DesiredApp

GONE = ApiError("GET secret", 404, "NotFound", "")
SECRET = {"username": b"me", "password": b"pw", "other": b"changed"}
FORBIDDEN = ApiError("GET secret", 403, "Forbidden", "")


class Requests:
    """An API server with one Secret, until that is gone."""

    failure = None

    def get(self, _kind, _namespace, name):
        if self.failure is not None or name != "user":
            raise self.failure or GONE
        return {"data": {key: base64.b64encode(value) for key, value in SECRET.items()}}


def desired(servers="127.0.0.1:9092", application_id="app", *, deleting=False, topics=(), **kafka):
    """Return an application as the API returns it."""
    app = streams_app(servers, application_id, kafka=kafka)
    listed = tuple(InternalTopicStatus(name=name, ok=True) for name in topics)
    status = StreamsAppStatus(internal_topics=listed)
    manifest = app.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return DesiredApp(
        "default", application_id, "u-1", 1, app.spec, manifest=manifest, status=status, deleting=deleting
    )


def is_missing(access, app):
    """Return whether a Secret is missing, or may not be read."""
    try:
        return access.of(app)[1].problem is not None
    except ApiError:
        return True


AUTH = {"auth": {"type": "plain", "secretRef": {"name": "user"}}}


@pytest.mark.parametrize("failure", [GONE, FORBIDDEN])
def test_credentials_outlive_their_secret_while_the_application_is_deleted(failure):
    """The last ones read are used; for an application that is not being deleted, the missing Secret is reported."""
    now = [0.0]
    requests = Requests()
    access = BrokerAccess(requests, lambda: now[0])
    access.of(desired(**AUTH))
    requests.failure = failure
    now[0] = 1e6
    assert is_missing(access, desired(**AUTH))
    now[0] = 2e6
    _, credentials = access.of(desired(**AUTH, deleting=True))
    assert credentials.problem is None
    assert dict(credentials.settings) == {"sasl.username": "me", "sasl.password": "pw"}


def test_credentials_are_only_used_for_the_manifest_that_named_them():
    """Another Secret of new brokers is missing: they are not shown the old one, not even for a deletion."""
    now = [0.0]
    access = BrokerAccess(Requests(), lambda: now[0])
    access.of(desired(**AUTH))
    moved = {"auth": {"type": "plain", "secretRef": {"name": "new"}}}
    assert is_missing(access, desired("10.0.0.1:9092", **moved))
    now[0] = 1e6
    assert is_missing(access, desired("10.0.0.1:9092", deleting=True, **moved))
    assert not access.of(desired("10.0.0.1:9092", deleting=True, **moved))[1].settings


def test_manifest_that_names_another_key_of_its_secret_takes_effect_at_once():
    """What was read of a Secret is kept for minutes, but only for the same keys."""
    access = BrokerAccess(Requests(), lambda: 0.0)
    access.of(desired(**AUTH))
    keys = {"auth": {"type": "plain", "secretRef": {"name": "user", "keys": {"password": "other"}}}}
    assert access.of(desired(**keys))[1].settings["sasl.password"] == "changed"


@pytest.mark.broker
def test_brokers_are_asked_for_the_topics_of_the_status(kafka, monkeypatch):
    """Without any plan, as after an operator restart, existing topics are found and can be deleted."""
    name = f"app-{secrets.token_hex(4)}"
    kafka.create_topics(f"{name}-c-changelog")
    access, clusters = BrokerAccess(Requests()), patient_clusters(monkeypatch)
    try:
        topics = [f"{name}-c-changelog", f"{name}-gone-changelog"]
        app = desired(kafka.bootstrap_servers, name, deleting=True, topics=topics)
        state = clusters.observe(*access.of(app), internal_topics=topics)
    finally:
        clusters.close()
    assert (state.error, state.internal, state.topics.keys()) == (None, set(topics), {topics[0]})
