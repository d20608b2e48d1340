"""`millrace dev topics`, `produce` and `consume` on a real broker."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import time

import pytest
from confluent_kafka import Producer
from kafka.partitioner import murmur2
from tests import forked
from tests.malformed_headers import write_records
from tests.waiting import PATIENCE_S

from millrace.config import StreamsConfig
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.records import TopicPartition

pytestmark = pytest.mark.broker

PROGRAM = """\
from millrace import Consumed, Produced, Serdes

print("imported")

def topology(builder, config):
    text, number = Serdes.string(), Serdes.long()
    numbers = builder.stream(config["input"], Consumed.with_(text, number))
    numbers.group_by_key().count("counts").to_stream().to(config["output"], Produced.with_(text, number))
"""
MANIFEST = """\
apiVersion: streams.millrace.dev/v1alpha1
kind: StreamsApp
metadata: {{name: shop}}
spec:
  applicationId: {app}
  image: shop:1
  app: {{entrypoint: "shop:topology", config: {{input: {source}, output: "{sink}"}}}}
  kafka: {{bootstrapServers: ["elsewhere:9092"]}}
"""


class Shop:
    """An application in a folder, with its topics on the shared broker."""

    def __init__(self, kafka, folder, source, sink):
        self.kafka, self.folder, self.source, self.sink = kafka, folder, source, sink
        self.app = f"app-{secrets.token_hex(4)}"
        (folder / "shop.py").write_text(PROGRAM)
        (folder / "streamsapp.yaml").write_text(MANIFEST.format(app=self.app, source=source, sink=sink))

    def command(self, *arguments):
        """Return the command line of `millrace dev …` for the broker."""
        return [sys.executable, "-m", "millrace.cli", "dev", *arguments, "--bootstrap", self.kafka.bootstrap_servers]

    def millrace(self, *arguments, code=0, stdin=""):
        """Run a command and return its output, or its errors if it must fail."""
        ran = forked.run(
            self.command(*arguments), capture_output=True, text=True, cwd=self.folder, timeout=120, input=stdin
        )
        assert ran.returncode == code, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stderr if code else ran.stdout

    def consumed(self, *arguments):
        """Return the records that `consume` prints."""
        return [json.loads(line) for line in self.millrace("consume", *arguments).splitlines()]


@pytest.fixture
def shop(kafka, topic_factory, tmp_path):
    """Return an application with two partitions of input; its output does not exist."""
    source = topic_factory("numbers", partitions=2)
    return Shop(kafka, tmp_path, source, f"{source}-counts")


def test_what_is_produced_is_consumed(shop):
    """Records of arguments and of standard input have the declared serdes, and the partition that Java's producer chooses."""
    at = int(time.time() * 1000) - 5_000  # retention deletes what is old
    lines = [
        json.dumps({"key": "a", "value": 1, "timestamp": at, "headers": {"trace": "x"}}),
        '{"key": "b", "value": 2, "partition": 1}',
    ]
    assert shop.millrace("produce", shop.source, *lines) == f"2 records written to {shop.source}\n"
    assert shop.millrace("produce", shop.source, stdin='\n{"key": "c"}\n') == f"1 record written to {shop.source}\n"
    found = {record.pop("key"): record for record in shop.consumed(shop.source)}
    assert found["a"] == {
        "partition": (murmur2(b"a") & 0x7FFFFFFF) % 2,
        "offset": 0,
        "timestamp": at,
        "value": 1,
        "headers": [["trace", "x"]],
    }
    assert (found["b"]["partition"], found["b"]["value"], found["b"]["headers"]) == (1, 2, [])
    assert found["c"]["value"] is None
    assert len(shop.consumed(shop.source, "--max", "2")) == 2


