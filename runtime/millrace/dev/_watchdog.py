"""Kills a broker when the process that owns it has ended: `python -I -S _watchdog.py OWNER_PID BROKER_PID [DIRECTORY]`.

It runs as a script for every broker that is not detached. It holds a pidfd of each process, so that a reused process id is
never mistaken for either, and sleeps in the kernel until one of them ends. A temporary directory is removed with the broker.
"""

import contextlib
import os
import select
import shutil
import signal
import sys


def main(owner_pid: int, broker_pid: int, temporary_directory: str | None = None) -> None:
    """Wait until either process ends; if it was the owner, kill the broker and remove its temporary directory."""
    try:
        broker = os.pidfd_open(broker_pid)
    except ProcessLookupError:
        return
    try:
        owner = os.pidfd_open(owner_pid)
    except ProcessLookupError:
        pass
    else:
        poll = select.poll()
        poll.register(owner, select.POLLIN)
        poll.register(broker, select.POLLIN)
        if broker in {descriptor for descriptor, _ in poll.poll()}:
            return
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(broker, signal.SIGKILL)
    if temporary_directory:
        end = select.poll()
        end.register(broker, select.POLLIN)
        end.poll()
        shutil.rmtree(temporary_directory, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
