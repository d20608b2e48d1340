"""The pages about Kubernetes: their manifests are valid, their program runs, and what they mention exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace import TopologyTestDriver
from millrace.dsl import StreamsBuilder
from millrace.manifest import StreamsApp, StreamsBackfill, StreamsReset
from millrace.serdes import Serdes

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    *("install.md", "getting-started.md", "brokers.md", "upgrades.md", "gitops.md"),
    *("operations.md", "conditions.md", "README.md", "migrating.md", "development.md"),
]
CHART = DOCS.parent / "charts/millrace-operator"


def blocks(page: str, language: str) -> list[str]:
    """Return a page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


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
    scope: dict[str, Any] = {}
    program = "".join(blocks("getting-started.md", "python"))
    exec(compile(program, "wordcount.py", "exec"), scope)
    builder = StreamsBuilder()
    scope["topology"](builder)
    config = documents("getting-started.md")[0]["spec"]["kafka"]["config"]
    with TopologyTestDriver(builder.build(), config) as driver:
        text = Serdes.string()
        driver.create_input_topic("lines", text, text).pipe_input(None, "to be or not to be")
        counts = driver.create_output_topic("word-counts", text, Serdes.long()).read_key_values_to_map()
    assert counts == {"to": 2, "be": 2, "or": 1, "not": 1}


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
