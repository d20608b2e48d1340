"""Types flow through the operators, so that a type checker finds what would fail on the first record."""

from __future__ import annotations

import pytest
from mypy import api

PROGRAM = """
from millrace.dsl import Consumed, JoinWindows, Produced, StreamsBuilder, TimeWindows
from millrace.serdes import Serdes

builder = StreamsBuilder()
stream = builder.stream("in", Consumed.with_(Serdes.string(), Serdes.long()))
table = builder.table("t", consumed=Consumed.with_(Serdes.string(), Serdes.string()))
reveal_type(stream)
reveal_type(stream.map_values(str))
reveal_type(stream.group_by(lambda key, value: value).count())
reveal_type(stream.join(table, lambda left, right: f"{left}{right}"))
reveal_type(stream.left_join(stream, lambda left, right: (left, right), JoinWindows.of_time_difference_with_no_grace(5)))
stream.map_values(lambda value: value.upper())
stream.to("out", Produced.with_(Serdes.string(), Serdes.string()))
"""


@pytest.mark.slow
def test_types_flow_through_operators(tmp_path):
    """Keys, values and results have the types of serdes, functions and joiners; what does not fit is an error."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    output, _, _ = api.run(["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), str(program)])
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in output.splitlines() if "Revealed" in line]
    assert [text.replace("millrace.dsl.kstream.", "").replace("millrace.dsl.ktable.", "") for text in revealed] == [
        "KStream[str, int]",
        "KStream[str, str]",
        "KTable[int, int]",
        "KStream[str, str]",
        "KStream[str, tuple[int, int | None]]",
    ]
    errors = [line for line in output.splitlines() if ": error:" in line and str(program) in line]
    assert [line.rpartition("[")[2] for line in errors] == ["attr-defined]", "arg-type]"], output
