"""The README's examples work."""

from __future__ import annotations

import re
from pathlib import Path

from millrace import StreamsBuilder

README = Path(__file__).parents[1] / "README.md"


def examples():
    """Run the README's Python in one namespace and return it."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
        exec(block, names)
    return names


def test_readme_topology_builds():
    """The first example is a topology that counts in a store of the given name."""
    builder = StreamsBuilder()
    examples()["topology"](builder)
    assert "(stores: [counts])" in builder.build().describe()


def test_readme_test_passes():
    """The example of a test passes."""
    examples()["test_words_are_counted"]()
