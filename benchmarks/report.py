"""How the benchmarks show what they have measured: a table in the terminal, JSON, and tables in docs/performance.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from millrace.dev.jars import KAFKA_VERSION
from millrace.dev.java import find_java

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
Row = Sequence[str]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every benchmark."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--markdown", action="store_true", help=f"replace the table in docs/{PAGE.name}")


def progress() -> Progress:
    """Return a progress display, which only a terminal shows."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def announce(text: str) -> None:
    """Say what happens now."""
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    """Describe the machine and how busy it is."""
    models = [line.partition(": ")[2] for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return (
        f"{os.cpu_count()} processors ({models[0] if models else platform.machine()}), {memory / 2**20:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, Java {find_java().version}, "
        f"Apache Kafka {KAFKA_VERSION}, load before the run {load}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


class Report:
    """One benchmark's results.

    Args:
        name: of the section in docs/performance.md.
        title: of the table.
        columns: their headings.
        options: those of `add_options`.
    """

    def __init__(self, name: str, title: str, columns: Row, options: argparse.Namespace) -> None:
        self._name, self.title, self._columns, self._options = name, title, columns, options
        self._rows: list[Row] = []
        self._figures: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._machine, self._date = machine(), datetime.now(UTC).date().isoformat()
        if options.markdown:
            self._page()  # fails before anything is measured

    def add(self, row: Row, **figures: Any) -> None:
        """Add a row of the table, and its figures for the JSON."""
        self._rows.append(row)
        self._figures.append(figures)
        announce("  ".join(f"{name} {cell}" for name, cell in zip(self._columns, row, strict=True)))

    def note(self, text: str) -> None:
        """Add a sentence to be printed below the table."""
        self._notes.append(text)

    def show(self) -> None:
        """Print the table, and write the files that are asked for."""
        console = Console(width=None if sys.stdout.isatty() else 130)
        table = Table(title=self.title)
        for number, column in enumerate(self._columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in self._rows:
            table.add_row(*row)
        console.print(table)
        for note in (*self._notes, f"{self._date}, {self._machine}"):
            console.print(note, highlight=False)
        if self._options.json:
            about = {"benchmark": self._name, "date": self._date, "machine": self._machine, "notes": self._notes}
            self._options.json.write_text(json.dumps({**about, "results": self._figures}, indent=2) + "\n")
        if self._options.markdown:
            self._write_page()

    def _page(self) -> tuple[str, str]:
        """Return what is before and after the table in the page, with the lines that mark it."""
        begin, end = f"<!-- {self._name} -->\n", f"<!-- end of {self._name} -->"
        before, _, rest = PAGE.read_text().partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{PAGE} has no lines {begin.strip()} and {end}")
        return before + begin, end + after

    def _write_page(self) -> None:
        before, after = self._page()
        lines = [
            f"| {' | '.join(self._columns)} |",
            f"|---|{'---:|' * (len(self._columns) - 1)}",
            *(f"| {' | '.join(row)} |" for row in self._rows),
            "",
            *self._notes,
            "",
            f"{self._date}: {self._machine}.",
        ]
        PAGE.write_text("\n".join([before.rstrip("\n"), *lines, after]))
