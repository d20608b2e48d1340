"""Types flow through the operators, so that a type checker finds what would fail on the first record."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
PROJECTS = ("dead_letters", "foreign_keys", "joins", "punctuation", "schema_registry", "windows")
README_EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)

TOPOLOGY, RUN, TEST = README_EXAMPLES
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


WITHOUT_SERDES = """
from millrace import Consumed, Materialized, Produced, Serdes, StreamsBuilder
from millrace.dsl import JoinWindows

text, number = Serdes.string(), Serdes.long()
builder = StreamsBuilder()
words = builder.stream("words")
words.group_by(lambda _, word: word).count().to_stream().to("counts", Produced.with_(text, number))
words.join(builder.table("table"), lambda left, right: left + right).to("joined", Produced.with_(text, text))
words.join(words, lambda left, right: left + right, JoinWindows.of_time_difference_with_no_grace(5)).to("twice")
builder.table("named", "store").filter(lambda key, value: len(value) > 3).to_stream().to("long", Produced.with_(text, text))
names = builder.global_table("names")
words.join(names, lambda word, name: name + word, key_selector=lambda _, word: word).to("named", Produced.with_(text, text))
orders = builder.stream("orders", Consumed.with_(text, number))
totals = orders.group_by_key().reduce(lambda total, amount: total + amount, Materialized.as_("totals"))
totals.to_stream().to("totals", Produced.with_(text, number))
"""


REVEALED = """
from millrace import *
from millrace.dsl import JoinWindows, StreamJoined, TableJoined

text, number = Serdes.string(), Serdes.long()
builder = StreamsBuilder()
words = builder.stream("words", Consumed.with_(text, text))
numbers = builder.stream("numbers", Consumed.with_(text, number))
table = builder.table("table", Consumed.with_(text, number), Materialized.with_(text, number))
names_by_id = builder.table("names-by-id", consumed=Consumed.with_(number, text))
names = builder.global_table("names", Consumed.with_(number, text))
within = JoinWindows.of_time_difference_with_no_grace("5s")


class Length(Processor[str, str, str, int]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_value(len(record.value)))


class Half(FixedKeyProcessor[str, int, float]):
    def process(self, record: Record[str, int]) -> None:
        self.context.forward(record.with_value(record.value / 2))


reveal_type(Consumed.with_(text, number))  # Consumed[str, int]
reveal_type(Consumed.with_(text, number).with_name("n"))  # Consumed[str, int]
reveal_type(Produced.with_(text, number))  # Produced[str, int]
reveal_type(Grouped.with_(text, number, name="n"))  # Grouped[str, int]
reveal_type(Repartitioned.with_(text, number))  # Repartitioned[str, int]
reveal_type(Materialized.with_(text, number))  # Materialized[str, int]
reveal_type(Joined.with_(text, text, number))  # Joined[str, str, int]
reveal_type(StreamJoined.with_(text, text, number))  # StreamJoined[str, str, int]
reveal_type(words)  # KStream[str, str]
reveal_type(table)  # KTable[str, int]
reveal_type(names)  # GlobalKTable[int, str]
reveal_type(words.map_values(len))  # KStream[str, int]
reveal_type(words.map(lambda key, word: (len(word), key)))  # KStream[int, str]
reveal_type(words.flat_map_values(str.split))  # KStream[str, str]
reveal_type(words.select_key(lambda key, word: len(word)))  # KStream[int, str]
reveal_type(words.process(Length))  # KStream[str, int]
reveal_type(numbers.process_values(Half))  # KStream[str, float]
reveal_type(words.group_by_key().count("counts"))  # KTable[str, int]
reveal_type(words.group_by(lambda key, word: len(word)))  # KGroupedStream[int, str]
reveal_type(words.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace("10s")))  # TimeWindowedKStream[str, str]
sessions = SessionWindows.of_inactivity_gap_with_no_grace(5)
reveal_type(words.group_by_key().windowed_by(sessions))  # SessionWindowedKStream[str, str]
reveal_type(numbers.group_by_key().aggregate(float, lambda key, each, total: total + each))  # KTable[str, float]
reveal_type(words.join(numbers, lambda word, count: word * count, within))  # KStream[str, str]
reveal_type(words.join(table, lambda word, count: (word, count)))  # KStream[str, tuple[str, int]]
reveal_type(words.join(table, lambda word, each: (word, each), Joined.with_(text, text, number)))  # KStream[str, tuple[str, int]]
reveal_type(numbers.join(names, lambda key, each: each, lambda each, name: name))  # KStream[str, str]
reveal_type(table.join(names_by_id, lambda each: each, lambda each, name: name))  # KTable[str, str]
reveal_type(table.join(names_by_id, lambda each, name: name, foreign_key=lambda each: each))  # KTable[str, str]
reveal_type(table.to_stream())  # KStream[str, int]
reveal_type(words.split().branch(lambda key, word: True))  # BranchedKStream[str, str]
reveal_type(words.split().no_default_branch()["long"])  # KStream[str, str]
"""


EXPECTED = re.findall(r"^reveal_type\(.*\)  # (.*)$", REVEALED, re.MULTILINE)
ORDINARY = {"topology": TOPOLOGY, "program": f"{TOPOLOGY}\n{RUN}", "test": TEST, "without_serdes": WITHOUT_SERDES}
SAMPLES = {
    **{name: f"# mypy: allow-untyped-defs\n{program}" for name, program in ORDINARY.items()},
    "operators": PROGRAM,
    "options": REVEALED,
}
EXAMPLES = [
    path
    for project in PROJECTS
    for path in sorted((ROOT / "examples" / project).glob("*.py"))
    if not path.name.startswith(("test_", "conftest"))
]


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Write each program into a file of its own, as a user would."""
    folder = tmp_path_factory.mktemp("types")
    files = {name: folder / f"sample_{name}.py" for name in SAMPLES}
    for name, file in files.items():
        file.write_text(SAMPLES[name])
    return files


