"""The jars of Apache Kafka, fetched without Maven: pinned, checked and cached.

`kafka-4.3.1.lock.json`, which `_jar_lock` generates, lists every jar with its size and SHA-256, so that the tested jars run,
wherever the bytes come from. A jar appears in the cache only when it is complete and verified (it is renamed into place); an
interrupted download is kept next to it as `.part` and resumed. One process downloads at a time, under a file lock; the
others then find the jars in the cache.

The repository's address comes from the variable `MILLRACE_MAVEN_REPOSITORY`, else from a mirror in Maven's own `settings.xml`,
else from the default of the resolver library. Jars that are already in Maven's local repository are used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import platformdirs

from millrace.errors import JarDownloadError

if TYPE_CHECKING:
    import requests

KAFKA_VERSION = "4.3.1"
LOCK_FILE = f"kafka-{KAFKA_VERSION}.lock.json"
_CONNECTIONS = 4
_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16
Advance = Callable[[int], None]
"""Tells the progress display that more bytes have arrived; may be called from any thread."""


class Bundle(StrEnum):
    """A named set of jars that form a class path."""

    KAFKA_BROKER = "kafka-broker"
    """The broker and controller (KRaft) with log4j."""
    KAFKA_STREAMS = "kafka-streams"
    """Java's Kafka Streams with RocksDB, for tests that compare with it."""
    KAFKA_STREAMS_TEST = "kafka-streams-test"
    """The same, with its test driver."""
    ECJ = "ecj"
    """Eclipse's Java compiler, which works without a JDK."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned file of a Maven repository."""

    group: str
    artifact: str
    version: str
    sha256: str
    size_bytes: int

    @property
    def path(self) -> str:
        """The jar's path in a repository, relative to its root."""
        folder = self.group.replace(".", "/")
        return f"{folder}/{self.artifact}/{self.version}/{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def cache_directory() -> Path:
    """Return the directory for downloads: `MILLRACE_CACHE_DIR`, or the user's cache directory."""
    override = os.environ.get("MILLRACE_CACHE_DIR")
    return Path(override) if override else platformdirs.user_cache_path("millrace", appauthor=False)


@cache
def locked_jars(bundle: Bundle) -> tuple[Jar, ...]:
    """Return the pinned jars of a bundle, in class-path order."""
    lock = json.loads(resources.files(__package__).joinpath(LOCK_FILE).read_text())
    jars = []
    for coordinate in lock["bundles"][bundle]:
        group, artifact, version = coordinate.split(":")
        pinned = lock["jars"][coordinate]
        jars.append(Jar(group, artifact, version, pinned["sha256"], pinned["size"]))
    return tuple(jars)


def resolve(bundle: Bundle) -> list[Path]:
    """Return the jars of a bundle as local files, downloading those that are missing.

    Args:
        bundle: What to download: the broker is 45 MB, streams 101 MB, ECJ 3 MB.

    Raises:
        JarDownloadError: The repository cannot be reached, or served bytes that are not the pinned ones.
    """
    return fetch(locked_jars(bundle), cache_directory() / "jars", f"Apache Kafka {KAFKA_VERSION} ({bundle})")


def fetch(jars: tuple[Jar, ...], directory: Path, title: str, repository: str | None = None) -> list[Path]:
    """Return `jars` as files under `directory`, downloading those that are missing or incomplete.

    Args:
        jars: The jars to return.
        directory: The root of the cache; created if missing.
        title: The name of the download in the progress display.
        repository: The Maven repository's root URL; by default found as the module's docstring says.

    Raises:
        JarDownloadError: The repository cannot be reached, or served bytes that are not the pinned ones.
    """
    files = [directory / jar.path for jar in jars]
    if not _missing(jars, directory):
        return files
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = [jar for jar in _missing(jars, directory) if not _take_from_maven(jar, directory)]
        if wanted:
            _download_all(wanted, directory, title, repository or repository_url())
    return files


def repository_url() -> str:
    """Return the root URL of the Maven repository to download from."""
    named = os.environ.get("MILLRACE_MAVEN_REPOSITORY") or _settings_mirror()
    if named:
        return named.rstrip("/")
    try:
        from jgo.maven import MavenContext  # noqa: PLC0415 (an extra's dependency, needed for downloads only)
    except ImportError as error:
        message = (
            "Downloading Kafka needs the package 'jgo', which knows the public Maven repository: "
            "`pip install 'millrace-streams[dev-kafka]'`, or set MILLRACE_MAVEN_REPOSITORY to the URL of a Maven repository"
        )
        raise JarDownloadError(message) from error
    return str(next(iter(MavenContext().remote_repos.values()))).rstrip("/")


def _missing(jars: tuple[Jar, ...], directory: Path) -> list[Jar]:
    return [jar for jar in jars if _size(directory / jar.path) != jar.size_bytes]


