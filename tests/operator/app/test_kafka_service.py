"""What deleting an application still needs when its namespace has already lost Secrets and ConfigMaps."""

import base64
import secrets

import pytest
from tests.operator.kafka.support import count_plan, patient_clusters, streams_app

from millrace.manifest import StreamsAppStatus
from millrace.manifest.status import InternalTopicStatus
from millrace_operator.app.kafka_service import KafkaService
from millrace_operator.children.config_maps import plan_config_map
from millrace_operator.cluster.requests import ApiError
from millrace_operator.model import AppRevision, DesiredApp, KafkaState, Key

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


class Asked:
    """Records which credentials the brokers are asked with, and for which topics."""

    def observe(self, _app, credentials, *_plans, internal_topics=()):
        self.credentials, self.internal_topics = credentials, set(internal_topics)
        return KafkaState(reason="SecretMissing" if credentials.problem else "")


def desired(servers="127.0.0.1:9092", application_id="app", *, deleting=False, topics=(), **kafka):
    """Return an application as the API returns it."""
    app = streams_app(servers, application_id, kafka=kafka)
    listed = tuple(InternalTopicStatus(name=name, ok=True) for name in topics)
    status = StreamsAppStatus(internal_topics=listed)
    manifest = app.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return DesiredApp(
        "default", application_id, "u-1", 1, app.spec, manifest=manifest, status=status, deleting=deleting
    )


AUTH = {"auth": {"type": "plain", "secretRef": {"name": "user"}}}


@pytest.mark.parametrize("failure", [GONE, FORBIDDEN])
def test_credentials_outlive_their_secret_while_the_application_is_deleted(failure):
    """The last ones read are used; for an application that is not being deleted, the missing Secret is reported."""
    now = [0.0]
    requests, asked = Requests(), Asked()
    service = KafkaService(requests, asked, lambda: now[0])
    service.observe(desired(**AUTH), {})
    requests.failure = failure
    now[0] = 1e6
    assert service.observe(desired(**AUTH), {}).reason == "SecretMissing"
    now[0] = 2e6
    assert service.observe(desired(**AUTH, deleting=True), {}).reason == ""
    assert dict(asked.credentials.settings) == {"sasl.username": "me", "sasl.password": "pw"}


def test_credentials_are_only_used_for_the_manifest_that_named_them():
    """Another Secret of new brokers is missing: they are not shown the old one, not even for a deletion."""
    now, asked = [0.0], Asked()
    service = KafkaService(Requests(), asked, lambda: now[0])
    service.observe(desired(**AUTH), {})
    moved = {"auth": {"type": "plain", "secretRef": {"name": "new"}}}
    assert service.observe(desired("10.0.0.1:9092", **moved), {}).reason == "SecretMissing"
    now[0] = 1e6
    assert service.observe(desired("10.0.0.1:9092", deleting=True, **moved), {}).reason == "SecretMissing"
    assert not asked.credentials.settings


def test_manifest_that_names_another_key_of_its_secret_takes_effect_at_once():
    """What was read of a Secret is kept for minutes, but only for the same keys."""
    asked = Asked()
    service = KafkaService(Requests(), asked, lambda: 0.0)
    service.observe(desired(**AUTH), {})
    keys = {"auth": {"type": "plain", "secretRef": {"name": "user", "keys": {"password": "other"}}}}
    service.observe(desired(**keys), {})
    assert asked.credentials.settings["sasl.password"] == "changed"


def test_topics_outlive_their_plans_while_the_application_is_deleted():
    """The topics of the status and of every plan seen are still known when all ConfigMaps are gone."""
    asked = Asked()
    service = KafkaService(Requests(), asked)
    plan = count_plan("in", "app").to_json()
    item = plan_config_map(AppRevision("default", "app", "one", streams_app().spec), plan)
    service.observe(desired(topics=["app-old-changelog"]), {Key("ConfigMap", item["metadata"]["name"]): item})
    service.observe(desired(deleting=True, topics=["app-old-changelog"]), {})
    assert asked.internal_topics == {"app-old-changelog", "app-c-changelog", "app-c-repartition"}


@pytest.mark.broker
def test_brokers_are_asked_for_the_topics_of_the_status(kafka, monkeypatch):
    """Without any plan, as after an operator restart, existing topics are found and can be deleted."""
    name = f"app-{secrets.token_hex(4)}"
    kafka.create_topics(f"{name}-c-changelog")
    service = KafkaService(Requests(), patient_clusters(monkeypatch))
    try:
        topics = [f"{name}-c-changelog", f"{name}-gone-changelog"]
        state = service.observe(desired(kafka.bootstrap_servers, name, deleting=True, topics=topics), {})
    finally:
        service.close()
    assert (state.error, state.internal, state.topics.keys()) == (None, set(topics), {topics[0]})
