"""Resolving configuration values to serdes."""

from dataclasses import dataclass

import pytest

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.serdes import (
    ListSerde,
    LongSerde,
    Serde,
    Serdes,
    SessionWindowedSerde,
    StringSerde,
    TimeWindowedSerde,
)

JAVA = "org.apache.kafka.common.serialization.Serdes$"


class UpperSerde(Serde[str]):
    """A user's own serde."""


def make_upper():
    """Return a serde; an import path may also name a function."""
    return UpperSerde()


@dataclass
class MakesUpper:
    """Returns a serde when called; it can be compared and so has no hash."""

    name: str

    def __call__(self):
        """Return a serde."""
        return UpperSerde()


def _config(**settings):
    return StreamsConfig.of({"application.id": "app", **settings})


@pytest.mark.parametrize(
    ("name", "serde"),
    [
        ("String", Serdes.string()),
        ("Short", Serdes.short()),
        ("Integer", Serdes.integer()),
        ("Long", Serdes.long()),
        ("Float", Serdes.float()),
        ("Double", Serdes.double()),
        ("Boolean", Serdes.boolean()),
        ("ByteArray", Serdes.byte_array()),
        ("ByteBuffer", Serdes.byte_buffer()),
        ("Bytes", Serdes.bytes()),
        ("UUID", Serdes.uuid()),
        ("Void", Serdes.void()),
    ],
)
def test_javas_class_names_and_short_names_are_understood(name, serde):
    """A Java application's configuration works unchanged."""
    assert Serdes.resolve(f"{JAVA}{name}Serde") is serde
    assert Serdes.resolve(name.lower()) is serde
    assert Serdes.resolve(f"{name}Serde") is serde
    assert Serdes.resolve(f"org.apache.kafka.common.serialization.{name}Deserializer") is serde


def test_import_paths_classes_instances_and_factories_are_understood():
    """Users' own serdes may be given in any of Python's forms."""
    assert Serdes.resolve("millrace.serdes:Serdes.string") is Serdes.string()
    assert isinstance(Serdes.resolve("millrace.serdes.primitives:LongSerde"), LongSerde)
    for form in (UpperSerde, UpperSerde(), make_upper, MakesUpper("a")):
        assert isinstance(Serdes.resolve(form), UpperSerde)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("strng", "or one of string"),
        ("com.example.OrderSerde", "module:attribute"),
        ("no_such_module:serde", "cannot be imported"),
        ("millrace.serdes:Nothing", "cannot be imported"),
        ("millrace.records:NO_HEADERS", "a serde is needed"),
        (int, "a serde is needed"),
        (7, "a serde is needed"),
        (TimeWindowedSerde, "needs arguments"),
        (lambda: 7, "a serde is needed"),
    ],
)
def test_invalid_serde_is_an_error_that_names_the_key(value, hint):
    """The error has the key, the value and what is allowed."""
    with pytest.raises(ConfigError, match=hint) as caught:
        Serdes.resolve(value, key="default.key.serde")
    assert "default.key.serde" in str(caught.value)


def test_defaults_are_none_until_set():
    """Without the setting there is no default serde, as in Kafka Streams."""
    config = _config()
    assert Serdes.default_key(config) is None
    assert Serdes.default_value(config) is None


def test_default_serdes_are_resolved():
    """Keys and values have separate settings."""
    config = _config(**{"default.key.serde": f"{JAVA}StringSerde", "default.value.serde": "long"})
    assert Serdes.default_key(config) is Serdes.string()
    assert Serdes.default_value(config) is Serdes.long()


def test_a_default_list_serde_takes_its_inner_serde_from_the_configuration():
    """default.list.*.serde.inner sets the items' serde, default.list.*.serde.type the container (KIP-466)."""
    config = _config(
        **{
            "default.key.serde": f"{JAVA}ListSerde",
            "default.list.key.serde.inner": f"{JAVA}LongSerde",
            "default.list.key.serde.type": "java.util.ArrayList",
            "default.value.serde": ListSerde,
            "default.list.value.serde.inner": "string",
            "default.list.value.serde.type": "tuple",
        }
    )
    key, value = Serdes.default_key(config), Serdes.default_value(config)
    assert key.deserialize("t", key.serialize("t", [1, None])) == [1, None]
    assert value.deserialize("t", value.serialize("t", ["a"])) == ("a",)


@pytest.mark.parametrize(
    ("inner", "inner_class"),
    [
        ("windowed.inner.class.serde", "Serdes$StringSerde"),
        ("windowed.inner.deserializer.class", "StringDeserializer"),
    ],
)
@pytest.mark.parametrize("name", ["TimeWindowedSerde", "SessionWindowedSerde"])
def test_a_default_windowed_serde_takes_inner_and_size_from_the_configuration(name, inner, inner_class):
    """windowed.inner.* sets the key's serde, window.size.ms the window size."""
    config = _config(
        **{
            "default.key.serde": f"org.apache.kafka.streams.kstream.WindowedSerdes${name}",
            inner: f"org.apache.kafka.common.serialization.{inner_class}",
            "window.size.ms": 100,
        }
    )
    serde = Serdes.default_key(config)
    assert isinstance(serde, TimeWindowedSerde | SessionWindowedSerde)
    assert isinstance(serde.inner, StringSerde)
    assert getattr(serde, "window_size_ms", 100) == 100


@pytest.mark.parametrize(
    ("default", "missing"),
    [("ListSerde", "default.list.key.serde.inner"), ("TimeWindowedSerde", "windowed.inner.class.serde")],
)
def test_a_missing_inner_serde_is_named(default, missing):
    """The error says which key must be set."""
    with pytest.raises(ConfigError, match=missing):
        Serdes.default_key(_config(**{"default.key.serde": default}))


def test_an_unknown_list_type_is_an_error():
    """Only list and tuple, or a class from java.util, are allowed."""
    config = _config(
        **{
            "default.key.serde": "ListSerde",
            "default.list.key.serde.inner": "string",
            "default.list.key.serde.type": "dict",
        }
    )
    with pytest.raises(ConfigError, match="use list or tuple"):
        Serdes.default_key(config)
