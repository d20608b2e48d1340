"""The images of a test run, by name, and how to build them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.cluster import Cluster
from e2e.images.builder import ROOT, archive_of, build_image, built_from, keep, name_of_base, provide_base, sole_use

_SOURCES = (
    *("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "requirements-*.lock"),
    *(f"{folder}/**/*" for folder in ("runtime", "operator", "docker", "examples/wordcount", "e2e/apps")),
)
"""What the images are built from, in a checkout."""


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
    images, key = images or Images(), key_of(source)
    names = [images.operator, images.apps] if with_apps else [images.operator]
    archives = [archive_of(name, key) for name in names]
    if not all(archive.exists() for archive in archives):
        with sole_use():
            build(images, source)
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
    archive = archive_of(images.spark_apps, key_of(source))
    if not archive.exists():
        with sole_use():
            _build_spark(images, source)
    cluster.import_image(archive)
    loaded.touch()


def build_images(*, with_spark: bool) -> None:
    """Build all images and their archives, so that they are quickly provided later.

    Args:
        with_spark: Whether to also build the image of Spark pods.

    Raises:
        ClusterError: A build failed.
    """
    images, key = Images(), key_of(ROOT)
    with sole_use():
        build(images)
        if with_spark and not archive_of(images.spark_apps, key).exists():
            _build_spark(images, ROOT)


def build(images: Images, source: Path = ROOT) -> None:
    """Build the images that runs need, and their archives, unless they are already built from this: for `sole_use` only.

    Looking whether anything has changed takes buildah as much processor time as half of a build.

    Args:
        images: The names of the images.
        source: The checkout to build them from.

    Raises:
        ClusterError: A build failed.
    """
    key, current = key_of(source), built_from(images.runtime)
    archives = [archive_of(name, key) for name in (images.operator, images.apps)]
    if current.exists() and current.read_text() == key and all(archive.exists() for archive in archives):
        return
    current.unlink(missing_ok=True)
    base = provide_base()
    for name, target in ((images.runtime, "runtime"), (images.operator, "operator")):
        build_image(name, source / "Dockerfile", context=source, target=target, arguments={"BASE_IMAGE": base})
    _build_apps(images.runtime, images.wordcount, images.apps, source)
    for name in (images.operator, images.apps):
        keep(name, key)
    current.write_text(key)


def key_of(source: Path) -> str:
    """Return a hash of everything that a checkout's images are built from."""
    digest = hashlib.sha256(name_of_base().encode())
    for pattern in _SOURCES:
        for file in sorted(path for path in source.glob(pattern) if path.is_file() and "__pycache__" not in path.parts):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(source)} {file.stat().st_mode} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _build_spark(images: Images, source: Path) -> None:
    arguments = {"BASE_IMAGE": provide_base()}
    build_image(images.backfill, source / "Dockerfile", context=source, target="backfill", arguments=arguments)
    _build_apps(images.backfill, f"{images.spark_apps}-wordcount", images.spark_apps, source)
    keep(images.spark_apps, key_of(source))


def _build_apps(runtime: str, wordcount: str, apps: str, source: Path) -> None:
    """Build the image `apps`, and below it `wordcount`, on an image with Millrace."""
    example, versions = source / "examples/wordcount", source / "e2e/apps"
    build_image(wordcount, example / "Dockerfile", context=example, arguments={"RUNTIME_IMAGE": runtime})
    build_image(apps, versions / "Dockerfile", context=versions, arguments={"WORDCOUNT_IMAGE": wordcount})
