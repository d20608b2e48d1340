"""Reading manifests, and the messages for wrong ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from millrace.errors import ManifestError
from millrace.manifest import StreamsApp, check, load, load_all

GOOD = """\
apiVersion: streams.millrace.dev/v1alpha1
kind: StreamsApp
metadata:
  name: wordcount
  labels: {team: words}
spec:
  applicationId: wordcount-v1
  image: registry.example/wordcount:1
  imagePullPolicy: IfNotPresent
  app:
    entrypoint: wordcount.main:topology
    args: [--verbose]
    config: {inputTopic: lines, since: 2026-01-01}
  replicas: 2
  threads: 1
  kafka:
    bootstrapServers: [kafka-0:9092, "[::1]:9092"]
    config:
      topology.optimization: all
      consumer.max.partition.fetch.bytes: 2097152
  processing: {guarantee: exactly_once_v2, commitInterval: 1s500ms}
  storage: {size: 10Gi, storageClassName: fast}
"""

_ABSENT = object()


def changed(path: str, value: Any) -> str:
    """Return the good manifest with one field replaced, added or (with `_ABSENT`) left out."""
    data = copy.deepcopy(yaml.load(GOOD, yaml.BaseLoader))
    data["spec"]["replicas"], data["spec"]["threads"] = 2, 1
    *parents, last = path.split("/")
    node = data
    for step in parents:
        node = node[int(step) if step.isdigit() else step]
    if value is _ABSENT:
        del node[last]
    else:
        node[int(last) if last.isdigit() else last] = value
    return yaml.safe_dump(data, sort_keys=False)


def message(text: str) -> str:
    """Return the message for a wrong manifest."""
    with pytest.raises(ManifestError) as caught:
        load(text)
    return str(caught.value)


def test_good_manifest_is_read_with_every_field():
    """The model has every field of a manifest under its Python name."""
    app = load(GOOD)
    assert app.metadata.name == "wordcount"
    assert app.spec.application_id == "wordcount-v1"
    assert app.spec.image_pull_policy == "IfNotPresent"
    assert app.spec.app.args == ("--verbose",)
    assert app.spec.kafka.bootstrap_servers == ("kafka-0:9092", "[::1]:9092")
    assert app.spec.kafka.config["consumer.max.partition.fetch.bytes"] == 2_097_152
    assert app.spec.processing.guarantee == "exactly_once_v2"
    assert app.spec.storage.storage_class_name == "fast"


def test_dates_stay_text():
    """A date in app.config stays text, as in Kubernetes."""
    assert load(GOOD).spec.app.config == {"inputTopic": "lines", "since": "2026-01-01"}


def test_smallest_manifest_gets_defaults():
    """A manifest with only the required fields runs one at-least-once replica with one thread and a 1Gi volume."""
    app = load(
        "apiVersion: streams.millrace.dev/v1alpha1\nkind: StreamsApp\nmetadata: {name: a}\n"
        "spec: {applicationId: a, image: i, app: {entrypoint: 'm:f'}, kafka: {bootstrapServers: ['k:1']}}\n"
    )
    assert (app.spec.replicas, app.spec.threads, app.spec.storage.size) == (1, 1, "1Gi")
    assert app.spec.processing.guarantee == "at_least_once"


def test_null_fields_count_as_left_out():
    """`storage:` with all its entries commented out is valid, also for the API server; app.config keeps nulls."""
    app = load(
        GOOD.replace("replicas: 2", "replicas:")
        .replace("storage: {size: 10Gi, storageClassName: fast}", "storage:")
        .replace("inputTopic: lines", "inputTopic:")
    )
    assert (app.spec.replicas, app.spec.storage.size) == (1, "1Gi")
    assert app.spec.app.config["inputTopic"] is None


WRONG: list[tuple[str, Any, str]] = [
    ("apiVersion", "v1", "apiVersion: must be `streams.millrace.dev/v1alpha1`"),
    (
        "apiVersion",
        "streams.millrace.dev/v1",
        "apiVersion: must be `streams.millrace.dev/v1alpha1`, which is what this version",
    ),
    ("apiVersion", _ABSENT, "apiVersion: is required: write `apiVersion: streams.millrace.dev/v1alpha1`"),
    ("kind", "StreamApp", "kind: must be `StreamsApp`, which is what a manifest's kind is (got 'StreamApp')"),
    ("kind", _ABSENT, "kind: is required: write `kind: StreamsApp`"),
    ("metadata", _ABSENT, "metadata: is required: the resource's name and labels"),
    ("metadata", "wordcount", "metadata: must be a mapping (got 'wordcount')"),
    ("metadata/name", _ABSENT, "metadata.name: is required: the resource's name, unique in its namespace"),
    ("metadata/name", "WordCount", "metadata.name: must consist of lower-case letters, digits and `-`"),
    ("metadata/name", "a" * 53, "metadata.name: must have at most 52 characters"),
    ("metadata/name", "a\n", "metadata.name: must consist of lower-case letters"),
    ("metadata/namespace", 7, "metadata.namespace: must be a string (got 7)"),
    ("metadata/labels", {"a": 1}, "metadata.labels.a: must be a string (got 1)"),
    ("metadata/annotations", ["a"], "metadata.annotations: must be a mapping (got ['a'])"),
    ("metadata/lables", {}, "metadata.lables: unknown field; did you mean `labels`?"),
    ("spec", _ABSENT, "spec: is required: what is to run"),
    ("spec", [], "spec: must be a mapping (got [])"),
    ("specs", {}, "specs: unknown field; did you mean `spec`?"),
    ("spec/applicationId", _ABSENT, "spec.applicationId: is required: kafka's `application.id`"),
    ("spec/applicationId", "word count", "spec.applicationId: must consist of letters, digits, `.`, `_` and `-`"),
    ("spec/applicationId", "", "spec.applicationId: must not be empty (got '')"),
    ("spec/applicationId", "..", "spec.applicationId: must not be `.` or `..`"),
    ("spec/applicationId", "a" * 201, "spec.applicationId: must have at most 200 characters"),
    ("spec/applicationId", 12, "spec.applicationId: must be a string (got 12)"),
    ("spec/application_id", "a", "spec.application_id: unknown field; did you mean `applicationId`?"),
    ("spec/image", _ABSENT, "spec.image: is required: the container image"),
    ("spec/image", "my image", "spec.image: must be the name of a container image, without spaces (got 'my image')"),
    (
        "spec/imagePullPolicy",
        "always",
        "spec.imagePullPolicy: must be 'Always', 'IfNotPresent' or 'Never'; did you mean 'Always'?",
    ),
    ("spec/app", _ABSENT, "spec.app: is required: the program"),
    ("spec/app/entrypoint", _ABSENT, "spec.app.entrypoint: is required: the function that returns the topology"),
    ("spec/app/entrypoint", "wordcount.py", "spec.app.entrypoint: must be `package.module:callable`, for example"),
    ("spec/app/entrypoint", "word-count:main", "spec.app.entrypoint: must be `package.module:callable`"),
    ("spec/app/entrypoint", "m:" + "f" * 260, "spec.app.entrypoint: must have at most 253 characters"),
    ("spec/app/args", "--verbose", "spec.app.args: must be a list (got '--verbose')"),
    ("spec/app/args/0", 1, "spec.app.args[0]: must be a string (got 1)"),
    ("spec/app/config", "x", "spec.app.config: must be a mapping (got 'x')"),
    ("spec/app/entryPoint", "a:b", "spec.app.entryPoint: unknown field; did you mean `entrypoint`?"),
    ("spec/replicas", -1, "spec.replicas: must be at least 0 (got -1)"),
    ("spec/replicas", 10_001, "spec.replicas: must be at most 10000 (got 10001)"),
    ("spec/replicas", "2", "spec.replicas: must be an integer (got '2')"),
    ("spec/replicas", 1.5, "spec.replicas: must be an integer (got 1.5)"),
    ("spec/replicas", True, "spec.replicas: must be an integer (got true)"),
    ("spec/kafka/bootstrapServers", None, "spec.kafka: bootstrapServers must be given: addresses (host:port)"),
    ("spec/threads", 0, "spec.threads: must be at least 1 (got 0)"),
    ("spec/threads", 257, "spec.threads: must be at most 256"),
    ("spec/kafka", _ABSENT, "spec.kafka: is required: the Kafka cluster"),
    ("spec/kafka/bootstrapServers", _ABSENT, "spec.kafka: bootstrapServers must be given: addresses (host:port)"),
    ("spec/kafka/bootstrapServers", [], "spec.kafka.bootstrapServers: must have at least 1 (got [])"),
    ("spec/kafka/bootstrapServers", "kafka:9092", "spec.kafka.bootstrapServers: must be a list (got 'kafka:9092')"),
    (
        "spec/kafka/bootstrapServers/0",
        "kafka",
        "spec.kafka.bootstrapServers[0]: must be host:port, for example `kafka:9092`",
    ),
    (
        "spec/kafka/bootstrapServers/1",
        "k:99999",
        "spec.kafka.bootstrapServers[1]: must have a port between 1 and 65535",
    ),
    ("spec/kafka/bootstrapServer", [], "spec.kafka.bootstrapServer: unknown field; did you mean `bootstrapServers`?"),
    (
        "spec/kafka/config/num.stream.threads",
        2,
        "spec.kafka.config: must not set what the manifest or the operator sets: `num.stream.threads` is set by spec.threads",
    ),
    (
        "spec/kafka/config/enable.idempotence",
        True,
        'spec.kafka.config["enable.idempotence"]: must be a string or an integer: put it in quotes, as "true" (got true)',
    ),
    (
        "spec/kafka/config/linger.ms",
        0.5,
        'spec.kafka.config["linger.ms"]: must be a string or an integer: put it in quotes',
    ),
    ("spec/processing", "exactly_once_v2", "spec.processing: must be a mapping (got 'exactly_once_v2')"),
    (
        "spec/processing/guarantee",
        "exactly-once",
        "spec.processing.guarantee: must be 'at_least_once' or 'exactly_once_v2'; did you mean 'exactly_once_v2'?",
    ),
    ("spec/processing/commitInterval", "30", "spec.processing.commitInterval: must be a duration, for example `100ms`"),
    ("spec/processing/commitInterval", 30, "spec.processing.commitInterval: must be a string (got 30)"),
    ("spec/processing/garantee", "x", "spec.processing.garantee: unknown field; did you mean `guarantee`?"),
    ("spec/storage/size", "10 GB", "spec.storage.size: must be a quantity, for example 500m, 2 or 10Gi (got '10 GB')"),
    ("spec/storage/size", "0", "spec.storage.size: must be more than zero"),
    ("spec/storage/size", [], "spec.storage.size: must be a quantity, for example 500m, 2 or 10Gi (got [])"),
    ("spec/storage/storageClassName", "", "spec.storage.storageClassName: must not be empty"),
    (
        "spec/storage/class",
        "fast",
        "spec.storage.class: unknown field; the fields here are size, storageClassName, retention",
    ),
]


@pytest.mark.parametrize(
    ("path", "value", "expected"), WRONG, ids=[f"{path}={value!r:.20}" for path, value, _ in WRONG]
)
def test_each_wrong_field_gets_its_message(path, value, expected):
    """The message names the path of a wrong field, its rule and its value."""
    assert expected in message(changed(path, value))


def test_all_problems_are_reported_at_once_with_their_lines():
    """One message has several problems, each with its line."""
    text = (
        GOOD.replace("replicas: 2", "replicas: -2").replace("kafka-0:9092", "kafka-0").replace("guarantee", "guaranty")
    )
    told = message(text)
    assert told.startswith("The manifest has 3 problems:\n")
    assert "line 14: spec.replicas: must be at least 0 (got -2)" in told
    assert "line 17: spec.kafka.bootstrapServers[0]: must be host:port" in told
    assert "line 21: spec.processing.guaranty: unknown field; did you mean `guarantee`?" in told


def test_missing_field_is_reported_at_its_parent():
    """A missing field is reported on the line of the mapping that lacks it."""
    text = GOOD.replace('    bootstrapServers: [kafka-0:9092, "[::1]:9092"]\n', "")
    assert "line 16: spec.kafka: bootstrapServers must be given" in message(text)


@pytest.mark.parametrize("key", ["on", "y", "n", "No"])
def test_keys_that_yaml_reads_as_booleans_are_refused(key):
    """A key such as `n:` is reported instead of silently becoming True or False."""
    told = message(GOOD.replace("inputTopic", key))
    assert f'line 13: YAML reads the key `{key}` as a boolean: put it in quotes, as "{key}"' in told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spec: [\nx: 1\n", "line 3: not YAML"),
        ("a: 1\nb: 2\na: 3\n", "line 3: the key `a` is already given on line 1"),
        ("1: a\n", 'line 1: the key `1` is not a string: put it in quotes, as "1"'),
        ("? [a]\n: b\n", "line 1: a key must be a string, not a list or a mapping"),
        ("a: &a\n  b: *a\n", "an alias contains itself"),
        ("a:\n  - !!python/object:os.system {}\n", "line 2: the tag !!python/object:os.system is not allowed"),
        ("a: !secret x\n", "line 1: the tag !secret is not allowed"),
        ("a: [1, -.inf]\n", "line 1: -.inf is not a number that Kubernetes can store"),
        ("a: \x01\n", "not YAML: special characters are not allowed"),
        ("[" * 70 + "]" * 70 + "\n", "nested more than 64 levels deep"),
        ("- a\n- b\n", "a manifest must be a mapping with apiVersion, kind, metadata and spec (got ['a', 'b'])"),
    ],
)
def test_texts_that_are_not_manifests(text, expected):
    """Invalid YAML of any kind is an error with its line, never a crash."""
    assert expected in message(text)


def test_merge_keys_and_aliases_are_read():
    """YAML's anchors, aliases and merge keys work."""
    app = load(
        GOOD.replace(
            "config: {inputTopic: lines, since: 2026-01-01}", "config: {a: &x {k: 1}, b: {<<: *x, l: 2}, c: *x}"
        )
    )
    assert app.spec.app.config == {"a": {"k": 1}, "b": {"k": 1, "l": 2}, "c": {"k": 1}}


