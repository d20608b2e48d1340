"""Serdes with a schema registry, tested with a local registry that serves the API of subjects and versions."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass

import pytest

pytest.importorskip("fastavro", reason="needs the extra schema-registry")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.timestamp_pb2 import Timestamp

from millrace.config import StreamsConfig
from millrace.dsl import Consumed, Grouped, Materialized, Produced, StreamsBuilder
from millrace.errors import SerializationError, UnavailableSerdeError
from millrace.serdes import Serdes
from millrace.serdes.change import ChangeSerde
from millrace.serdes.list import ListSerde
from millrace.serdes.schema_registry import AvroSerde, JsonSchemaSerde, ProtobufSerde
from millrace.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde
from millrace.testing import TopologyTestDriver

AVRO = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]}
)
AVRO_NEXT = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": "string"},
            {"name": "paid", "type": "boolean", "default": False},
        ],
    }
)
JSON_SCHEMA = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["id"],
    }
)


@dataclass
class Order:
    """The class that the schemas describe."""

    id: int
    note: str = ""


def test_avro_survives_and_carries_its_schemas_id(registry):
    """A zero byte and the schema id precede Avro's own bytes, and what was written is read back."""
    serde = AvroSerde(registry.client, AVRO)
    data = serde.serialize("orders", {"id": 7, "note": "hi"})
    assert data.hex() == "00" + "00000001" + "0e" + "046869"
    assert serde.deserialize("orders", data) == {"id": 7, "note": "hi"}
    assert set(registry.subjects) == {"orders-value"}


def test_objects_are_converted_on_both_ways(registry):
    """With `to_dict` and `from_dict` a topology works with its own classes."""
    for make, schema in ((AvroSerde, AVRO), (JsonSchemaSerde, JSON_SCHEMA)):
        serde = make(registry.client, schema, to_dict=asdict, from_dict=lambda fields: Order(**fields))
        topic = make.__name__
        assert serde.deserialize(topic, serde.serialize(topic, Order(7, "hi"))) == Order(7, "hi")


def test_keys_and_internal_topics_have_subjects_of_their_own(registry):
    """Subjects are named after the topic that the bytes are for, as in Java."""
    AvroSerde(registry.client, AVRO, is_key=True).serialize("orders", {"id": 7, "note": ""})
    AvroSerde(registry.client, AVRO).serialize("app-totals-changelog", {"id": 7, "note": ""})
    assert set(registry.subjects) == {"orders-key", "app-totals-changelog-value"}


def test_old_data_is_read_with_a_newer_schema(registry):
    """Data is decoded with the schema it was written with and then resolved: a new field gets its default."""
    data = AvroSerde(registry.client, AVRO).serialize("orders", {"id": 7, "note": "hi"})
    assert AvroSerde(registry.client, AVRO_NEXT).deserialize("orders", data) == {"id": 7, "note": "hi", "paid": False}


def test_the_registry_is_not_asked_per_record(registry):
    """A thousand records need only a few requests."""
    writer, reader = AvroSerde(registry.client, AVRO), AvroSerde(registry.client, AVRO)
    for number in range(1000):
        reader.deserialize("orders", writer.serialize("orders", {"id": number, "note": ""}))
    assert registry.requests.total() < 10


def test_json_is_validated_on_both_ways(registry):
    """Data that the schema forbids can be neither written nor read."""
    serde = JsonSchemaSerde(registry.client, JSON_SCHEMA)
    data = serde.serialize("orders", {"id": 7})
    assert serde.deserialize("orders", data) == {"id": 7}
    with pytest.raises(SerializationError, match=r"'orders-value'.*'seven'"):
        serde.serialize("orders", {"id": "seven"})
    with pytest.raises(SerializationError, match="'id' is a required property"):
        serde.deserialize("orders", data[:5] + b"{}")


@pytest.fixture(scope="module")
def message_types():
    """Two message classes from a file that imports another, as protoc would generate them."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    field = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Parcel").field.add(name="id", number=1, type=field.TYPE_INT64, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=field.TYPE_INT64, label=1)
    order.field.add(
        name="at", number=2, type=field.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Timestamp", json_name="at"
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{n}")) for n in ("Parcel", "Order")]


def test_protobuf_survives(registry, message_types):
    """Messages are read back equal; the index of the type in its file follows the schema's id."""
    parcel_type, order_type = message_types
    parcels, orders = (ProtobufSerde(registry.client, kind) for kind in message_types)
    parcel, order = parcel_type(id=7), order_type(id=8, at=Timestamp(seconds=9))
    first, second = parcels.serialize("parcels", parcel), orders.serialize("orders", order)
    assert (first[5:].hex(), second[5:7].hex()) == ("00" + "0807", "0202")
    assert parcels.deserialize("parcels", first) == parcel
    assert orders.deserialize("orders", second) == order


def test_a_message_of_another_type_is_refused(registry, message_types):
    """The error names both types."""
    parcel_type, order_type = message_types
    with pytest.raises(SerializationError, match="writes Parcel, but was given Order"):
        ProtobufSerde(registry.client, parcel_type).serialize("parcels", order_type(id=1))


def test_the_registry_may_be_given_as_url_or_settings(registry):
    """The registry can be given as a URL, as settings or as a client."""
    for given in (registry.url, {"url": registry.url}):
        serde = AvroSerde(given, AVRO)
        assert serde.serialize("orders", {"id": 7, "note": ""})[:5] == b"\0\0\0\0\1"
        serde.client.close()


