"""What tests rely on in processes that are forked from a server: they behave as new interpreters do."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests import forked

STATE = """
import json, os, signal, sys, time
print(json.dumps({
    "arguments": sys.argv,
    "path": sys.path,
    "name": __name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "zone": time.tzname,
    "descriptors": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
    "handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
    "masked": [*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))],
    "streams": [(each.encoding, each.errors, each.line_buffering) for each in (sys.stdin, sys.stdout, sys.stderr)],
    "flags": list(sys.flags),
    "leads": [os.getpid() == os.getsid(0), os.getpid() == os.getpgrp()],
    "input": sys.stdin.read(),
}))
"""
ENDS = {
    "nothing": "",
    "code": "raise SystemExit(7)",
    "text": "import sys; sys.exit('told')",
    "error": "print('before'); raise ValueError('wrong')",
    "interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "at exit": "import atexit; atexit.register(print, 'last')",
    "thread": "import threading, time; threading.Timer(0.05, print, ['late']).start()",
    "no such module": "import nothing_of_this_name",
}


@pytest.mark.parametrize("form", ["-m", "-c", "file"])
@pytest.mark.parametrize("own_session", [False, True])
def test_process_starts_in_the_same_state(tmp_path, form, own_session):
    """Arguments, search path, environment, descriptors, signals and streams are those of a new interpreter."""
    (tmp_path / "state.py").write_text(STATE)
    program = {"-m": ["-m", "state"], "-c": ["-c", STATE], "file": ["state.py"]}[form]
    environment = {**os.environ, "TZ": "Asia/Kolkata", "PYTHONPATH": f"{tmp_path}{os.pathsep}elsewhere"}
    found = [
        json.loads(
            forked.run(
                [sys.executable, *program, "a", "-b"],
                cold=cold,
                input="text",
                cwd=tmp_path,
                env=environment,
                start_new_session=own_session,
                capture_output=True,
                text=True,
            ).stdout
        )
        for cold in ("it is compared with", "")
    ]
    assert found[0] == found[1]
    assert found[0]["arguments"][1:] == ["a", "-b"]


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_process_ends_in_the_same_way(program):
    """The exit code or signal, the output, and the last line about an error are those of a new interpreter."""
    command = [sys.executable, "-c", program]
    new, copy = (forked.run(command, cold=cold, capture_output=True, text=True) for cold in ("it is compared with", ""))
    assert (copy.returncode, copy.stdout) == (new.returncode, new.stdout)
    assert copy.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_process_can_be_killed_and_waited_for():
    """Until it has ended it has no exit code, and waiting for it ends with the time-out; a signal reaches it by its id."""
    with forked.Popen(
        [sys.executable, "-c", "print(input())"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert process.poll() == -signal.SIGKILL
        assert process.stdout.read() == b""
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_other_programs_are_started_as_ever():
    """A command need not be Python: it may be Java, or a wrapper of a command."""
    done = forked.run(["sh", "-c", "cat; exit 3"], input=b"given", capture_output=True)
    assert (done.returncode, done.stdout) == (3, b"given")


def test_streams_may_be_files(tmp_path):
    """Standard output and standard error go to one file in the order of writing; what is not given is inherited."""
    program = "import sys; print('one', flush=True); print('two', file=sys.stderr); print('three', flush=True)"
    with (tmp_path / "log").open("w") as log:
        assert forked.Popen([sys.executable, "-c", program], stdout=log, stderr=subprocess.STDOUT).wait() == 0
    assert (tmp_path / "log").read_text() == "one\ntwo\nthree\n"


def test_what_acts_at_an_interpreters_start_is_refused():
    """Variables and options that a forked process would not heed are errors, which name what is to be done."""
    command = [sys.executable, "-c", ""]
    with pytest.raises(AssertionError, match="PYTHONOPTIMIZE"):
        forked.run(command, env={**os.environ, "PYTHONOPTIMIZE": "1"})
    with pytest.raises(AssertionError, match="only a cold process can have executable, "):
        forked.run(command, preexec_fn=print)
    with pytest.raises(AssertionError, match="only a cold process can have options"):
        forked.run([sys.executable, "-O", "-c", ""])


def test_server_ends_with_its_user_and_what_it_has_forked_goes_on():
    """If pytest is killed the server does not stay, while processes live on as others would."""
    server = forked._Server()
    (from_test, to_process), (from_process, to_test) = os.pipe(), os.pipe()
    server.ask((["-c", "print(input(), end='')"], dict(os.environ), "/", False), [from_test, to_test, 2])
    server.close()
    assert server.process.returncode == 0
    os.write(to_process, b"still here\n")
    assert os.read(from_process, 100) == b"still here"
    for descriptor in (from_test, to_process, from_process, to_test):
        os.close(descriptor)
