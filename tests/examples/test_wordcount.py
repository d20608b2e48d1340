"""The word count example: what it counts, and that its manifest fits its program."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import StreamsBuilder
from millrace.manifest import load, to_streams_config
from millrace.serdes import Serdes
from millrace.testing import TopologyTestDriver

FOLDER = Path(__file__).parents[2] / "examples" / "wordcount"
MANIFEST = FOLDER / "streamsapp.yaml"
sys.path.insert(0, str(FOLDER))

from demo import compare  # noqa: E402 (an example is found by its folder)

from wordcount import topology, words  # noqa: E402


def test_words_of_each_line_are_counted():
    """Every occurrence of a word, whatever its case and partition, counts once."""
    app = load(MANIFEST)
    config = StreamsConfig.of(to_streams_config(app))
    builder = StreamsBuilder()
    topology(builder, app.spec.app.config)
    lines = ["def count(self):", "return self.Count + 1", "", "# _self"]
    text = Serdes.string()
    with TopologyTestDriver(builder.build(config), config) as driver:
        source = driver.create_input_topic(app.spec.app.config["input"], text, text)
        for line in lines:
            source.pipe_value(line)
        counts = driver.create_output_topic(app.spec.app.config["output"], text, Serdes.long()).read_key_values_to_map()
    assert counts == Counter(word for line in lines for word in words(line))
    assert counts == {"def": 1, "count": 2, "self": 2, "return": 1, "_self": 1}


@pytest.mark.parametrize(
    ("counts", "code", "told"),
    [
        ({"a": 2, "b": 1}, 0, "counts agree"),
        ({"a": 2}, 1, "b: 0 counted, 1 expected"),
        ({"a": 3, "b": 1}, 1, "a: 3 counted, 2 expected"),
        ({"a": 2, "b": 1, "c": 1}, 1, "c: 1 counted, 0 expected"),
    ],
)
def test_demo_finds_every_difference(capsys, counts, code, told):
    """Too few, too many and invented words are all differences."""
    assert compare(counts, Counter({"a": 2, "b": 1})) == code
    out = capsys.readouterr().out
    assert told in out
    assert ("counts agree" in out) == (code == 0)
