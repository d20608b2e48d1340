"""The bytes written by Java's serdes, and by ours for the same values."""

import base64
import json
from pathlib import Path
from uuid import UUID

import pytest

from millrace.records import Change, Window, Windowed
from millrace.serdes import ChangeSerde, Serdes
from millrace.serdes.varint import decode_varint, encode_varint

DATA = Path(__file__).parent / "data"
VECTORS = [json.loads(line) for line in (DATA / "serde.jsonl").read_text().splitlines()]
FORMATS = dict(line.split(" = ") for line in (DATA / "formats-4.3.1.txt").read_text().splitlines())
SERDES = {
    "long": Serdes.long(),
    "int": Serdes.integer(),
    "short": Serdes.short(),
    "double": Serdes.double(),
    "float": Serdes.float(),
    "boolean": Serdes.boolean(),
    "string": Serdes.string(),
    "uuid": Serdes.uuid(),
    "list<string>": Serdes.list(Serdes.string()),
    "list<long>": Serdes.list(Serdes.long()),
    "time-windowed<string>": Serdes.time_windowed(Serdes.string(), 100),
    "session-windowed<string>": Serdes.session_windowed(Serdes.string()),
    "window-store-key(seq 7)": Serdes.time_windowed(Serdes.string(), 100, for_changelog=True),
}


def _value_of(vector):
    if "key" in vector:
        return Windowed(vector["key"], Window(vector["start"], vector.get("end", vector["start"] + 100)))
    return UUID(vector["value"]) if vector["serde"] == "uuid" else vector["value"]


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["serde"] in SERDES], ids=json.dumps)
def test_bytes_are_javas(vector):
    """Each value written by Java is read as that value, and written as the same bytes."""
    serde, expected, value = SERDES[vector["serde"]], base64.b64decode(vector["bytes"]), _value_of(vector)
    read = serde.deserialize("t", expected)
    assert read == (pytest.approx(value, rel=1e-7) if vector["serde"] == "float" else value)
    if "seq" not in vector["serde"]:
        assert serde.serialize("t", value) == expected


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, 300])
def test_varints_are_javas(number):
    """Zig-zag varints have Java's bytes."""
    expected = bytes.fromhex(FORMATS[f"varint({number})"])
    assert encode_varint(number) == expected
    assert decode_varint(expected) == (number, len(expected))


@pytest.mark.parametrize(
    ("name", "serde", "items"),
    [("String>[ab,null]", Serdes.string(), ["ab", None]), ("Long>[1,null]", Serdes.long(), [1, None])],
)
def test_lists_of_both_layouts_are_javas(name, serde, items):
    """Lists with and without item lengths have Java's bytes, including nulls."""
    expected = bytes.fromhex(FORMATS[f"ListSerde<{name}"])
    assert Serdes.list(serde).serialize("t", items) == expected
    assert Serdes.list(serde).deserialize("t", expected) == items


def test_change_with_both_values_is_javas():
    """A change of "pxx" to "pyy" has the bytes that Java put on a repartition topic."""
    expected = bytes.fromhex("0670797970787802")
    serde = ChangeSerde(Serdes.string())
    assert serde.serialize("t", Change("pyy", "pxx")) == expected
    assert serde.deserialize("t", expected) == Change("pyy", "pxx")
