"""Jars are fetched from a repository that the test serves, which can simulate network failures."""

from __future__ import annotations

import hashlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millrace.dev import jars as jars_module
from millrace.dev.jars import Bundle, Jar, cache_directory, fetch, locked_jars, repository_url, resolve
from millrace.errors import JarDownloadError

SIZE = 300_000


class Repository:
    """A Maven repository on 127.0.0.1 that counts requests and can break off its answers."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.sends_at_most: int | None = None
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                wanted = self.headers.get("Range")
                repository.requests.append((self.path, wanted))
                body = repository.files.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted else 0
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                self.wfile.write(body[start:][: repository.sends_at_most])

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def add(self, artifact: str, size: int = SIZE) -> Jar:
        """Publish an artifact, and return it with its checksum."""
        content = (artifact.encode() * size)[:size]
        jar = Jar("org.example", artifact, "1.0", hashlib.sha256(content).hexdigest(), size)
        self.files[f"/{jar.path}"] = content
        return jar

    def close(self):
        """Stop the server."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def repository(monkeypatch, tmp_path):
    """Yield a running repository; there is no local Maven repository to fall back on."""
    monkeypatch.setenv("M2_REPO", str(tmp_path / "no-maven"))
    served = Repository()
    yield served
    served.close()


def jar_files(directory):
    """Return the names of all complete jars."""
    return {path.name for path in directory.rglob("*.jar")}


def test_jars_are_fetched_once_and_laid_out_as_in_a_repository(repository, tmp_path):
    """A fetched jar has the published bytes at its Maven path; fetching it again sends no request."""
    wanted = (repository.add("a"), repository.add("b"))

    files = fetch(wanted, tmp_path / "cache", "Test", repository.url)

    assert [file.relative_to(tmp_path / "cache").as_posix() for file in files] == [
        "org/example/a/1.0/a-1.0.jar",
        "org/example/b/1.0/b-1.0.jar",
    ]
    assert files[0].read_bytes() == repository.files[f"/{wanted[0].path}"]
    assert fetch(wanted, tmp_path / "cache", "Test", repository.url) == files
    assert len(repository.requests) == 2


def test_wrong_checksum_is_refused(repository, tmp_path):
    """A jar of the right size with other bytes is not installed; the error has the file, the checksums and what to do."""
    jar = repository.add("a")
    repository.files[f"/{jar.path}"] = b"x" * SIZE

    with pytest.raises(JarDownloadError, match=rf"a-1\.0\.jar is not the pinned file.*expected {jar.sha256}"):
        fetch((jar,), tmp_path, "Test", repository.url)

    assert not jar_files(tmp_path)


def test_interrupted_download_leaves_no_jar_and_is_resumed(repository, tmp_path):
    """A broken connection leaves only a partial file; the next fetch requests only the rest."""
    jar = repository.add("a")
    repository.sends_at_most = 0
    (tmp_path / jar.path).parent.mkdir(parents=True)
    part = (tmp_path / jar.path).with_suffix(".jar.part")
    part.write_bytes(repository.files[f"/{jar.path}"][:200_000])
    with pytest.raises(JarDownloadError, match=r"Cannot download org\.example:a:1\.0"):
        fetch((jar,), tmp_path, "Test", repository.url)
    assert not jar_files(tmp_path)

    repository.sends_at_most = None
    [file] = fetch((jar,), tmp_path, "Test", repository.url)

    assert repository.requests[-1] == (f"/{jar.path}", "bytes=200000-")
    assert file.read_bytes() == repository.files[f"/{jar.path}"]
    assert not part.exists()


def test_connection_that_keeps_breaking_makes_progress(repository, tmp_path):
    """A download that is interrupted repeatedly continues within the same fetch as long as bytes arrive."""
    jar = repository.add("a")
    repository.sends_at_most = 150_000

    [file] = fetch((jar,), tmp_path, "Test", repository.url)

    assert file.read_bytes() == repository.files[f"/{jar.path}"]
    assert len(repository.requests) > 1


def test_damaged_partial_file_is_fetched_again(repository, tmp_path):
    """A partial file with wrong bytes costs one more download, but is not an error."""
    jar = repository.add("a")
    part = (tmp_path / jar.path).with_suffix(".jar.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)

    [file] = fetch((jar,), tmp_path, "Test", repository.url)

    assert file.read_bytes() == repository.files[f"/{jar.path}"]


def test_truncated_jar_in_the_cache_is_replaced(repository, tmp_path):
    """A jar with another size than the pinned one is fetched again."""
    jar = repository.add("a")
    (tmp_path / jar.path).parent.mkdir(parents=True)
    (tmp_path / jar.path).write_bytes(b"short")

    [file] = fetch((jar,), tmp_path, "Test", repository.url)

    assert file.stat().st_size == SIZE


def test_fetching_at_the_same_time_downloads_once(repository, tmp_path):
    """Four threads that fetch the same jars at once get them all, with one request for each jar."""
    wanted = tuple(repository.add(name) for name in "abcdef")

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: fetch(wanted, tmp_path, "Test", repository.url), range(4)))

    assert all(file.stat().st_size == SIZE for files in results for file in files)
    assert len(repository.requests) == len(wanted)


