"""An operator that is upgraded under running applications: their pods are replaced once, as in a roll, and no count is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from e2e.cluster import Cluster
from e2e.helm import Release, image_values
from e2e.images.builder import ROOT
from e2e.images.catalogue import Images, provide_images
from e2e.support.application import Application
from e2e.support.audit import writes_of
from e2e.support.word_count import Words

pytestmark = [pytest.mark.disturbs, pytest.mark.thorough]

BEFORE = "f3af01e"
"""The version to upgrade from: the last one whose pods do not say which template they were built from."""
RESYNC = {"operator": {"resyncSeconds": 5}}


@pytest.fixture(scope="module")
def source_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The earlier version's sources, from the checkout's history."""
    folder = tmp_path_factory.mktemp("before")
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=False)
    assert archive.returncode == 0, (
        f"{BEFORE} is not in the history; `git fetch --unshallow` brings it: {archive.stderr!r}"
    )
    subprocess.run(["tar", "--extract"], input=archive.stdout, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def images_before(cluster: Cluster, images: Images, source_before: Path) -> Images:
    """The earlier version's images, including the applications: an upgrade of the operator leaves these as they are."""
    names = ("runtime", "operator", "wordcount", "apps")
    earlier = Images(**{name: getattr(images, name).rpartition(":")[0] + ":before" for name in names})
    return provide_images(cluster, images=earlier, source=source_before)


@pytest.fixture
def earlier(
    operator: Release, images_before: Images, source_before: Path, operator_values: Mapping[str, Any]
) -> Iterator[None]:
    """Install the earlier version from its own chart; at the end the newest one is installed."""
    chart = source_before / "charts/millrace-operator"
    Release(operator.cluster, operator.namespace, operator.name, chart).apply(image_values(images_before.operator))
    yield
    operator.apply(operator_values)


def uids(app: Application) -> dict[str, str]:
    """Return the existing pods."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in app.pods()}


def generations(app: Application) -> set[int]:
    """Return the group's generations, as its members know them: every rebalance starts another."""
    return {app.instance(pod)["group"]["generation"] for pod in uids(app)}


def deletions(cluster: Cluster, operator: Release, app: Application) -> list[str]:
    """Return the names of the application's pods that the operator has deleted, in order."""
    before = f"delete /api/v1/namespaces/{app.namespace}/pods/"
    found = (write.what.partition("?")[0] for write in writes_of(cluster, operator.namespace, operator.name))
    return [what.removeprefix(before) for what in found if what.startswith(f"{before}{app.name}-")]


def passes(cluster: Cluster, operator: Release) -> float:
    """Return how many passes over applications the operator has made."""
    path = f"/api/v1/namespaces/{operator.namespace}/services/{operator.name}:http/proxy/metrics"
    lines = cluster.kubectl("get", "--raw", path).splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("millrace_operator_reconcile_seconds_count")
    )


def versions(app: Application) -> dict[str, str]:
    """Return the versions of the objects that the operator writes for an application."""
    kinds = ("streamsapp", "statefulset")
    return {kind: item["metadata"]["resourceVersion"] for kind in kinds if (item := app.object(kind)) is not None}


def wait_for_passes(cluster: Cluster, operator: Release, app: Application, count: int) -> None:
    """Wait until the operator has checked everything this many more times."""
    end = passes(cluster, operator) + count
    app.wait(f"{count} passes", lambda: passes(cluster, operator) >= end)


@pytest.mark.usefixtures("earlier")
def test_upgraded_operator_rolls_pods_once_and_then_rests(
    cluster: Cluster,
    operator: Release,
    operator_values: Mapping[str, Any],
    images_before: Images,
    word_count,
    words: Words,
) -> None:
    """One pod after another is rebuilt from the new template, with its tasks and state; then nothing is written any more."""
    app: Application = word_count(
        words,
        replicas=3,
        image=images_before.apps,
        upgrade={"gate": {"minStable": "1s", "readyTimeout": "5m"}},
        membership={"sessionTimeout": "5m"},
        kafka={"config": {"producer.transaction.timeout.ms": 120_000}},
    )
    app.apply()
    app.wait_ready()
    app.wait("stable", lambda: (state := app.status()).get("stableRevision") == state["currentRevision"])
    words.write(times=20)
    words.wait_exact()
    app.wait("all in one generation", lambda: len(generations(app)) == 1)
    group, old, revision = generations(app), uids(app), app.status()["currentRevision"]
    fewest = 3
    with words.load(40):
        operator.apply({**operator_values, **RESYNC})

        def rolled() -> bool:
            replaced = not set(old.values()) & set(uids(app).values())
            return replaced and app.condition("PodsCurrent").get("status") == "True"

        def count_running() -> None:
            nonlocal fewest
            fewest = min(fewest, sum(pod["status"]["phase"] == "Running" for pod in app.pods()))

        wait_until(rolled, app.story, 900, meanwhile=count_running, poll_s=0.2)
        app.wait_ready()
    words.wait_exact()
    assert deletions(cluster, operator, app) == [f"{app.name}-2", f"{app.name}-1", f"{app.name}-0"]
    assert fewest >= 2
    assert generations(app) == group
    assert [app.instance(pod)["restoration"]["restored_records"] for pod in uids(app)] == [0, 0, 0]
    assert app.status()["currentRevision"] == app.status()["stableRevision"] == revision

    def rests() -> bool:
        before = versions(app), uids(app)
        wait_for_passes(cluster, operator, app, 3)
        return before == (versions(app), uids(app))

    app.wait("no more writes", rests)
    assert len(deletions(cluster, operator, app)) == 3