def test_output_of_consume_can_be_produced_again(shop, topic_factory):
    """A topic is copied by a pipe, also where the serde cannot read what is in it."""
    raw = Producer({"bootstrap.servers": shop.kafka.bootstrap_servers})
    raw.produce(shop.source, b"\xff\x00", b"key", partition=0)
    assert raw.flush(PATIENCE_S) == 0
    serdes = ("--key-serde", "bytes", "--value-serde", "bytes")
    copy = topic_factory("copy", partitions=2)
    shop.millrace("produce", copy, *serdes, stdin=shop.millrace("consume", shop.source, *serdes))
    (record,) = shop.consumed(copy, *serdes)
    assert (record["partition"], record["key"], record["value"]) == (0, "key", {"$bytes": "/wA="})


def test_bytes_that_do_not_decode_are_shown_with_the_error(shop):
    """The record is printed like the others, with what is wrong with it."""
    shop.millrace("produce", shop.source, '{"key": "a", "value": {"$bytes": "YWJj"}, "partition": 0}')
    (record,) = shop.consumed(shop.source)
    assert (record["key"], record["value"]) == ("a", "abc")
    assert "LongSerde() expects exactly 8 bytes, but got 3 bytes" in record["valueError"]
    assert "keyError" not in record


def test_names_of_headers_that_are_not_utf8_are_shown_with_the_error(shop):
    """The record is printed like the others, with U+FFFD in the name."""
    value = (7).to_bytes(8, "big")
    write_records(shop.kafka, shop.source, [(b"a", value, [(b"caf\xe9", b"1"), (b"b", b"2")]), (b"b", value, [])])
    wrong, right = shop.consumed(shop.source)
    assert (wrong["key"], wrong["value"]) == ("a", 7)
    assert wrong["headers"] == [["caf\ufffd", "1"], ["b", "2"]]
    assert "not UTF-8" in wrong["headersError"]
    assert right["key"] == "b"
    assert "headersError" not in right