def test_unreachable_repository_says_what_to_do(repository, tmp_path):
    """Without a network the error has the address, the proxy variables, and how to do without a network."""
    jar = repository.add("a")
    repository.close()

    with pytest.raises(
        JarDownloadError, match=r"Connect to the network.*REQUESTS_CA_BUNDLE.*MILLRACE_MAVEN_REPOSITORY"
    ):
        fetch((jar,), tmp_path, "Test", repository.url)


def test_missing_jar_is_reported(repository, tmp_path):
    """If the repository lacks a jar, the error has the requested address."""
    jar = repository.add("a")
    repository.files.clear()

    with pytest.raises(JarDownloadError, match=r"404.*a-1\.0\.jar"):
        fetch((jar,), tmp_path, "Test", repository.url)


def test_jar_in_mavens_local_repository_is_used(repository, tmp_path, monkeypatch):
    """A jar that Maven has already fetched is copied if its checksum is right, and nothing is downloaded."""
    jar = repository.add("a")
    monkeypatch.setenv("M2_REPO", str(tmp_path / "m2"))
    local = tmp_path / "m2" / jar.path
    local.parent.mkdir(parents=True)
    local.write_bytes(repository.files[f"/{jar.path}"])

    [file] = fetch((jar,), tmp_path / "cache", "Test", repository.url)

    assert file.read_bytes() == local.read_bytes()
    assert repository.requests == []


def test_plain_output_is_two_lines(repository, tmp_path, capsys):
    """Without a terminal a download prints what it fetches from where, and then how long it took."""
    fetch((repository.add("a"),), tmp_path, "Some jars", repository.url)

    error_output = capsys.readouterr().err.splitlines()
    assert error_output[0] == f"Fetching Some jars: 1 jars from {repository.url}, 0 MB"
    assert re.fullmatch(r"Fetched 0 MB in \d+\.\d s", error_output[1])


def test_mirror_of_mavens_settings_is_honoured(tmp_path, monkeypatch):
    """A mirror of everything in Maven's settings replaces the default repository; the variable overrides both."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MILLRACE_MAVEN_REPOSITORY", raising=False)
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors><mirror><id>m</id>'
        "<mirrorOf>external:*,!other</mirrorOf><url>http://127.0.0.1:1/mirror/</url></mirror></mirrors></settings>",
    )
    assert repository_url() == "http://127.0.0.1:1/mirror"

    monkeypatch.setenv("MILLRACE_MAVEN_REPOSITORY", "http://127.0.0.1:2/other")
    assert repository_url() == "http://127.0.0.1:2/other"


def test_default_repository_comes_from_the_resolver_library(tmp_path, monkeypatch):
    """Without the variable and settings, the resolver library supplies the address."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MILLRACE_MAVEN_REPOSITORY", raising=False)

    assert repository_url().startswith("https://")


def test_cache_directory_can_be_set(monkeypatch, tmp_path):
    """`MILLRACE_CACHE_DIR` replaces the user's cache directory."""
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path))

    assert cache_directory() == tmp_path


@pytest.mark.parametrize("bundle", list(Bundle))
def test_every_locked_jar_is_pinned(bundle):
    """Each jar of each bundle has a full SHA-256, a size, and its own path."""
    pinned = locked_jars(bundle)

    assert pinned
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) and jar.size_bytes > 0 for jar in pinned)
    assert len({jar.path for jar in pinned}) == len(pinned)


def test_bundles_agree_on_versions():
    """A jar in two bundles has the same version in both, so their class paths can be joined."""
    versions: dict[tuple[str, str], set[str]] = {}
    for jar in (*locked_jars(Bundle.KAFKA_BROKER), *locked_jars(Bundle.KAFKA_STREAMS)):
        versions.setdefault((jar.group, jar.artifact), set()).add(jar.version)

    assert {key: found for key, found in versions.items() if len(found) > 1} == {}
    assert versions["org.apache.kafka", "kafka-streams"] == {jars_module.KAFKA_VERSION}


@pytest.mark.slow
@pytest.mark.broker
def test_broker_bundle_resolves_to_the_pinned_bytes():
    """The broker's jars in this machine's cache are exactly the pinned ones."""
    files = resolve(Bundle.KAFKA_BROKER)

    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert digests == [jar.sha256 for jar in locked_jars(Bundle.KAFKA_BROKER)]
