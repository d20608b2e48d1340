"""The pages that people write: their programs run, their manifests are valid, and what they mention exists."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import forked
from tests.waiting import wait_until

from millrace import KafkaStreams, TopologyTestDriver
from millrace.dsl import StreamsBuilder
from millrace.manifest import StreamsApp, StreamsBackfill, StreamsReset
from millrace.serdes import Serdes

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [
    *("serdes.md", "time.md", "processors.md", "errors.md", "testing.md"),
    *("from-java.md", "from-faust.md", "from-quix.md"),
]
PAGES = [
    *("install.md", "getting-started.md", "brokers.md", "upgrades.md", "gitops.md"),
    *("operations.md", "conditions.md", "README.md", "migrating.md", "development.md"),
    *("tutorial.md", "kafka-streams.md", "cli.md", *GUIDES),
]
CHART = DOCS.parent / "charts/millrace-operator"
BROKER = "localhost:9092"
"""What pages call the broker."""


def blocks(page: str, language: str, title: str = "") -> list[str]:
    """Return a page's code blocks in a language that have this title."""
    first = f'{language} title="{title}"' if title else language
    return re.findall(rf"^```{re.escape(first)}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def run(page: str, broker: str = BROKER) -> dict[str, Any]:
    """Run a page's Python as one program, examples with `>>>` as doctests, and return its names."""
    scope: dict[str, Any] = {"__name__": page}
    for block in blocks(page, "python"):
        code = block.replace(BROKER, broker)
        if code.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(code, scope, page, page, 0)
            failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
            assert tried > 0
            assert failed == 0
            scope.update(test.globs)
        else:
            try:
                exec(compile(code, page, "exec", dont_inherit=True), scope)
            except BaseException:
                if isinstance(streams := scope.get("streams"), KafkaStreams):
                    streams.close(60)  # or its threads would run on during other tests
                raise
    return scope


def documents(page: str) -> list[dict[str, Any]]:
    """Return all YAML documents on a page."""
    return [item for block in blocks(page, "yaml") for item in yaml.safe_load_all(block)]


@pytest.mark.parametrize("page", PAGES)
def test_manifests_are_valid(page: str) -> None:
    """Every resource of Millrace on a page is one that the API server accepts."""
    models = {"StreamsApp": StreamsApp, "StreamsReset": StreamsReset, "StreamsBackfill": StreamsBackfill}
    for document in documents(page):
        if document.get("kind") in models:
            models[document["kind"]].model_validate(document)


def test_security_of_the_first_application_is_valid() -> None:
    """The page's security settings fit into the manifest above them."""
    manifest, security = documents("getting-started.md")
    manifest["spec"]["kafka"] |= security["spec"]["kafka"]
    assert StreamsApp.model_validate(manifest).spec.kafka.auth


@pytest.mark.parametrize("number", range(len(documents("brokers.md"))))
def test_every_way_to_brokers_is_valid(number: int) -> None:
    """The example for each kind of broker is complete: a manifest needs nothing else for it."""
    manifest = documents("getting-started.md")[0]
    example = documents("brokers.md")[number]["spec"]
    manifest["spec"] |= example
    spec = StreamsApp.model_validate(manifest).spec
    assert spec.kafka.auth or spec.kafka.binding_secret_ref or spec.pod_template.env_from


def test_program_of_the_first_application_counts_words() -> None:
    """The program runs unchanged, with the settings of the manifest below it."""
    builder = StreamsBuilder()
    run("getting-started.md")["topology"](builder)
    config = documents("getting-started.md")[0]["spec"]["kafka"]["config"]
    with TopologyTestDriver(builder.build(), config) as driver:
        text = Serdes.string()
        driver.create_input_topic("lines", text, text).pipe_input(None, "to be or not to be")
        counts = driver.create_output_topic("word-counts", text, Serdes.long()).read_key_values_to_map()
    assert counts == {"to": 2, "be": 2, "or": 1, "not": 1}


@pytest.mark.parametrize("page", GUIDES)
def test_programs_of_a_guide_run(page: str) -> None:
    """Every block of Python works as shown, and what looks like a test passes."""
    tests = [value for name, value in run(page).items() if name.startswith("test_")]
    for test in tests:
        test()
    assert tests or any(">>> " in block for block in blocks(page, "python"))


def test_only_programs_of_other_libraries_do_not_run() -> None:
    """A block with a title is a file of the tutorial, or valid Python for a library that is not installed here."""
    for page in DOCS.glob("*.md"):
        titles = set(re.findall(r"^```python (.+)$", page.read_text(), re.MULTILINE))
        others = {"from-faust.md": {'title="Faust"'}, "from-quix.md": {'title="Quix Streams"'}}.get(page.name, set())
        assert titles == (FILES if page.name == "tutorial.md" else others), page.name
    for page, title in (("from-faust.md", "Faust"), ("from-quix.md", "Quix Streams")):
        for block in blocks(page, "python", title):
            compile(block, page, "exec")


FILES = {f'title="{name}"' for name in ("totals.py", "test_totals.py", "topics.py")}


@pytest.mark.broker
def test_tutorial_works_as_written(own_kafka: Any, tmp_path: Path) -> None:
    """The tutorial's files, run in its order against a real broker, print what the page shows."""
    broker = own_kafka().bootstrap_servers
    for title in FILES:
        name = title.split('"')[1]
        (code,) = blocks("tutorial.md", "python", name)
        (tmp_path / name).write_text(code.replace(BROKER, broker))

    def python(*arguments: str, cold: str = "") -> str:
        command = [sys.executable, *arguments]
        done = forked.run(command, cold=cold, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def millrace(command: str) -> str:
        (block,) = (block for block in blocks("tutorial.md", "sh") if block.startswith(f"millrace dev {command}"))
        return python("-m", "millrace.cli", *shlex.split(block.replace(BROKER, broker))[1:])

    def records(text: str) -> list[tuple[str, int]]:
        return [(record["key"], record["value"]) for record in map(json.loads, text.splitlines())]

    assert "2 passed" in python("-m", "pytest", "-q", cold="pytest rewrites what it imports")
    python("topics.py")
    log = tmp_path / "log"
    with log.open("w") as to_log:
        running = forked.Popen([sys.executable, "totals.py"], cwd=tmp_path, stderr=to_log)
        try:
            millrace("produce")
            (expected,) = blocks("tutorial.md", "json", "It prints")
            wait_until(lambda: records(millrace("consume")) == records(expected), log.read_text, timeout_s=180)
            running.send_signal(signal.SIGINT)
            assert running.wait(120) == 0, log.read_text()
        finally:
            running.kill()
            running.wait()


@pytest.mark.broker
def test_programs_of_the_page_about_kafka_streams_run(own_kafka: Any) -> None:
    """The page's program starts, looks at itself, pauses and closes, on a real broker."""
    kafka = own_kafka()
    kafka.create_topics("lines", "shouts", partitions=2)
    run("kafka-streams.md", kafka.bootstrap_servers)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link leads to an existing file, and every anchor to one of its headings."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", (DOCS / page).read_text()):
        name, _, anchor = target.partition("#")
        path = (DOCS / name) if name else DOCS / page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target


@pytest.mark.parametrize("page", PAGES)
def test_values_of_the_chart_exist(page: str) -> None:
    """Every value that a page sets exists in the chart."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in re.findall(r"--set '?([\w.]+)=", (DOCS / page).read_text()):
        found = values
        for part in path.split("."):
            assert part in found, path
            found = found[part]


def test_conditions_are_linked() -> None:
    """The operations guide links to the table of conditions."""
    assert "(conditions.md)" in (DOCS / "operations.md").read_text()