def test_only_committed_records_are_shown(shop):
    """Records of a transaction that was aborted are left out, and those of an open one are not waited for."""
    settings = {"bootstrap.servers": shop.kafka.bootstrap_servers, "transactional.id": shop.app}
    producer = Producer(settings)
    producer.init_transactions()
    for text, end in (
        (b"aborted", producer.abort_transaction),
        (b"committed", producer.commit_transaction),
        (b"open", None),
    ):
        producer.begin_transaction()
        producer.produce(shop.source, text, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if end is not None:
            end(60)
    assert [record["value"] for record in shop.consumed(shop.source, "--value-serde", "string")] == ["committed"]
    producer.abort_transaction(PATIENCE_S)


def test_follow_prints_what_comes(shop):
    """It starts with new records, or with all of them, and ends after as many as were asked for."""
    shop.millrace("produce", shop.source, '{"value": 1}')
    both = ("consume", shop.source, "--follow", "--from-beginning", "--max", "2")
    with forked.Popen(shop.command(*both), stdout=subprocess.PIPE, text=True, cwd=shop.folder) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["value"] == 1
        shop.millrace("produce", shop.source, '{"value": 2}')
        assert json.loads(process.stdout.readline())["value"] == 2
    assert process.returncode == 0


def test_wrong_record_ends_produce_with_its_number(shop):
    """What was given before it has been written; a partition that does not exist is noticed too."""
    stdin = '{"value": 1}\n\n{"value": "one"}\n{"value": 3}\n'
    told = shop.millrace("produce", shop.source, code=1, stdin=stdin)
    assert "Error: Record 3: value: LongSerde() writes int" in told
    assert "Records written before it: 1" in told
    assert [record["value"] for record in shop.consumed(shop.source)] == [1]
    told = shop.millrace("produce", shop.source, '{"partition": 2}', code=1)
    assert f"Record 1: partition: {shop.source} has the partitions 0 to 1" in told


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ('{"value": {"$bytes": "' + "A" * 4_000_000 + '"}}', "Record 2: Unable to produce message: Broker: "),
        ('{"value": 1, "timestamp": 9223372036854775808}', "Record 2: timestamp: 9223372036854775808 is not"),
        ('{"value": 1, "headers": {"\\ud800": "a"}}', "Record 2: headers: "),
        ("[" * 100_000, "Record 2: not JSON"),
        ("\udcff", "Record 2: not JSON"),
    ],
    ids=["too large", "time beyond Kafka's", "not a text", "too deep", "not UTF-8"],
)
def test_record_that_cannot_be_written_is_named(shop, record, told):
    """What was given before it has been written."""
    lines = f'{{"value": 1}}\n{record}\n'.encode(errors="surrogateescape")
    ran = forked.run(
        shop.command("produce", shop.source),
        cold="its variables act at the start",
        capture_output=True,
        cwd=shop.folder,
        timeout=120,
        input=lines,
        env=os.environ | {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"},
    )
    shown = ran.stderr.decode()
    assert ran.returncode == 1
    assert "Traceback" not in shown
    assert f"Error: {told}" in shown
    assert "Records written before it: 1" in shown
    assert [each["value"] for each in shop.consumed(shop.source)] == [1]


def test_no_standard_input(shop):
    """A process without one writes what its arguments say, or nothing."""
    for arguments, written in ((('{"value": 1}',), "1 record written"), ((), "0 records written")):
        line = shlex.join(shop.command("produce", shop.source, *arguments))
        ran = forked.run(["sh", "-c", f"exec {line} <&-"], capture_output=True, text=True, cwd=shop.folder, timeout=120)
        assert written in ran.stdout, ran.stderr


def test_unknown_topic_is_not_created(shop):
    """The error names the closest topic."""
    for command in (("produce", "{}x"), ("consume", "{}x")):
        told = shop.millrace(command[0], command[1].format(shop.source), code=2)
        assert f"Error: There is no topic {shop.source}x; did you mean `{shop.source}`?" in told


def test_brokers_without_a_manifest(shop, tmp_path):
    """With named brokers and serdes no manifest is needed; undeclared bytes are shown as they are."""
    (tmp_path / "streamsapp.yaml").unlink()
    told = shop.millrace("produce", shop.source, '{"value": 1}', code=1)
    assert "nothing declares the serde of topic" in told
    shop.millrace("produce", shop.source, '{"value": 1}', "--value-serde", "json")
    assert [record["value"] for record in shop.consumed(shop.source)] == ["1"]
    told = shop.millrace("consume", shop.source, "--value-serde", "jsno", code=2)
    assert "Error: --value-serde" in told


def test_topics_are_listed_with_records_and_lag(shop):
    """Each has what it is to the application; those that do not exist yet have no numbers."""
    shop.millrace("produce", shop.source, *['{"value": 1, "partition": 0}'] * 3)
    config = StreamsConfig.of({"application.id": shop.app, "bootstrap.servers": shop.kafka.bootstrap_servers})
    with GroupAdmin(ClientSettings(config, "test")) as group:
        group.commit({TopicPartition(shop.source, 0): 1})
    assert json.loads(shop.millrace("topics", "--json")) == [
        {"name": shop.source, "kinds": ["input"], "partitions": 2, "records": 3, "lag": 2},
        {"name": f"{shop.app}-counts-changelog", "kinds": ["changelog"], "partitions": None, "records": None, "lag": None},
        {"name": shop.sink, "kinds": ["output"], "partitions": None, "records": None, "lag": None},
    ]  # fmt: skip
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in shop.millrace("topics").splitlines()]
    assert [shop.source, "input", "2", "3", "2"] in rows
    assert [shop.sink, "output", "-", "-", "-"] in rows


def test_application_that_is_not_running(shop):
    """Without named brokers the commands need a running `dev up`, and say how to get one."""
    for command in (["topics"], ["produce", "x", "{}"], ["consume", "x"]):
        line = [sys.executable, "-m", "millrace.cli", "dev", *command, "--dir", "data"]
        ran = forked.run(line, capture_output=True, text=True, cwd=shop.folder, timeout=60)
        assert ran.returncode == 1
        assert "Error: shop is not running: start it with `millrace dev up`, or name brokers" in ran.stderr
