"""How the user's function is found and called, and the errors if it cannot be."""

from __future__ import annotations

import sys
import textwrap

import pytest

from millrace.cli.entrypoint import load_topology, parse
from millrace.errors import EntrypointError
from millrace.topology import Topology


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the module `shop_app` to a folder that becomes the working directory, and unload it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    before = set(sys.modules)

    def module(code: str, name: str = "shop_app") -> str:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        return name

    yield module
    for name in set(sys.modules) - before:
        if name.startswith("shop"):
            del sys.modules[name]


def failure(entrypoint: str, **options) -> str:
    """Return the error for an entrypoint that cannot be used."""
    with pytest.raises(EntrypointError) as caught:
        load_topology(entrypoint, **options)
    return str(caught.value)


TAKES_NOTHING = """
    from millrace.topology import Topology
    def topology():
        return Topology()
"""
TAKES_BUILDER = """
    def topology(builder):
        builder.stream("in").to("out")
"""
TAKES_BOTH = """
    def topology(builder, config):
        builder.stream(config["input"]).to("out")
        return builder
"""
TAKES_CONFIG = """
    from millrace.dsl import StreamsBuilder
    def topology(config):
        builder = StreamsBuilder()
        builder.stream(config["input"]).to("out")
        return builder.build()
"""
OPTIONAL_CONFIG = """
    def topology(builder, config=None, more=1):
        assert more == 1
        builder.stream(config["input"]).to("out")
"""


@pytest.mark.parametrize("code", [TAKES_NOTHING, TAKES_BUILDER, TAKES_BOTH, TAKES_CONFIG, OPTIONAL_CONFIG])
def test_every_form_of_the_function_is_called(write, code):
    """It may take nothing, a builder, a builder and the configuration, or only the configuration."""
    write(code)
    topology = load_topology("shop_app:topology", app_config={"input": "in"})
    assert isinstance(topology, Topology)
    if code is not TAKES_NOTHING:
        assert "topics: [in]" in str(topology.describe())


def test_attribute_of_a_class_and_arguments(write):
    """The callable may be a class attribute, and the program sees its arguments in sys.argv."""
    write("""
        import sys
        class Shop:
            @staticmethod
            def topology(builder):
                builder.stream(sys.argv[1]).to("out")
    """)
    topology = load_topology("shop_app:Shop.topology", args=["orders"])
    assert "topics: [orders]" in str(topology.describe())


def test_file_is_loaded_with_its_folder(write, tmp_path, monkeypatch):
    """A file is found by its path and may import its neighbours; the default callable is `topology`."""
    write("TOPIC = 'orders'", "shop_names")
    write("""
        from shop_names import TOPIC
        def topology(builder):
            builder.stream(TOPIC).to("out")
        def other(builder):
            builder.stream("other").to("out")
    """)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "topics: [orders]" in str(load_topology("../shop_app.py").describe())
    assert "topics: [other]" in str(load_topology("../shop_app.py:other").describe())


@pytest.mark.parametrize(
    ("entrypoint", "expected"),
    [
        (
            "wordcount",
            "`wordcount` is not an entrypoint: write `package.module:callable`, for example `wordcount:topology`",
        ),
        ("word-count:main", "`word-count:main` is not an entrypoint"),
        ("a.b:", "for example `a.b:topology`"),
        (":main", "is not an entrypoint"),
        ("", "is not an entrypoint"),
        ("none.py", "There is no file none.py (looked from "),
    ],
)
def test_wrong_form_is_explained(write, entrypoint, expected):
    """The message for an invalid entrypoint has the expected form and an example."""
    assert expected in failure(entrypoint)


def test_file_whose_name_is_not_a_module_name(write, tmp_path):
    """A file name with a hyphen, which cannot be imported, is refused at once."""
    (tmp_path / "word-count.py").write_text("")
    assert "word-count.py cannot be imported" in failure("word-count.py")


def test_missing_module_names_where_it_was_looked_for(write, tmp_path):
    """The error for a module that does not exist names the folder that was searched."""
    told = failure("shop_missing.main:topology")
    assert f"there is no module `shop_missing` in {tmp_path}" in told


def test_missing_dependency_names_the_line_that_imports_it(write, tmp_path):
    """The error for a missing module that the program imports has the importing line."""
    write("import os\nimport shop_dependency\n")
    told = failure("shop_app:topology")
    assert f"importing `shop_app` failed at {tmp_path}/shop_app.py:2: module `shop_dependency` is not installed" in told


def test_syntax_error_names_its_line(write, tmp_path):
    """A syntax error is shown with its file and line."""
    write("def topology(:\n")
    assert f"{tmp_path}/shop_app.py:1: invalid syntax" in failure("shop_app:topology")


def test_module_that_raises_names_its_line(write, tmp_path):
    """An exception at import, including SystemExit, is shown with the user's line."""
    write("x = 1\nraise SystemExit(3)\n")
    assert f"importing `shop_app` raised SystemExit: 3 at {tmp_path}/shop_app.py:2" in failure("shop_app:topology")


def test_missing_attribute_suggests_the_nearest(write, tmp_path):
    """The error for a missing name suggests the closest one that exists."""
    write(TAKES_NOTHING)
    told = failure("shop_app:topologie")
    assert f"`shop_app` ({tmp_path}/shop_app.py) has no `topologie`; did you mean `topology`?" in told


def test_entrypoint_that_is_not_callable_is_refused(write):
    """A topology is not callable."""
    write("from millrace.topology import Topology\ntopology = Topology()\n")
    assert "`topology` is not callable but of type Topology: name a function" in failure("shop_app:topology")


def test_function_that_raises_names_the_users_line(write, tmp_path):
    """An exception is shown with the innermost line of the user's code, not of Millrace or a library."""
    write("""
        import json
        def topology(builder):
            read()
        def read():
            json.loads("{")
    """)
    told = failure("shop_app:topology")
    assert told.startswith("shop_app:topology raised JSONDecodeError: Expecting property name")
    assert told.endswith(f"at {tmp_path}/shop_app.py:6")


def test_error_in_the_topology_names_the_users_line(write, tmp_path):
    """An error from the builder is shown with the line that caused it."""
    write("""
        from millrace.topology import Topology
        def topology():
            topology = Topology()
            topology.add_source("a", "in")
            topology.add_source("a", "in2")
            return topology
    """)
    told = failure("shop_app:topology")
    assert "a" in told
    assert told.endswith(f"(at {tmp_path}/shop_app.py:6)")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def topology(): return 'x'", "returned str: it must return a Topology or a StreamsBuilder"),
        ("def topology(): pass", "returned NoneType: it must return a Topology or a StreamsBuilder"),
        (
            "def topology(builder): return 1",
            "returned int: it must return a Topology or a StreamsBuilder, or nothing if it",
        ),
        ("def topology(a, b, c): pass", "has the parameters (a, b, c): it may take nothing, a StreamsBuilder"),
        ("def topology(*, a): pass", "has the parameters (*, a): it may take nothing"),
    ],
)
def test_wrong_function_is_explained(write, code, expected):
    """The messages for wrong parameters and results say what is allowed."""
    write(code)
    assert expected in failure("shop_app:topology")


def test_parse_gives_the_parts():
    """An entrypoint has a module and a callable, and for a file its folder."""
    assert parse("a.b:c.d") == ("a.b", "c.d", None)
    assert parse(__file__) == ("test_entrypoint", "topology", __file__.rpartition("/")[0])
