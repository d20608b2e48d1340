"""The images of a test run, by name, and how to build them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.cluster import Cluster
from e2e.images.builder import ROOT, build_image, provide_base, saved, size_bytes, sole_use


@dataclass(frozen=True, slots=True)
class Images:
    """Names with tags, for manifests."""

    runtime: str = "localhost/millrace-runtime:e2e"
    operator: str = "localhost/millrace-operator:e2e"
    wordcount: str = "localhost/wordcount:e2e"
    apps: str = "localhost/apps:e2e"
    """The word count and `versions`, see `e2e/apps`."""
    backfill: str = "localhost/millrace-backfill:e2e"
    spark_apps: str = "localhost/spark-apps:e2e"
    """The same programs for Spark pods; only `provide_spark_image` builds it."""

    def sizes(self) -> dict[str, int]:
        """Return each image's size in bytes, including its base."""
        return {name: size_bytes(name) for name in (self.runtime, self.operator, self.wordcount, self.apps)}


def provide_images(
    cluster: Cluster, *, with_apps: bool = True, images: Images | None = None, source: Path = ROOT
) -> Images:
    """Build all images and load those that pods run into a cluster's node.

    Args:
        cluster: The cluster.
        with_apps: Whether applications will run, not only the operator.
        images: The names of the images.
        source: The checkout to build them from.

    Raises:
        ClusterError: A build failed.
    """
    images = images or Images()
    with sole_use():
        _build(images, source)
        archives = [saved(name) for name in ([images.operator, images.apps] if with_apps else [images.operator])]
    for archive in archives:
        cluster.import_image(archive)
    return images


def provide_spark_image(cluster: Cluster, images: Images, source: Path = ROOT) -> None:
    """Build the image of Spark pods, which is large, and load it into a cluster's node, unless it has been loaded before.

    Args:
        cluster: The cluster.
        images: The names of the images.
        source: The checkout to build it from.

    Raises:
        ClusterError: The build failed.
    """
    loaded = cluster.directory / "spark-image"
    if loaded.exists():
        return
    with sole_use():
        _build_spark(images, source)
        archive = saved(images.spark_apps)
    cluster.import_image(archive)
    loaded.touch()


def build_images(*, with_spark: bool) -> None:
    """Build all images and their archives, so that they are quickly provided later.

    Args:
        with_spark: Whether to also build the image of Spark pods.

    Raises:
        ClusterError: A build failed.
    """
    images = Images()
    with sole_use():
        _build(images, ROOT)
        for name in (images.operator, images.apps):
            saved(name)
        if with_spark:
            _build_spark(images, ROOT)
            saved(images.spark_apps)


def _build(images: Images, source: Path) -> None:
    base = provide_base()
    for name, target in ((images.runtime, "runtime"), (images.operator, "operator")):
        build_image(name, source / "Dockerfile", context=source, target=target, arguments={"BASE_IMAGE": base})
    _build_apps(images.runtime, images.wordcount, images.apps, source)


def _build_spark(images: Images, source: Path) -> None:
    arguments = {"BASE_IMAGE": provide_base()}
    build_image(images.backfill, source / "Dockerfile", context=source, target="backfill", arguments=arguments)
    _build_apps(images.backfill, f"{images.spark_apps}-wordcount", images.spark_apps, source)


def _build_apps(runtime: str, wordcount: str, apps: str, source: Path) -> None:
    """Build the image `apps`, and below it `wordcount`, on an image with Millrace."""
    example, versions = source / "examples/wordcount", source / "e2e/apps"
    build_image(wordcount, example / "Dockerfile", context=example, arguments={"RUNTIME_IMAGE": runtime})
    build_image(apps, versions / "Dockerfile", context=versions, arguments={"WORDCOUNT_IMAGE": wordcount})