@pytest.mark.parametrize("data", ["", "00", "0000000001", "ff0000000107", "000000000a07"])
def test_bytes_of_another_format_are_refused(registry, data):
    """Truncated data, another magic byte and an unknown schema id are errors that name the topic."""
    serde = AvroSerde(registry.client, AVRO)
    serde.serialize("orders", {"id": 1, "note": ""})
    with pytest.raises(SerializationError, match="'orders'") as refused:
        serde.deserialize("orders", bytes.fromhex(data))
    assert not isinstance(refused.value, UnavailableSerdeError)


def test_schemas_are_registered_only_if_allowed(registry):
    """With auto.register.schemas off and nothing registered, writing is an error that names the subject."""
    serde = AvroSerde(registry.client, AVRO, settings={"auto.register.schemas": False})
    with pytest.raises(SerializationError, match="'orders-value'"):
        serde.serialize("orders", {"id": 1, "note": ""})
    assert not registry.subjects


def test_unreachable_registry_is_an_error_and_does_not_hang(registry):
    """If the registry does not answer, the error has the requested subject, and says that the data is not to blame."""
    settings = {"url": "http://127.0.0.1:9", "max.retries": 0}
    with pytest.raises(UnavailableSerdeError, match="'orders-value'"):
        AvroSerde(settings, AVRO).serialize("orders", {"id": 1, "note": ""})


def totals(serde):
    """Return a topology that adds up orders by key in one store, and by another key in a second store."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", Consumed.with_(Serdes.string(), serde))
    latest = orders.group_by_key(Grouped.with_(Serdes.string(), serde)).reduce(
        lambda one, other: {"id": one["id"] + other["id"], "note": other["note"]},
        Materialized.with_(Serdes.string(), serde),
    )
    by_note = latest.group_by(lambda _, order: (order["note"], order), Grouped.with_(Serdes.string(), serde))
    by_note.reduce(
        lambda _, order: order, lambda _, order: order, Materialized.with_(Serdes.string(), serde)
    ).to_stream().to("totals", Produced.with_(Serdes.string(), serde))
    return builder.build()


@pytest.fixture
def login(tmp_path):
    """Return a folder with a mounted login, and the setting that refers to it."""
    (tmp_path / "username").write_text("shop")
    (tmp_path / "password").write_text("first\n")
    return tmp_path, ":".join(f"${{directory:{tmp_path}:{key}}}" for key in ("username", "password"))


def test_the_registry_of_the_application_reaches_every_serde_without_one(registry, login):
    """Sources, sinks, stores, repartition topics and defaults all use the registry in the settings, with its login."""
    registry.login = "shop:first"
    settings = {"application.id": "app", "schema.registry.url": registry.url, "basic.auth.user.info": login[1]}
    serde, default = AvroSerde(None, AVRO), AvroSerde(None, AVRO)
    with TopologyTestDriver(totals(serde), settings | {"default.value.serde": default}) as driver:
        orders = driver.create_input_topic("orders", Serdes.string(), serde)
        for number in (3, 4):
            orders.pipe_input("k", {"id": number, "note": "hi"})
        read = driver.create_output_topic("totals", Serdes.string()).read_key_values_to_list()
        assert read[-1].value == {"id": 7, "note": "hi"}
    for used in (serde, default):
        used.client.close()
    assert {subject.removeprefix("app-") for subject in registry.subjects} > {"orders-value", "totals-value"}


def test_a_new_login_is_used_without_a_restart(registry, login):
    """If the registry refuses the login, the files are read again; if they are unchanged, the error is raised."""
    folder, reference = login
    registry.login = "shop:first"
    config = StreamsConfig.of(
        {"application.id": "app", "schema.registry.url": registry.url, "basic.auth.user.info": reference}
    )
    serde = AvroSerde(None, AVRO)
    serde.configure(config)
    serde.serialize("orders", {"id": 1, "note": ""})
    clients = [serde.client]
    registry.login = "shop:second"
    with pytest.raises(UnavailableSerdeError, match="Unauthorized") as refused:
        serde.serialize("payments", {"id": 1, "note": ""})
    assert "first" not in str(refused.value)
    (folder / "password").write_text("second\n")
    serde.serialize("payments", {"id": 1, "note": ""})
    for client in (*clients, serde.client):
        client.close()
    assert set(registry.subjects) == {"orders-value", "payments-value"}


def test_a_serde_with_a_registry_of_its_own_keeps_it(registry):
    """The application's setting only applies to serdes without a registry."""
    serde = AvroSerde(registry.client, AVRO)
    serde.configure(StreamsConfig.of({"application.id": "app", "schema.registry.url": "http://127.0.0.1:9"}))
    assert serde.client is registry.client
    serde.serialize("orders", {"id": 1, "note": ""})


@pytest.mark.parametrize("make", [lambda inner: inner, ListSerde, TimeWindowedSerde, SessionWindowedSerde, ChangeSerde])
def test_without_any_registry_the_setting_is_named(make):
    """A serde without a registry, even if wrapped, raises an error that names the setting or manifest field for one."""
    serde = AvroSerde(None, AVRO)
    make(serde).configure(StreamsConfig.of({"application.id": "app"}))
    with pytest.raises(SerializationError, match=r"schema\.registry\.url.*spec\.kafka\.schemaRegistry"):
        serde.serialize("orders", {"id": 1, "note": ""})
    make(serde).configure(StreamsConfig.of({"application.id": "app", "schema.registry.url": "http://127.0.0.1:9"}))
    assert serde.client
    serde.client.close()


def test_missing_packages_are_named():
    """Without the extra, importing the module fails and names the extra; the other serdes do not need it."""
    program = (
        "import sys; sys.modules['fastavro'] = None\n"
        "import millrace.serdes\n"
        "try:\n    import millrace.serdes.schema_registry\n"
        "except ImportError as error:\n    print(error)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "fastavro" in result.stdout
    assert "millrace-streams[schema-registry]" in result.stdout
