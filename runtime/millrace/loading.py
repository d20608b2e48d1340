"""Loads the code that a setting names: a serde, an exception handler, a processor wrapper, store suppliers, an entrypoint.

A setting that stands for code takes any of these, wherever it is read:

| value | result |
|---|---|
| an object of the wanted kind | the object itself |
| a class | an instance of it, made without arguments |
| a name that Millrace knows, such as `string` or `LogAndContinueExceptionHandler` | what is built in under that name |
| the name of one of Kafka's Java classes, with its package | the same |
| `module:attribute`, where the attribute may have dots, or `module.attribute` | what is imported, treated as above |

Where a plain function is wanted (a timestamp extractor, an entrypoint) an object is a function. The same mistake gives the same
message everywhere: an unknown name, a missing module, one that raises when it is imported, an attribute that it lacks,
a class that needs arguments.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol, TypeGuard, TypeVar

from millrace.checks import did_you_mean
from millrace.config import StreamsConfig
from millrace.errors import ConfigError

_NOT_THE_USERS: Final = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<frozen")
_PATH: Final = re.compile(r"([^\s:.][^\s:]*):([^\W\d][\w.]*)")


_T = TypeVar("_T")


class Configurable(Protocol):
    """Code that is given the application's settings."""

    def configure(self, config: StreamsConfig) -> object:
        """Take the settings; called once, before anything else."""


def implements(value: object, protocol: type[_T]) -> TypeGuard[_T]:
    """Return whether a user's object has everything that a protocol names, even if it only forwards it by `__getattr__`.

    `isinstance` does not see what is forwarded, since Python 3.12.

    >>> class Setter:
    ...     def configure(self, config): ...
    >>> implements(Setter(), Configurable), implements("text", Configurable)
    (True, False)
    """
    methods = {name for name, member in vars(protocol).items() if callable(member) and not name.startswith("_")}
    names = {name for name in (*vars(protocol), *inspect.get_annotations(protocol)) if not name.startswith("_")}
    return all(hasattr(value, name) for name in names) and all(callable(getattr(value, name)) for name in methods)


class LoadError(Exception):
    """Code cannot be imported; the message says why and where, to be read after the name of what was to be loaded."""


def load(value: object, setting: str, known: Mapping[str, object] | None = None) -> object:
    """Return the object that a setting's value stands for; a class as it is, without making an instance.

    Args:
        value: What the user gave.
        setting: Its key, for messages.
        known: What is built in, by name. Names of Kafka's Java classes are looked up without their package.

    Raises:
        ConfigError: The name is not known, or cannot be imported.
    """
    if not isinstance(value, str):
        return value
    name = value.strip()
    if known and java_name(name) in known:
        return known[java_name(name)]
    module, attribute = _split(name)
    try:
        if module and attribute:
            return import_attribute(module, attribute)
    except LoadError as error:
        if ":" in name or isinstance(error.__cause__, Exception):
            raise ConfigError(f"{setting}: {value!r} cannot be imported: {error}") from error.__cause__
    names = f", or one of {', '.join(known)}" if known else ""
    meant = did_you_mean(java_name(name), list(known or ()))
    raise ConfigError(f"{setting}: {value!r} is not known here: give module:attribute{names}{meant}")


def load_instance(
    value: object, setting: str, known: Mapping[str, object] | None = None, *, config: StreamsConfig | None = None
) -> object:
    """Return what a setting's value stands for; if that is a class, an instance.

    Args:
        value: What the user gave.
        setting: Its key, for messages.
        known: What is built in, by name.
        config: Passed to the object if it has a method `configure`.

    Raises:
        ConfigError: The name is not known or cannot be imported, or the class needs arguments.
    """
    found = load(value, setting, known)
    made = construct(found, setting) if isinstance(found, type) else found
    if config is not None and implements(made, Configurable):
        made.configure(config)
    return made


def loadable(value: object, setting: str, known: Mapping[str, object] | None = None) -> object:
    """Return what a setting's value stands for, after checking that `load_instance` can make an instance of it if it is a class.

    Args:
        value: What the user gave.
        setting: Its key, for messages.
        known: What is built in, by name.

    Raises:
        ConfigError: The name is not known or cannot be imported, or the class needs arguments.
    """
    found = load(value, setting, known)
    if isinstance(found, type):
        _require_no_arguments(found, setting)
    return found


