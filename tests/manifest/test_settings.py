"""What a manifest means to the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.config import StreamsConfig
from millrace.manifest import StreamsApp, check, replica_name, to_streams_config
from millrace.manifest.fields import duration_ms, quantity_value


def app(**spec) -> StreamsApp:
    """Return a manifest with some fields of the spec replaced."""
    data = {
        "apiVersion": "streams.millrace.dev/v1alpha1",
        "kind": "StreamsApp",
        "metadata": {"name": "wc"},
        "spec": {
            "applicationId": "wc-v1",
            "image": "wc:1",
            "app": {"entrypoint": "wc:topology"},
            "kafka": {
                "bootstrapServers": ["k1:9092", "k2:9092"],
                "config": {"linger.ms": 5, "sasl.mechanism": "PLAIN"},
            },
            **spec,
        },
    }
    model, problems = check(data)
    assert model, problems
    return model


def test_fields_become_kafkas_settings():
    """Every field that the runtime knows arrives under Kafka's name."""
    model = app(threads=3, processing={"guarantee": "exactly_once_v2", "commitInterval": "250ms"})
    assert to_streams_config(model, 2, state_dir=Path("/state")) == {
        "application.id": "wc-v1",
        "bootstrap.servers": "k1:9092,k2:9092",
        "client.id": "wc-2",
        "commit.interval.ms": 250,
        "group.instance.id": "wc-2",
        "linger.ms": 5,
        "num.stream.threads": 3,
        "processing.guarantee": "exactly_once_v2",
        "sasl.mechanism": "PLAIN",
        "state.dir": "/state",
    }


def test_the_result_is_a_valid_configuration():
    """`StreamsConfig` takes the settings; with EOS and no interval the commit interval is 100 ms."""
    config = StreamsConfig.of(to_streams_config(app(processing={"guarantee": "exactly_once_v2"}), 0))
    assert config.exactly_once
    assert config.commit_interval_ms == 100
    assert config.group_instance_id == "wc-0"
    assert config.client_settings["linger.ms"] == 5


def test_without_a_replica_nothing_is_a_member():
    """What all replicas share has no member's name in it."""
    assert not {"client.id", "group.instance.id", "state.dir"} & to_streams_config(app()).keys()


def test_other_brokers_come_without_the_manifests_security():
    """Brokers handed in replace the manifest's together with what it says about passwords and certificates."""
    config = {"sasl.mechanism": "PLAIN", "consumer.ssl.ca.location": "/ca", "security.protocol": "SSL", "linger.ms": 5}
    model = app(kafka={"bootstrapServers": ["k:1"], "config": {**config, "main.consumer.sasl.username": "u"}})
    settings = to_streams_config(model, bootstrap_servers=["127.0.0.1:1"])
    assert settings["bootstrap.servers"] == "127.0.0.1:1"
    assert settings["linger.ms"] == 5
    assert not [key for key in settings if "sasl" in key or "ssl" in key or "security" in key]


def test_replicas_are_named_like_pods():
    """A replica's name is the resource's with its ordinal, as a StatefulSet names pods."""
    assert replica_name(app(), 11) == "wc-11"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1Ki", 1024), ("1.5Gi", 3 * 2**29), ("2G", 2 * 10**9), ("1E", 10**18), ("1e3", 1000), ("100m", 1)],
)
def test_quantities(text, value):
    """A quantity is read as Kubernetes reads it, rounded up to whole bytes."""
    assert quantity_value(text) == value


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_durations_add_up(hours, minutes, seconds, millis):
    """The parts of a duration add up, whatever they are."""
    text = f"{hours}h{minutes}m{seconds}s{millis}ms"
    assert duration_ms(text) == ((hours * 60 + minutes) * 60 + seconds) * 1000 + millis
