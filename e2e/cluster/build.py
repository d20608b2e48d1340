"""The cluster's programs, built once from pinned Go modules and kept in the user's cache directory.

They are identified by a hash of everything they are built from. The sources and the compiler's cache, three gigabytes, are
removed once the programs exist. The modules and versions, with their hashes, are in `go/*/go.mod` and `go.sum`.

`E2E_KUBERNETES` chooses another minor version of Kubernetes, one with its own modules in `go/kubernetes/MINOR.mod`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import say
from e2e.cluster.schemas import write_schemas
from millrace.dev.jars import cache_directory

_SOURCES = Path(__file__).with_name("go")
_REPORT_EVERY_S = 15.0
_OLDEST_GO = (1, 24)
_USUAL_MINOR = "1.34"


@dataclass(frozen=True, slots=True)
class Module:
    """A directory of `go/`, the modules it is built with, and the programs built from it."""

    directory: str
    programs: Mapping[str, str]
    """Program to Go package."""
    about: str
    """How long it takes."""
    thorough: bool = False
    """Whether only thorough tests need it."""
    minor: str | None = None
    """The version to build, if it is not the usual one of `go.mod`."""

    @property
    def name(self) -> str:
        """Directory and version."""
        return self.directory if self.minor is None else f"{self.directory}-{self.minor}"

    @property
    def requirements(self) -> Path:
        """The `go.mod` of that version; the file with its hashes is beside it."""
        return _SOURCES / self.directory / ("go.mod" if self.minor is None else f"{self.minor}.mod")


MODULES = {
    "pause": Module("pause", {"pause": "."}, "seconds"),
    "kubernetes": Module(
        "kubernetes",
        {"kubernetes": "."},
        "about ten minutes of one processor",
        minor=None if os.environ.get("E2E_KUBERNETES") in {None, "", _USUAL_MINOR} else os.environ["E2E_KUBERNETES"],
    ),
    "tools": Module(
        "tools",
        {"helm": "helm.sh/helm/v3/cmd/helm", "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"},
        "about two minutes of one processor",
    ),
    "kstatus": Module("kstatus", {"kstatus": "."}, "about two minutes of one processor"),
    "promtool": Module(
        "promtool",
        {"promtool": "github.com/prometheus/prometheus/cmd/promtool"},
        "about ten minutes of one processor",
        thorough=True,
    ),
    "coredns": Module("coredns", {"coredns": "."}, "about two minutes of one processor"),
}


def e2e_cache() -> Path:
    """Return the directory of everything built for the tests."""
    return cache_directory() / "e2e"


def provide(name: str) -> Path:
    """Return the directory with a module's programs, building them if necessary.

    Raises:
        ClusterError: Go or that version is missing, or the build failed.
    """
    module = MODULES[name]
    if not module.requirements.exists():
        known = sorted(path.stem for path in _SOURCES.glob("kubernetes/1.*.mod"))
        raise ClusterError(
            f"{module.name} cannot be built; beside {_USUAL_MINOR}, E2E_KUBERNETES may be {', '.join(known)}"
        )
    target = e2e_cache() / f"{module.name}-{_key(module)}"
    if not target.exists():
        with _lock():
            if not target.exists():
                _build(module, target)
    return target


def provide_all(*, thorough: bool = False) -> None:
    """Build whatever is missing, then remove the sources and the compiler's cache.

    Args:
        thorough: Whether to also build what only thorough tests need.
    """
    for name, module in MODULES.items():
        if thorough or not module.thorough:
            provide(name)
    with _lock():
        drop_go_caches()


def drop_go_caches() -> None:
    """Remove what is only needed for builds."""
    go = e2e_cache() / "go"
    if (go / "mod").exists():
        _go(["clean", "-modcache"], MODULES["pause"])
    shutil.rmtree(go, ignore_errors=True)


def _build(module: Module, target: Path) -> None:
    _check_go()
    part = target.with_suffix(f".{os.getpid()}.part")
    part.mkdir(parents=True)
    try:
        say(f"Building {' and '.join(module.programs)} ({module.about}, once)")
        for program, package in module.programs.items():
            started = time.monotonic()
            total = len(_go(["list", "-deps", package], module).splitlines())
            flags = ["-v", "-trimpath", "-buildvcs=false", f"-p={_jobs()}", "-gcflags=all=-dwarf=false"]
            flags.append(f"-ldflags={_link_flags(module, package)}")
            _compile(["build", *flags, "-o", str(part / program), package], module, program, total)
            say(f"Built {program} in {time.monotonic() - started:.0f} s")
        if "kubernetes" in module.programs:
            directory = _go(["list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"], module).strip()
            write_schemas(Path(directory) / "api/openapi-spec/swagger.json", part / "schemas")
        part.replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _compile(arguments: list[str], module: Module, program: str, total: int) -> None:
    """Run the compiler and report progress from time to time, from the packages that it lists."""
    process = subprocess.Popen(
        ["go", *arguments],
        cwd=module.requirements.parent,
        env=_environment(module),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    lines: list[str] = []
    done = threading.Event()

    def report() -> None:
        while not done.wait(_REPORT_EVERY_S):
            packages = sum(1 for line in lines if not line.startswith("go: "))
            say(f"  {program}: {packages} of up to {total} packages")

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        lines.extend(process.stderr)
    except BaseException:
        process.terminate()
        raise
    finally:
        process.wait()
        process.stderr.close()
        done.set()
        reporter.join()
    if process.returncode:
        raise ClusterError(f"Building {program} failed:\n{''.join(lines[-30:])}")


def _link_flags(module: Module, package: str) -> str:
    flags = ["-s", "-w"]
    requirements = module.requirements.read_text()
    if found := re.search(r"k8s\.io/kubernetes v(\d+)\.(\d+)\.(\d+)", requirements):
        major, minor, patch = found.groups()
        values = {
            "gitVersion": f"v{major}.{minor}.{patch}",
            "gitMajor": major,
            "gitMinor": minor,
            "gitTreeState": "clean",
            "gitCommit": "0" * 40,
            "buildDate": "2026-01-01T00:00:00Z",
        }
        places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        flags += [f"-X {place}.{key}={value}" for place in places for key, value in values.items()]
    if package.startswith("helm.sh/") and (found := re.search(r"helm\.sh/helm/v3 (v\S+)", requirements)):
        flags.append(f"-X helm.sh/helm/v3/internal/version.version={found[1]}")
    return " ".join(flags)


def _go(arguments: list[str], module: Module) -> str:
    where = module.requirements.parent
    result = subprocess.run(
        ["go", *arguments], cwd=where, env=_environment(module), capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise ClusterError(f"`go {' '.join(arguments)}` failed in {where}: {result.stderr.strip()[-2000:]}")
    return result.stdout


def _check_go() -> None:
    if shutil.which("go") is None:
        raise ClusterError(f"The cluster is built with Go: install {_dotted(_OLDEST_GO)} or newer")
    found = re.match(r"go(\d+)\.(\d+)", _go(["env", "GOVERSION"], MODULES["pause"]))
    if found is None or (int(found[1]), int(found[2])) < _OLDEST_GO:
        version = found[0] if found else "something older"
        raise ClusterError(f"The cluster is built with Go {_dotted(_OLDEST_GO)} or newer; this is {version}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _environment(module: Module) -> dict[str, str]:
    go = e2e_cache() / "go"
    return {
        **os.environ,
        "GOMODCACHE": str(go / "mod"),
        "GOCACHE": str(go / "build"),
        "GOFLAGS": "-mod=readonly" if module.minor is None else f"-mod=readonly -modfile={module.requirements.name}",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }


def _jobs() -> int:
    """Return how many packages to compile at a time: `P_JOBS`, or one per processor."""
    return int(os.environ.get("P_JOBS", os.cpu_count() or 1))


def _key(module: Module) -> str:
    digest = hashlib.sha256()
    files = [module.requirements, module.requirements.with_suffix(".sum"), module.requirements.with_name("main.go")]
    if "kubernetes" in module.programs:
        files.append(Path(__file__).with_name("schemas.py"))
    for file in filter(Path.exists, files):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@contextmanager
def _lock() -> Iterator[None]:
    """Let only one process build at a time."""
    e2e_cache().mkdir(parents=True, exist_ok=True)
    with (e2e_cache() / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
