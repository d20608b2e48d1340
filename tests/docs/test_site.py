"""The site: builds without a warning, has every page, and a reference of every public name."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from tests.docs.inventory import ROOT

import millrace

pytestmark = pytest.mark.timeout(1200)  # the site is built in ten seconds of a processor's time, which others may share
CONFIG = ROOT / "docs" / "site" / "mkdocs.yml"
PACKAGES = [
    *(
        "config",
        "errors",
        "records",
        "dsl",
        "serdes",
        "serdes.schema_registry",
        "processor",
        "state",
        "query",
        "topology",
    ),
    *("instance", "testing", "testing.simulation", "assignment", "dev.kafka"),
]


def build(config, target):
    """Build a site strictly."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", target]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1000)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site and return its folder."""
    target = tmp_path_factory.mktemp("site")
    done = build(CONFIG, target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def inventory(site):
    """Return the names in the reference, with their kind and their place."""
    data = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(data).decode().splitlines()
    return {line.split()[0]: line.split()[3] for line in lines}


def test_every_page_is_in_the_site(site):
    """Every page of `docs/` and every example has a place in the navigation, and can be searched for."""
    home = (site / "index.html").read_text()
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    pages |= {path.relative_to(ROOT) for path in (ROOT / "examples").glob("*/README.md")}
    assert len(pages) > 40
    for page in pages - {Path("README.md")}:
        folder = page.parent if page.name == "README.md" else page.with_suffix("")
        assert f'href="{folder.as_posix()}/"' in home, page
        assert f"{folder.as_posix()}/" in found, page


def names_of(package):
    """Return the public names of a package."""
    module = importlib.import_module(f"millrace.{package}")
    defined = [
        name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    return [name for name in getattr(module, "__all__", defined) if not name.startswith("_")]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(inventory, package):
    """Each class, function and constant that a package exports is documented under the package's name."""
    missing = [name for name in names_of(package) if f"millrace.{package}.{name}" not in inventory]
    assert [
        name for name in missing if f"millrace.{package}.{name}.{name}" not in inventory
    ] == []  # `run` is a module too


def test_everything_in_millrace_is_in_the_reference():
    """What can be imported from `millrace` itself comes from a package whose names are checked."""
    assert set(millrace.__all__) <= {name for package in PACKAGES for name in names_of(package)}


def test_methods_and_their_examples_are_in_the_reference(site, inventory):
    """A method has an anchor of its own, and the example of a docstring is shown as code."""
    assert inventory["millrace.instance.KafkaStreams.close"] == "api/instance/#$"
    page = (site / "api" / "testing" / "index.html").read_text()
    assert 'id="millrace.testing.TopologyTestDriver.advance_wall_clock_time"' in page
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page
    assert "<blockquote>" not in page
    assert "Example::" not in (site / "api" / "instance" / "index.html").read_text()


def test_examples_show_their_files(site):
    """An example's page ends with the files that its README links to, and other pages link to it."""
    page = (site / "examples" / "joins" / "index.html").read_text()
    assert 'href="#receipts-py"' in page
    assert 'id="receipts-py"' in page
    assert 'href="../examples/joins/"' in (site / "tutorial" / "index.html").read_text()


def test_files_outside_the_site_are_not_linked(site):
    """A link to a file of the repository that the site does not have becomes text."""
    page = (site / "inventory" / "index.html").read_text()
    assert "test_graph.py" not in page
    assert "../tests/" not in page


def test_broken_links_and_anchors_are_errors(tmp_path):
    """A page that links to nothing does not build: each such link counts against it."""
    docs, config = tmp_path / "docs", tmp_path / "mkdocs.yml"
    docs.mkdir()
    broken = ["gone.md", "#gone", "other.md#gone", "../gone/README.md"]
    links = " ".join(f"[gone]({target})" for target in broken)
    (docs / "index.md").write_text(f"# Home\n\n{links} [other](other.md#here)\n")
    (docs / "other.md").write_text("# Other\n\n## Here\n")
    config.write_text(
        f"INHERIT: {CONFIG}\ndocs_dir: docs\nexclude_docs: ''\nhooks: []\nplugins: []\nnav: [index.md, other.md]\n"
    )
    done = build(config, tmp_path / "site")
    assert done.returncode != 0
    assert f"Aborted with {len(broken)} warnings in strict mode" in done.stdout + done.stderr
    for target in broken:
        assert f"link '{target}'" in done.stderr
    (docs / "index.md").write_text("# Home\n\n[other](other.md#here)\n")
    assert build(config, tmp_path / "site").returncode == 0