@pytest.fixture(scope="module")
def mypy(samples):
    """Check all programs and examples at once, with the cache of `make types`; return what is said about each file."""
    files = [*samples.values(), *EXAMPLES]
    output, errors, code = api.run(["--strict", "--no-error-summary", *map(str, files)])
    assert code in {0, 1}, output + errors
    said = {file: [] for file in files}
    for line in output.splitlines():
        path, _, text = line.partition(":")
        said[Path(path).resolve()].append(text)
    return said


@pytest.fixture(scope="module")
def pyright(samples, tmp_path_factory):
    """Check files as strictly as Pyright can, where a type that it does not know is an error; return what it says of each."""
    files = [samples["options"], *EXAMPLES]
    folder = tmp_path_factory.mktemp("pyright")
    settings = {
        "include": list(map(str, files)),
        "typeCheckingMode": "strict",
        "reportWildcardImportFromLibrary": False,
        "reportUnusedImport": False,
        "reportExplicitAny": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = (sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable)
    found = subprocess.run(
        (*command, "--project", str(folder)), capture_output=True, text=True, timeout=600, check=False
    )
    report = json.loads(found.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files), found.stdout
    said = {file: [] for file in files}
    for each in report["generalDiagnostics"]:
        said[Path(each["file"])].append((each["severity"], each["message"]))
    return said


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_programs_have_no_type_errors(mypy, samples, name):
    """Topics that are read without serdes have keys and values of any type, so that programs need no annotations."""
    assert mypy[samples[name]] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_types_flow_through_operators(mypy, samples):
    """Keys, values and results have the types of serdes, functions and joiners; what does not fit is an error."""
    output = mypy[samples["operators"]]
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in output if "Revealed" in line]
    assert [text.replace("millrace.dsl.kstream.", "").replace("millrace.dsl.ktable.", "") for text in revealed] == [
        "KStream[str, int]",
        "KStream[str, str]",
        "KTable[int, int]",
        "KStream[str, str]",
        "KStream[str, tuple[int, int | None]]",
    ]
    errors = [line for line in output if ": error:" in line]
    assert [line.rpartition("[")[2] for line in errors] == ["attr-defined]", "arg-type]"], output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_options_and_operators_have_the_types_of_their_serdes(mypy, samples):
    """What the factories of options are given flows through sources, operators, joins, processors and tables."""
    output = mypy[samples["options"]]
    assert [line for line in output if ": error:" in line] == []
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in output if "Revealed" in line]
    assert [re.sub(r"\w+\.", "", text) for text in revealed] == EXPECTED


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pyright_knows_the_same_types(pyright, samples):
    """What Pyright, and so most editors, infers is what mypy does."""
    found = pyright[samples["options"]]
    revealed = [text.rpartition(' is "')[2].strip('"') for severity, text in found if severity == "information"]
    assert revealed == EXPECTED
    assert [text for severity, text in found if severity == "error"] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_examples_have_no_unknown_types(mypy, pyright):
    """Nothing that a user writes has a type that Pyright does not know, and mypy finds no error."""
    assert len(EXAMPLES) >= len(PROJECTS)
    assert [pyright[file] for file in EXAMPLES] == [[]] * len(EXAMPLES)
    assert [mypy[file] for file in EXAMPLES] == [[]] * len(EXAMPLES)
