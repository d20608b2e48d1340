"""What a local host displays, and what it reports if it cannot start."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from tests import forked

from millrace.dev.local_directory import ReplicaView
from millrace.dev.local_supervisor import _lines, table

RUNNING = ReplicaView("shop-0", 41, "running", 4, 12_345, 2_000.4, 0, "", 1_812)
DEAD = ReplicaView("shop-1", None, "waiting", None, None, None, 3, "ended with exit code 1, starts again in 4 s")


def printed(render) -> str:
    """Return what is printed to a console that is not a terminal."""
    console = Console(file=io.StringIO(), width=140)
    render(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_table_shows_what_is_known():
    """Each replica has a row; unknown values are dashes; large numbers are grouped."""
    text = printed(lambda console: console.print(table([RUNNING, DEAD])))
    assert [cell.strip() for cell in text.splitlines()[3].strip("│").split("│")][:8] == [
        "shop-0", "41", "running", "4", "12,345", "2,000", "1,812", "0",
    ]  # fmt: skip
    assert [cell.strip() for cell in text.splitlines()[4].strip("│").split("│")] == [
        "shop-1", "-", "waiting", "-", "-", "-", "-", "3", "ended with exit code 1, starts again in 4 s",
    ]  # fmt: skip


def test_table_shows_what_an_error_quotes():
    """Brackets in a message are not taken for colours."""
    failed = ReplicaView(
        "shop-0", None, "failed", None, None, None, 0, "Error: KeyError: [red] [/x] 'a' (see replica.log)"
    )
    assert failed.note in printed(lambda console: console.print(table([failed])))


def test_without_a_terminal_a_line_is_printed_for_a_change_only():
    """Numbers of records change constantly and print nothing, but the first dropped one does, as do state, tasks and restarts."""

    def render(console: Console) -> None:
        with _lines(console) as update:
            update([ReplicaView("shop-0", 41, "running", 4, 1, 9.0, 0, "", 0), DEAD])
            update([ReplicaView("shop-0", 41, "running", 4, 2, 8.0, 0, "drops records", 1), DEAD])
            update([ReplicaView("shop-0", 41, "running", 4, 3, 9.0, 0, "drops records", 2), DEAD])
            update([ReplicaView("shop-0", 41, "running", 2, 1, 9.0, 0, "drops records", 2), DEAD])

    assert printed(render).splitlines() == [
        "shop-0: running, pid 41, tasks: 4, restarts: 0",
        "shop-1: waiting, pid -, restarts: 3 (ended with exit code 1, starts again in 4 s)",
        "shop-0: running, pid 41, tasks: 4, restarts: 0 (drops records)",
        "shop-0: running, pid 41, tasks: 2, restarts: 0 (drops records)",
    ]


def test_host_in_the_background_that_cannot_start_says_why(tmp_path):
    """The command that started it reports the reason, and the log to look at."""
    manifest = tmp_path / "streamsapp.yaml"
    manifest.write_text(
        "apiVersion: streams.millrace.dev/v1alpha1\nkind: StreamsApp\nmetadata: {name: shop}\n"
        "spec: {applicationId: shop, image: i, app: {entrypoint: 'nowhere:topology'}, kafka: {bootstrapServers: ['k:1']}}\n"
    )
    command = [
        sys.executable,
        "-m",
        "millrace.cli",
        "dev",
        "up",
        "-f",
        str(manifest),
        "--dir",
        str(tmp_path / "data"),
        "-d",
    ]
    result = forked.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 1
    assert (
        "It did not start: The program cannot make a plan: nowhere:topology: there is no module `nowhere`"
        in result.stderr
    )
    assert f"(see {tmp_path}/data/host.log)" in result.stderr
    assert "Traceback" not in result.stderr
