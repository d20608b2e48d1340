"""The order in which files run: long ones first, by `durations.json`, so that no worker has one left in the end.

`python -m e2e.order` accepts the durations of the last `make e2e` or `make e2e-all`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

BUILD = Path(__file__).parents[1] / "build"
REPORTS = "e2e-*.xml"
_DURATIONS = Path(__file__).with_name("durations.json")


def durations() -> Mapping[str, float]:
    """Return how many seconds each file takes, by its name."""
    return json.loads(_DURATIONS.read_text())


def accept() -> None:
    """Replace the durations of the files that have run."""
    seconds: Counter[str] = Counter()
    for report in BUILD.glob(REPORTS):
        for case in ET.parse(report).iter("testcase"):
            file = case.attrib["classname"].split(".")[1]
            if file.startswith("test_"):  # others have examples in their docstrings
                seconds[f"{file}.py"] += float(case.attrib["time"])
    known = {**durations(), **{name: round(taken) for name, taken in seconds.items()}}
    _DURATIONS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    accept()
