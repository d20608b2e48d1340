"""The first application in `docs/getting-started.md`, exactly as on the page: its files, its manifest, its commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from e2e.cluster import Cluster
from e2e.images.builder import build_image, save, sole_use
from e2e.images.catalogue import Images, build
from e2e.support.application import KUBECTL_PATIENCE, Application
from e2e.support.word_count import Words
from millrace.dev.kafka import EmbeddedKafka

PAGE = Path(__file__).parents[1] / "docs/getting-started.md"


def blocks(language: str) -> list[str]:
    """Return the page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def image(cluster: Cluster, images: Images, tmp_path: Path) -> str:
    """Build the page's image from the page's files and load it into the node."""
    program = "\n".join(blocks("python"))
    (dockerfile,) = blocks("dockerfile")
    assert dockerfile.startswith("FROM registry.example.com/millrace-runtime:")
    (tmp_path / "wordcount.py").write_text(program)
    (tmp_path / "Dockerfile").write_text(re.sub(r"^FROM \S+", f"FROM {images.runtime}", dockerfile))
    name, archive = "localhost/getting-started:e2e", tmp_path / "image.tar"
    with sole_use():
        build(images)
        build_image(name, tmp_path / "Dockerfile", context=tmp_path)
        save(name, archive)
    cluster.import_image(archive)
    return name


def test_first_application_runs_as_documented(cluster, operator, namespaces, image, kafka: EmbeddedKafka) -> None:
    """Written, described, built and applied, it counts; scaled, it still counts; deleted, it is gone and its volumes remain."""
    manifest: dict[str, Any] = yaml.safe_load(blocks("yaml")[0])
    manifest["spec"]["image"] = image
    manifest["spec"]["kafka"]["bootstrapServers"] = [kafka.bootstrap_servers]
    topics = [
        NewTopic(name, int(parts)) for name, parts in re.findall(r"--topic (\S+) --partitions (\d+)", PAGE.read_text())
    ]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_topics(topics).values():
        future.result(30)
    app = Application(cluster, namespaces(), manifest["metadata"]["name"], manifest["spec"])
    app.apply()
    app.kubectl("wait", "--for=condition=Ready", f"streamsapp/{app.name}", KUBECTL_PATIENCE)
    words = Words.of(kafka.bootstrap_servers, "lines", "word-counts")
    words.write(["to be or not to be"])
    words.wait_exact()
    app.wait_ready()
    listed = app.kubectl("get", "streamsapps").splitlines()
    (shown,) = re.findall(r"^(NAME +READY.*)\n(.*)$", PAGE.read_text(), re.MULTILINE)
    assert listed[0].split() == shown[0].split()
    assert listed[1].split()[:4] == shown[1].split()[:4]
    app.kubectl("scale", "streamsapp", app.name, "--replicas=4")
    app.spec["replicas"] = 4
    app.wait_ready()
    words.write(["to be or not to be"])
    words.wait_exact()
    app.delete()
    app.wait("no pods", lambda: not app.objects("pods"))
    assert len(app.objects("pvc")) == 4
