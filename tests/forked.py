"""Starts Python processes for tests without their imports: a server that has imported Millrace forks them.

A short `millrace` command spends most of its CPU time on imports. `Popen` and `run` are those of `subprocess`, for commands
that run this interpreter, such as `[sys.executable, "-m", "millrace.cli", …]`. What they start is a process like any other: it
has an id, an environment, a working directory, descriptors and, if wanted, a session of its own; it can be killed, and ends as an
interpreter ends.

It differs in what comes before a program's first line. A test of that says `cold="why"` and gets a new interpreter: a test of
imports, of an installed script, of options and variables of the interpreter, or of signals while it starts. So does a test that
runs pytest, which rewrites what it imports. All processes that a server forks are children of the server, and order their sets
alike, which interpreters that start by themselves don't.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import os
import pickle
import runpy
import select
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

IMPORTED = (
    *(
        "millrace.cli.app",
        "millrace.cli.instance",
        "millrace.manifest",
        "millrace.dsl.streams_builder",
        "millrace.testing",
    ),
    *(
        "millrace.dev.local_supervisor",
        "millrace.dev.topic_records",
        "millrace.kafka.resetter",
        "millrace.topology.diagram",
    ),
    *("rich._emoji_codes", "rich.markdown", "rich.progress", "rich.tree", "pytest"),
)
"""What commands import when they run, and what the programs of tests import."""
ACT_AT_START = ("PYTHON", "OTEL_", "PYDANTIC_", "TYPER_", "LC_", "LANG", "LD_", "MALLOC_")
"""How variables are named that act when an interpreter starts, or when it imports those modules."""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
LARGEST_REQUEST = 1 << 20


class Popen(subprocess.Popen):
    """A process that the server forks, or a new one if `cold` says why, or if it runs another program than this interpreter."""

    def __init__(self, command: Any, *, cold: str = "", **options: Any) -> None:
        self._new = bool(cold) or command[0] != sys.executable
        super().__init__(command, **options)

    def _execute_child(self, command: Any, *others: Any) -> None:
        if self._new:
            super()._execute_child(command, *others)
            return
        given = inspect.signature(super()._execute_child).bind(command, *others).arguments
        refused = ("executable", "preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")
        assert not any(given[name] for name in refused), f"only a cold process can have {', '.join(refused)}"
        _, *arguments = map(os.fsdecode, command)
        assert arguments[0] in {"-m", "-c"} or not arguments[0].startswith("-"), "only a cold process can have options"
        wanted = os.environ if given["env"] is None else given["env"]
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in wanted.items()}
        differing = {name for name, _ in environment.items() ^ ENVIRONMENT.items() if name.startswith(ACT_AT_START)}
        assert differing <= {"PYTHONPATH"}, f"only a cold process can have other values of {differing}"
        folder = os.fsdecode(given["cwd"] or Path.cwd())
        pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        standard = [own if fd == -1 else fd for own, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._server = _Server.of_this_process()
        self.pid = self._server.ask((arguments, environment, folder, given["start_new_session"]), standard)
        self._ended = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._new:
            return super()._try_wait(flags)
        if not select.select([self._ended], [], [], 0 if flags else None)[0]:
            return 0, 0
        os.close(self._ended)
        return self.pid, self._server.ask(self.pid)

    def _internal_poll(self, _deadstate: int | None = None, **options: Any) -> int | None:
        if self._new:
            return super()._internal_poll(_deadstate, **options)
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = (0, 0) if self.returncode is not None else self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            except OSError:
                if _deadstate is None:  # or this object is deleted after the server has ended
                    raise
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(
    command: Any,
    *,
    input: str | bytes | None = None,  # noqa: A002 (its name in `subprocess`)
    capture_output: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess:
    """Run a command to its end, as `subprocess.run` does, whatever its exit code."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


class _Server:
    """The server, as seen by the process that it serves. It ends with that process."""

    _running: _Server | None = None
    _lock = threading.Lock()

    def __init__(self, *imported: str) -> None:
        self._requests, end = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with end:
            command = [sys.executable, __file__, str(end.fileno()), *imported]
            self.process = subprocess.Popen(command, pass_fds=[end.fileno()], env=ENVIRONMENT, stdin=subprocess.DEVNULL)

    @classmethod
    def of_this_process(cls) -> _Server:
        """Return the server, which starts when it is first needed."""
        with cls._lock:
            if cls._running is None:
                cls._running = cls(*IMPORTED)
                atexit.register(cls._running.close)
            return cls._running

    def ask(self, request: object, descriptors: list[int] | None = None) -> int:
        """Ask for a process, and return its id; or ask how the process with an id has ended."""
        with self._lock:
            try:
                socket.send_fds(self._requests, [pickle.dumps(request)], descriptors or [])
                return int(self._requests.recv(LARGEST_REQUEST))
            except BaseException:  # a test's time may be over; the next request must not get this one's answer
                self.close()
                _Server._running = None
                raise

    def close(self) -> None:
        """End it, but not the processes that it has forked."""
        self._requests.close()
        self.process.wait()


def serve(requests: socket.socket) -> list[str]:
    """Fork a process for each request, until there can be no more; return in each process its arguments."""
    path = sys.path.copy()
    while True:
        try:
            request, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 3)
        except KeyboardInterrupt:
            os._exit(130)
        if not request:
            os._exit(0)
        asked = pickle.loads(request)
        if isinstance(asked, int):
            requests.send(b"%d" % os.waitpid(asked, 0)[1])
        elif process := os.fork():
            requests.send(b"%d" % process)
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            break
    requests.close()
    arguments, environment, folder, own_session = asked
    if own_session:
        os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    more = environment.get("PYTHONPATH")
    sys.path[:] = dict.fromkeys([*map(os.path.abspath, more.split(os.pathsep) if more else ()), *path])
    return arguments


def interpret(option: str, *others: str) -> None:
    """Do what an interpreter does with `-m module …`, `-c program …` or `file …`."""
    importlib.invalidate_caches()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = [option, *others]
    if option == "-m":
        sys.path.insert(0, str(Path.cwd()))
        del sys.argv[0]
        runpy._run_module_as_main(others[0])
    elif option == "-c":
        sys.path.insert(0, "")
        del sys.argv[1]
        exec(compile(others[0], "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, str(Path(option).resolve().parent))
        main.__file__ = option
        exec(compile(Path(option).read_bytes(), option, "exec"), main.__dict__)


if __name__ == "__main__":
    del sys.path[0]  # it has a folder that is named like a library
    for name in sys.argv[2:]:
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, (
        "forked processes would lack the threads that an import has started"
    )
    gc.collect()
    gc.freeze()  # or each process goes through all of it before it ends, for a third of a second
    with socket.socket(fileno=int(sys.argv[1])) as served:
        arguments = serve(served)
    interpret(*arguments)