def construct(factory: Callable[[], object], setting: str) -> object:
    """Call a class or function without arguments.

    Raises:
        ConfigError: It needs some.
    """
    _require_no_arguments(factory, setting)
    return factory()


def _require_no_arguments(factory: Callable[[], object], setting: str) -> None:
    # Only classes are remembered: other callables may have no hash, and would be kept alive.
    problem = (_missing_arguments if isinstance(factory, type) else _missing_arguments.__wrapped__)(factory)
    if problem is not None:
        raise ConfigError(
            f"{setting}: {factory!r} needs arguments ({problem}): give an object, or module:attribute that names one"
        ) from problem


@functools.lru_cache(maxsize=256)  # a signature takes half a millisecond, and a task asks for several
def _missing_arguments(factory: Callable[[], object]) -> TypeError | None:
    try:
        inspect.signature(factory).bind()
    except ValueError:
        return None  # written in C, without a signature to look at
    except TypeError as error:
        return error
    return None


def java_name(text: str) -> str:
    """Return the simple name of one of Kafka's Java classes, and other text unchanged.

    >>> java_name("org.apache.kafka.common.serialization.Serdes$LongSerde"), java_name("com.example.LongSerde")
    ('LongSerde', 'com.example.LongSerde')
    """
    if text.startswith("org.apache.kafka."):
        text = text.rpartition(".")[2]
    return text if "." in text else text.rpartition("$")[2]


def import_attribute(module: str, attribute: str, *, folder: str | None = None) -> object:
    """Import a module and return one of its attributes.

    Args:
        module: Its dotted name.
        attribute: The attribute's name, with dots for one inside another.
        folder: Where the module is looked for, apart from installed packages, for the message; the working directory if
            None.

    Raises:
        LoadError: The module does not exist, raised (its cause is the exception then), or lacks the attribute.
    """
    imported = _import(module, folder)
    value: object = imported
    for step in attribute.split("."):
        try:
            value = getattr(value, step)
        except AttributeError:
            near = difflib.get_close_matches(step, _own_names(value), 1, 0.5)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            where = imported.__spec__.origin if imported.__spec__ else None
            raise LoadError(f"`{module}` ({where or 'without a file'}) has no `{step}`{hint}") from None
    return value


def _own_names(value: object) -> list[str]:
    """Return the public names of a value; of a module those that it defines, unless it has only imported ones."""
    names = [name for name in dir(value) if not name.startswith("_")]
    if not isinstance(value, ModuleType):
        return names
    return [name for name in names if getattr(getattr(value, name), "__module__", None) == value.__name__] or names


def where_raised(error: BaseException) -> str:
    """Return file and line of the innermost frame of an exception that belongs to the user's code."""
    frames = _users_frames(error)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def raised_by_user(error: BaseException) -> bool:
    """Return whether an exception was raised in the user's code, or in what that code called."""
    return bool(_users_frames(error))


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS) and "site-packages" not in frame.filename
    ]


def summary(error: BaseException) -> str:
    """Return an exception's type and message on one line.

    >>> summary(ValueError("not a number"))
    'ValueError: not a number'
    """
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _split(name: str) -> tuple[str, str]:
    """Return module and attribute of `module:attribute` or `module.attribute`, or empty strings."""
    path = _PATH.fullmatch(name)
    if path:
        return path[1], path[2]
    module, _, attribute = name.rpartition(".")
    return (module, attribute) if module and all(part.isidentifier() for part in name.split(".")) else ("", "")


def _import(name: str, folder: str | None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise LoadError(
                f"there is no module `{missing}` in {folder or Path.cwd()} or among the installed packages; "
                "run from the folder that holds it, or install it"
            ) from None
        raise LoadError(
            f"importing `{name}` failed at {where_raised(error)}: module `{missing}` is not installed"
        ) from error
    except SyntaxError as error:
        raise LoadError(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        place = where_raised(error)
        told = summary(error)
        raise LoadError(f"importing `{name}` raised {told}" + ("" if place in told else f" at {place}")) from error