def _settings_mirror() -> str | None:
    settings = Path.home() / ".m2" / "settings.xml"
    try:
        root = ET.parse(settings).getroot()  # noqa: S314 (the user's own configuration file)
    except (OSError, ET.ParseError):
        return None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        selected = {name.strip() for name in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        if selected & {"*", "central", "external:*"} and "!central" not in selected:
            return (mirror.findtext("{*}url") or "").strip() or None
    return None


def _take_from_maven(jar: Jar, directory: Path) -> bool:
    local = Path(os.environ.get("M2_REPO") or Path.home() / ".m2" / "repository") / jar.path
    if _size(local) != jar.size_bytes or _sha256(local) != jar.sha256:
        return False
    part = _part_of(jar, directory)
    shutil.copyfile(local, part)
    part.replace(directory / jar.path)
    return True


def _part_of(jar: Jar, directory: Path) -> Path:
    target = directory / jar.path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_suffix(".jar.part")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download_all(jars: list[Jar], directory: Path, title: str, repository: str) -> None:
    try:
        import requests  # noqa: PLC0415 (an extra's dependency, needed for downloads only)
        from requests.adapters import HTTPAdapter  # noqa: PLC0415
        from urllib3.util import Retry  # noqa: PLC0415
    except ImportError as error:
        message = "Downloading Kafka needs the package 'requests': `pip install 'millrace-streams[dev-kafka]'`"
        raise JarDownloadError(message) from error
    session = requests.Session()
    adapter = HTTPAdapter(
        max_retries=Retry(total=4, connect=2, backoff_factor=0.3, status_forcelist=(429, 502, 503, 504))
    )
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    total_bytes = sum(jar.size_bytes for jar in jars)
    with (
        session,
        _download_progress(title, f"{len(jars)} jars from {repository}", total_bytes) as advance,
        ThreadPoolExecutor(_CONNECTIONS) as pool,
    ):
        downloads = [pool.submit(_download, session, repository, jar, directory, advance) for jar in jars]
        try:
            for download in downloads:
                download.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _download(session: requests.Session, repository: str, jar: Jar, directory: Path, advance: Advance) -> None:
    part = _part_of(jar, directory)
    url = f"{repository}/{jar.path}"
    resumed = part.exists()
    _complete(session, url, part, jar, advance)
    if resumed and _sha256(part) != jar.sha256:
        part.unlink()
        _complete(session, url, part, jar, advance)
    actual = _sha256(part)
    if actual != jar.sha256:
        part.unlink()
        message = (
            f"{url} is not the pinned file: its SHA-256 is {actual}, expected {jar.sha256}. Nothing was installed. "
            "Check the proxy or mirror it came from, or set MILLRACE_MAVEN_REPOSITORY to another repository"
        )
        raise JarDownloadError(message)
    part.replace(directory / jar.path)


def _complete(session: requests.Session, url: str, part: Path, jar: Jar, advance: Advance) -> None:
    """Download the rest of `part`, resuming as long as every attempt makes progress."""
    import requests  # noqa: PLC0415 (present: `_download_all` checked)

    have_bytes = _size(part)
    advance(min(have_bytes, jar.size_bytes))
    while have_bytes < jar.size_bytes:
        try:
            _append(session, url, part, advance)
        except requests.RequestException as error:
            if _size(part) <= have_bytes:
                message = (
                    f"Cannot download {jar} from {url}: {error}. Connect to the network and try again (partial downloads are "
                    "kept), set HTTPS_PROXY and REQUESTS_CA_BUNDLE if there is a proxy, set MILLRACE_MAVEN_REPOSITORY to a "
                    f"repository that can be reached, or copy a filled cache from another machine to {cache_directory()}"
                )
                raise JarDownloadError(message) from error
        if _size(part) <= have_bytes:
            break
        have_bytes = _size(part)


def _append(session: requests.Session, url: str, part: Path, advance: Advance) -> None:
    have_bytes = _size(part)
    headers = {"Range": f"bytes={have_bytes}-"} if have_bytes else {}
    with session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
        response.raise_for_status()
        continues = response.status_code == HTTPStatus.PARTIAL_CONTENT
        with part.open("ab" if continues else "wb") as file:
            for chunk in response.iter_content(_CHUNK_BYTES):
                file.write(chunk)
                advance(len(chunk))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _download_progress(title: str, source: str, total_bytes: int) -> Iterator[Advance]:
    """Show a download on standard error while the block runs: a bar at a terminal, two plain lines in a log.

    Args:
        title: What is downloaded.
        source: How many files from where; the bar, which has one line, leaves it out.
        total_bytes: The size of the download.
    """
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 (slow to import, needed at a terminal only)
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(title, total=total_bytes)
            yield lambda arrived: progress.advance(task, arrived)
        return
    started = time.monotonic()
    print(f"Fetching {title}: {source}, {total_bytes / 1e6:.0f} MB", file=sys.stderr, flush=True)  # noqa: T201
    yield lambda _bytes: None
    print(f"Fetched {total_bytes / 1e6:.0f} MB in {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)  # noqa: T201
