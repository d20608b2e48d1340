"""The images of a test run, by name, and how to build them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.cluster import Cluster
from e2e.images.builder import ROOT, build_image, provide_base, save, size_bytes, sole_use


@dataclass(frozen=True, slots=True)
class Images:
    """Names with tags, for manifests."""

    runtime: str = "localhost/millrace-runtime:e2e"
    operator: str = "localhost/millrace-operator:e2e"
    wordcount: str = "localhost/wordcount:e2e"
    apps: str = "localhost/apps:e2e"
    """The word count and `versions`, see `e2e/apps`."""

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
    with tempfile.TemporaryDirectory(prefix="millrace-images-") as directory:
        with sole_use():
            _build(images, source)
            names = [images.operator, images.apps] if with_apps else [images.operator]
            archives = [Path(directory) / f"{number}.tar" for number in range(len(names))]
            for name, archive in zip(names, archives, strict=True):
                save(name, archive)
        for archive in archives:
            cluster.import_image(archive)
    return images


def _build(images: Images, source: Path) -> None:
    base = provide_base()
    for name, target in ((images.runtime, "runtime"), (images.operator, "operator")):
        build_image(name, source / "Dockerfile", context=source, target=target, arguments={"BASE_IMAGE": base})
    wordcount, apps = source / "examples/wordcount", source / "e2e/apps"
    runtime, example = {"RUNTIME_IMAGE": images.runtime}, {"WORDCOUNT_IMAGE": images.wordcount}
    build_image(images.wordcount, wordcount / "Dockerfile", context=wordcount, arguments=runtime)
    build_image(images.apps, apps / "Dockerfile", context=apps, arguments=example)
