"""What a setting that stands for code accepts, and what it says about a mistake."""

from __future__ import annotations

import sys
import textwrap
from types import SimpleNamespace
from typing import Protocol

import pytest

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.loading import Configurable, implements, load, load_instance

KNOWN = {"Quiet": "the quiet one", "Loud": "the loud one"}


class Handler:
    """A class of the user's."""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write modules in a folder on the path, and forget them afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def module(name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))

    yield module
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("Quiet", "the quiet one"),
        (" Loud ", "the loud one"),
        ("org.apache.kafka.streams.errors.Quiet", "the quiet one"),
        ("org.apache.kafka.streams.Handlers$Loud", "the loud one"),
        ("Handlers$Loud", "the loud one"),
        ("millrace.errors:ConfigError", ConfigError),
        ("millrace.errors:ConfigError.__name__", "ConfigError"),
        ("millrace.errors.ConfigError", ConfigError),
        (Handler, Handler),
        (7, 7),
    ],
)
def test_every_form_is_loaded(value, result):
    """A name, Java's name, an import path or the object itself; a class stays a class."""
    assert load(value, "some.key", KNOWN) == result


def test_an_instance_is_made_of_a_class_only():
    """Whoever names a class gets an instance; an object and a function are taken as they are."""
    assert isinstance(load_instance(Handler, "some.key"), Handler)
    made = Handler()
    assert load_instance(made, "some.key") is made
    assert load_instance(len, "some.key") is len


class Forwarding:
    """Has the methods of another object, as a proxy or a mock has."""

    def __init__(self, to):
        self._to = to

    def __getattr__(self, name):
        return getattr(self._to, name)


def test_any_module_that_can_be_imported_is_loaded(write):
    """Before a colon, a module's name need not be a Python identifier."""
    write("loading-dashed", "found = 1")
    write("2loading", "found = 2")
    assert load("loading-dashed:found", "some.key") == 1
    assert load("2loading:found", "some.key") == 2


def test_only_a_method_configures():
    """An object's method `configure` is called, also one that it forwards; another attribute of that name is left alone."""
    config = StreamsConfig.of({"application.id": "app", "bootstrap.servers": "nowhere:1"})
    given = []
    load_instance(Forwarding(SimpleNamespace(configure=given.append)), "some.key", config=config)
    assert given == [config]
    load_instance(SimpleNamespace(configure={"size": 1}), "some.key", config=config)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("Quite", "some.key: 'Quite' is not known here: give module:attribute, or one of Quiet, Loud"),
        ("com.example.Quiet", "some.key: 'com.example.Quiet' is not known here"),
        ("a b:c", "some.key: 'a b:c' is not known here"),
        (
            "loading_nowhere:x",
            "some.key: 'loading_nowhere:x' cannot be imported: there is no module `loading_nowhere` in ",
        ),
        ("millrace.errors:ConfigEror", "has no `ConfigEror`; did you mean `ConfigError`?"),
        ("loading_raises:x", "loading_raises.py:2"),
        ("loading_raises.x", "importing `loading_raises` raised ValueError: no"),
        ("loading_needs:x", "module `loading_missing` is not installed"),
        ("loading_wrong:x", "loading_wrong.py:1: "),
    ],
)
def test_a_mistake_is_explained(write, value, message):
    """The message has the key, the value, and what is wrong with it or where the user's code failed."""
    write("loading_raises", "x = 1\nraise ValueError('no')\n")
    write("loading_needs", "import loading_missing\n")
    write("loading_wrong", "def x(:\n")
    with pytest.raises(ConfigError) as caught:
        load(value, "some.key", KNOWN)
    assert str(caught.value).startswith(f"some.key: {value!r} ")
    assert message in str(caught.value)


def test_a_class_that_needs_arguments_is_refused():
    """A class is instantiated without arguments, so one that needs some has to be given as an object."""
    with pytest.raises(ConfigError, match=r"some\.key: .* needs arguments .*: give an object"):
        load_instance(type("Needy", (), {"__init__": lambda self, size: None}), "some.key")


class Sized(Protocol):
    """A protocol with all kinds of members."""

    suffix_size: int

    @property
    def name(self) -> str:
        """Return something."""

    def base_key(self) -> bytes:
        """Return something."""


class Complete:
    """Has them all."""

    suffix_size, name = 8, "a"

    def base_key(self):
        """Return something."""
        return b""


class Proxy:
    """Forwards what it does not have."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


@pytest.mark.parametrize("value", [Complete(), Proxy(Complete()), Proxy(Proxy(Complete()))])
def test_a_proxy_implements_what_it_forwards(value):
    """Every Python sees it, which is not so with isinstance."""
    assert implements(value, Sized)
    assert not implements(value, Configurable)


@pytest.mark.parametrize("missing", ["suffix_size", "name", "base_key"])
def test_every_member_of_a_protocol_counts(missing):
    """What lacks one of them, or has a value in place of a method, does not implement it."""
    has = {"suffix_size": 8, "name": "a", "base_key": lambda: b""}
    assert implements(SimpleNamespace(**has), Sized)
    assert not implements(SimpleNamespace(**{name: value for name, value in has.items() if name != missing}), Sized)
    assert not implements(SimpleNamespace(**has | {"base_key": b""}), Sized)
