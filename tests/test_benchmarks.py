"""The programs that the benchmarks run, and what the benchmarks expect of them."""

import pytest
from benchmarks.programs import Build, Expected, Names, _counted, _late_rows, _rows
from benchmarks.topics import Digest

from millrace.serdes import Serdes
from millrace.testing import TopologyTestDriver

START_MS = 1_700_000_000_000
RAW = Serdes.bytes()


@pytest.mark.parametrize("program", ["words", "lines", "tumbling", "count", "hot", "join", "stateless", "latest"])
def test_program_writes_what_is_counted_while_its_input_is_written(program):
    """Of the word counts and windowed counts the last record of every key counts, of the other programs all."""
    names, expected = Names("in"), Expected()
    with TopologyTestDriver(Build(program, names, "app")()) as driver:
        if program == "join":
            for number in range(20):
                driver.pipe_raw(names.table, b"key-%07d" % number, b"value-%07d" % number, START_MS - 1)
        for key, value, at in _counted(program, _rows(program, 500, 20, START_MS), expected):
            driver.pipe_raw(names.source, key, value, at)
        output = driver.create_output_topic(names.sink("app"), RAW, RAW).read_key_values_to_list()
    if program == "tumbling":
        output = [(key + bytes(4), value) for key, value in output]  # as in the changelog
    found = Digest()
    for key, value in dict(output).items() if program in {"words", "lines", "tumbling"} else output:
        found.add(key, value)
    assert found == expected.digest
    assert found.records


def test_late_records_are_counted_as_dropped():
    """Records that are later than the grace period are expected to be dropped, and are."""
    names, expected = Names("in"), Expected()
    with TopologyTestDriver(Build("windows", names, "app")()) as driver:
        for key, value, at in _counted("windows", _late_rows(20_000, 1, START_MS, per_ms=1), expected):
            driver.pipe_raw(names.source, key, value, at)
        assert driver.dropped_records == expected.dropped > 0