def test_other_documents_are_ignored():
    """A ConfigMap next to the StreamsApp is ignored; without a StreamsApp the message says what there is instead."""
    other = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n"
    assert load(other + GOOD).metadata.name == "wordcount"
    assert "holds no StreamsApp" in message(other)
    assert "it has ConfigMap (line 2)" in message(other)
    assert "it is empty" in message("---\n# nothing\n")


def test_misspelt_kind_is_not_taken_for_another_resource():
    """`kind: StreamApp` in a wrong group is reported as a mistake, not ignored as a foreign resource."""
    assert "kind: must be `StreamsApp`" in message(
        GOOD.replace("kind: StreamsApp", "kind: Streamapp").replace("streams.", "x.")
    )


def test_load_expects_exactly_one_streams_app():
    """`load` refuses two StreamsApps by name; `load_all` returns both."""
    two = GOOD + "---\n" + GOOD.replace("name: wordcount", "name: second")
    assert "holds 2 StreamsApps (wordcount, second) where one is expected" in message(two)
    assert [app.metadata.name for app in load_all(two)] == ["wordcount", "second"]


def test_manifest_read_back_from_a_cluster_is_accepted():
    """What `kubectl get -o yaml` prints, with the server's metadata and a newer status, is valid."""
    text = GOOD.replace(
        "  labels:", "  resourceVersion: '1'\n  uid: u\n  generation: 3\n  managedFields: []\n  labels:"
    )
    app = load(text + "status: {observedGeneration: 3, invented: later, conditions: []}\n")
    assert (app.metadata.uid, app.metadata.generation) == ("u", 3)
    assert app.status
    assert app.status.observed_generation == 3


def test_file_problems_name_the_file(tmp_path):
    """The message names a file that cannot be read or is not text, with the reason."""
    missing = tmp_path / "none.yaml"
    with pytest.raises(ManifestError, match=r"Cannot read the manifest .*none\.yaml: No such file"):
        load(missing)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match=r"binary\.yaml is not UTF-8 text"):
        load(str(binary))
    binary.write_text(GOOD.replace("replicas: 2", "replicas: x"))
    with pytest.raises(ManifestError, match=r"binary\.yaml has a problem:\n  line 14: spec\.replicas"):
        load(binary)


def test_check_returns_problems_as_values():
    """Callers other than the command line get path, rule and value separately."""
    app, problems = check(
        {"apiVersion": "streams.millrace.dev/v1alpha1", "kind": "StreamsApp", "metadata": {"name": "A"}}, StreamsApp
    )
    assert app is None
    assert [(problem.path, problem.value, problem.line) for problem in problems] == [
        (("metadata", "name"), "'A'", None),
        (("spec",), None, None),
    ]


def test_dump_and_load_are_inverse():
    """A model written as JSON data is read back as the same model."""
    app = load(GOOD)
    data = app.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert check(data, StreamsApp) == (app, [])
