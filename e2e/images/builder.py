"""Builds images with buildah, without a daemon or a registry.

Stages may use the host's network, certificate authorities and package index; their configuration is mounted while a stage runs
and is never part of an image. Layers are kept between runs in the user's cache directory.
"""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.build import e2e_cache
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import say

ROOT = Path(__file__).parents[2]
BASE = "localhost/millrace-base:bookworm"
_RECIPE = Path(__file__).with_name("base.Containerfile")
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_MOST_IMAGES = 500  # a run adds about 30, and the build after a removal does everything again
_INDEX_OPTIONS = {
    "index-url",
    "extra-index-url",
    "trusted-host",
    "proxy",
    "cert",
    "timeout",
    "default-timeout",
    "retries",
}
_DEBIAN = [
    "mmdebstrap",
    "--quiet",
    "--variant=essential",
    "--include=python3,python3-venv,libstdc++6,ca-certificates",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")),
    "bookworm",
]


def build_image(
    name: str,
    dockerfile: Path,
    *,
    context: Path = ROOT,
    target: str | None = None,
    arguments: Mapping[str, str] | None = None,
) -> None:
    """Build an image into buildah's store.

    Args:
        name: The image's name and tag.
        dockerfile: The Dockerfile.
        context: The directory that it copies from.
        target: The stage to stop at.
        arguments: Values of its ARGs.

    Raises:
        ClusterError: The build failed; the message has the end of its output.
    """
    with tempfile.NamedTemporaryFile("w", prefix="pip-", suffix=".conf") as pip_configuration:
        pip_configuration.write(_pip_configuration())
        pip_configuration.flush()
        mounts = {pip_configuration.name: "/etc/pip.conf"}
        if _AUTHORITIES.exists():
            mounts[str(_AUTHORITIES)] = str(_AUTHORITIES)
        command = ["bud", "--quiet", "--layers", "--isolation=chroot", "--network=host", f"--file={dockerfile}"]
        command += [f"--volume={outside}:{inside}:ro" for outside, inside in mounts.items()]
        command += [f"--build-arg={key}={value}" for key, value in (arguments or {}).items()]
        command += [f"--target={target}"] if target else []
        _buildah(*command, f"--tag={name}", str(context))


def name_of_base() -> str:
    """Return the name of the image that replaces `python:slim`; it tells what is in it."""
    return f"{BASE}-{hashlib.sha256(_RECIPE.read_bytes() + ' '.join(_DEBIAN).encode()).hexdigest()[:16]}"


def provide_base() -> str:
    """Create the image that replaces `python:slim`, Debian with Python, unless it exists, and return its name."""
    name = name_of_base()
    if _exists(name):
        return name
    say("Making the base image of Debian's packages (a minute, once)")
    with tempfile.TemporaryDirectory(prefix="millrace-base-") as directory:
        command = [*_DEBIAN, f"{directory}/rootfs.tar"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ClusterError(f"`{' '.join(command)}` failed: {result.stderr[-2000:]}")
        build_image(name, _RECIPE, context=Path(directory))
    return name


def save(name: str, archive: Path) -> None:
    """Write an image to a Docker archive, which containerd loads."""
    archive.unlink(missing_ok=True)
    _buildah("push", "--quiet", name, f"docker-archive:{archive}:{name}")


def archive_of(name: str, key: str) -> Path:
    """Return where the Docker archive of an image is kept, built from what has a key."""
    return e2e_cache() / "archives" / f"{_file_name(name)}-{key}.tar"


def keep(name: str, key: str) -> None:
    """Write an image to its archive, and remove older ones except the last: another run may be reading that."""
    archive = archive_of(name, key)
    archive.parent.mkdir(exist_ok=True)
    part = archive.with_suffix(".part")
    save(name, part)
    part.replace(archive)
    earlier = sorted(archive.parent.glob(f"{_file_name(name)}-*.tar"), key=lambda path: path.stat().st_mtime)
    for path in earlier[:-2]:
        path.unlink()


def built_from(name: str) -> Path:
    """Return the file with the key of what the image of this name, and those built with it, were last built from."""
    return _store() / f"{_file_name(name)}.key"


def _file_name(image: str) -> str:
    return re.sub(r"[^\w.-]", "-", image)


@contextmanager
def sole_use() -> Iterator[None]:
    """Let only one process build and save at a time, since all checkouts share the store and its names.

    First it removes the remains of killed builds and, if there are many, unused layers.
    """
    _store().mkdir(parents=True, exist_ok=True)
    with (_store() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _buildah("rm", "--all")
        if len(_buildah("images", "--all", "--quiet").split()) > _MOST_IMAGES:
            _buildah("rmi", "--prune")
        yield


def _store() -> Path:
    return e2e_cache() / "buildah"


def _exists(name: str) -> bool:
    return _run_buildah(["inspect", "--type=image", name]).returncode == 0


def _buildah(*arguments: str) -> str:
    result = _run_buildah(arguments)
    if result.returncode:
        said = (result.stdout + result.stderr).strip()[-4000:]
        raise ClusterError(f"`buildah {' '.join(arguments)}` failed: {said}")
    return result.stdout


def _run_buildah(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = ["buildah", f"--root={_store() / 'root'}", f"--runroot={_store() / 'run'}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _pip_configuration() -> str:
    """Return the host's package index as a configuration file, wherever the host configures it."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
    parser = configparser.RawConfigParser()
    parser.add_section("global")
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        scope, _, option = key.rpartition(".")
        if option in _INDEX_OPTIONS and (scope == ":env:" or not parser.has_option("global", option)):
            parser.set("global", option, value.strip().strip("'"))
    with tempfile.TemporaryFile("w+") as file:
        parser.write(file)
        file.seek(0)
        return file.read()
