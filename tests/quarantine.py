"""Tests that fail by chance are kept apart for two weeks at most, by `quarantine.txt`.

`python -m tests.quarantine` checks the list, as `make lint` does; `python -m tests.quarantine run` runs its tests and reports.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("quarantine.txt")
_ENTRY = re.compile(r"(?P<test>\S+\.py::.*?\S) +(?P<since>\d{4}-\d\d-\d\d) +(?P<reason>\S.*)")
_AT_MOST = dt.timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A test that is kept apart."""

    test: str
    since: dt.date
    reason: str


def quarantined(text: str) -> Iterator[Quarantined]:
    """Yield the tests of a list.

    Raises:
        ValueError: a line is not a test, a date and a reason.
    """
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            found = _ENTRY.fullmatch(line)
            if found is None:
                raise ValueError(f"not a test's node id, a date and a reason: {line}")
            yield Quarantined(found["test"], dt.date.fromisoformat(found["since"]), found["reason"])


def mistakes(text: str, today: dt.date, root: Path = _ROOT) -> Iterator[str]:
    """Yield what is wrong with a list."""
    try:
        entries = list(quarantined(text))
    except ValueError as error:
        yield str(error)
        return
    for entry in entries:
        if today - entry.since > _AT_MOST:
            yield f"{entry.test} is in quarantine since {entry.since}: mend it, or what it tests"
        path, _, name = entry.test.partition("::")
        function = name.partition("[")[0].rpartition("::")[2]
        if not (root / path).is_file() or f"def {function}(" not in (root / path).read_text():
            yield f"{entry.test} does not exist"


def keep_apart(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the tests that are in quarantine, with `--quarantined`; otherwise leave these out."""
    names = {entry.test for entry in quarantined(LIST.read_text())}
    wanted = config.getoption("--quarantined")
    chosen = [item for item in items if (item.nodeid in names) == wanted]
    config.hook.pytest_deselected(items=[item for item in items if (item.nodeid in names) != wanted])
    items[:] = chosen


def _run() -> int:
    tests = [entry.test for entry in quarantined(LIST.read_text())]
    if not tests:
        return 0
    result = subprocess.run([sys.executable, "-m", "pytest", "--quarantined", *tests], cwd=_ROOT, check=False)
    print(
        f"{len(tests)} tests in quarantine {'passed' if result.returncode == 0 else 'ran, and some failed: see above'}"
    )
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        sys.exit(_run())
    wrong = list(mistakes(LIST.read_text(), dt.datetime.now(tz=dt.UTC).date()))
    sys.exit("\n".join(f"tests/quarantine.txt: {mistake}" for mistake in wrong) or None)
