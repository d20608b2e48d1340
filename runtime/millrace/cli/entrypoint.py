"""Finds the user's function and has it build the topology; whatever goes wrong on the way names the user's own line.

An entrypoint is `package.module:callable`, or for trying things out a file, `app.py` or `app.py:callable` (its callable is
`topology` if none is named). The callable takes nothing, a `StreamsBuilder`, or a `StreamsBuilder` and the application's own
configuration (also alone, by the name `config`), and returns a `Topology`, a `StreamsBuilder`, or nothing if it was given a
builder. A file's folder and the working directory are importable, as for `python app.py` and `python -m`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import itertools
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from millrace.errors import EntrypointError, StreamsError

if TYPE_CHECKING:
    from millrace.config import StreamsConfig
    from millrace.dsl import StreamsBuilder
    from millrace.topology import Topology

DEFAULT_CALLABLE = "topology"
_FOREIGN_FOLDERS = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<frozen")


def load_topology(
    entrypoint: str,
    *,
    streams_config: StreamsConfig | None = None,
    app_config: Mapping[str, Any] | None = None,
    args: Sequence[str] = (),
    folders: Sequence[Path] = (),
) -> Topology:
    """Import an entrypoint, call it and return the topology it built.

    Args:
        entrypoint: `package.module:callable`, or a file with or without `:callable`.
        streams_config: Settings that change how the DSL compiles, such as `topology.optimization`.
        app_config: The application's own configuration, `spec.app.config` of a manifest.
        args: What the program finds in `sys.argv[1:]`.
        folders: Where else modules are looked for, after the working directory.

    Raises:
        EntrypointError: The text, module, attribute, call or result is wrong; says which, where, and what to write.
    """
    module_name, attribute, folder = parse(entrypoint)
    for path in (*map(str, reversed(folders)), str(Path.cwd()), folder):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    sys.argv = [module_name, *args]
    module = _import(module_name, entrypoint, folder)
    function = _callable(module, attribute, entrypoint)
    return _call(function, entrypoint, app_config or {}, streams_config)


def parse(entrypoint: str) -> tuple[str, str, str | None]:
    """Return module, attribute and, for a file, its folder.

    >>> parse("shop.orders:topology")
    ('shop.orders', 'topology', None)

    Raises:
        EntrypointError: It has neither form, or the file does not exist.
    """
    module, colon, attribute = entrypoint.rpartition(":")
    if not colon:
        module, attribute = entrypoint, ""
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise EntrypointError(f"There is no file {module} (looked from {Path.cwd()})")
        if not path.stem.isidentifier():
            raise EntrypointError(f"{path.name} cannot be imported: a module's name has letters, digits and `_` only")
        return path.stem, attribute or DEFAULT_CALLABLE, str(path.resolve().parent)
    steps = [*module.split("."), *attribute.split(".")]
    if not all(step.isidentifier() for step in steps):
        example = module if colon and module.replace(".", "_").isidentifier() else entrypoint.partition(":")[0]
        example = example if example.replace(".", "_").isidentifier() else "wordcount"
        raise EntrypointError(
            f"`{entrypoint}` is not an entrypoint: write `package.module:callable`, for example `{example}:{DEFAULT_CALLABLE}`"
        )
    return module, attribute, None


def _import(name: str, entrypoint: str, folder: str | None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise EntrypointError(
                f"{entrypoint}: there is no module `{missing}` in {folder or Path.cwd()} or among the installed packages; "
                "run from the folder that holds it, or install it"
            ) from None
        raise EntrypointError(
            f"{entrypoint}: importing `{name}` failed at {_position(error.__traceback__)}: module `{missing}` is not installed"
        ) from error
    except SyntaxError as error:
        raise EntrypointError(f"{entrypoint}: {error.filename}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise EntrypointError(
            f"{entrypoint}: importing `{name}` raised {_summary(error)} at {_position(error.__traceback__)}"
        ) from error


def _callable(module: ModuleType, attribute: str, entrypoint: str) -> Callable[..., Any]:
    value: Any = module
    for step in attribute.split("."):
        if not hasattr(value, step):
            names = [name for name in dir(value) if not name.startswith("_")]
            near = difflib.get_close_matches(step, names, 1, 0.5)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise EntrypointError(f"{entrypoint}: `{module.__name__}` ({module.__file__}) has no `{step}`{hint}")
        value = getattr(value, step)
    if not callable(value):
        raise EntrypointError(
            f"{entrypoint}: `{attribute}` is not callable but of type {type(value).__name__}: "
            "name a function that returns the topology"
        )
    function: Callable[..., Any] = value
    return function


def _call(
    function: Callable[..., Any], entrypoint: str, app_config: Mapping[str, Any], streams_config: StreamsConfig | None
) -> Topology:
    from millrace.dsl import StreamsBuilder
    from millrace.topology import Topology

    builder = StreamsBuilder()
    arguments = _arguments(function, entrypoint, builder, app_config)
    try:
        result = function(*arguments)
        if result is None and arguments and arguments[0] is builder:
            result = builder
        if isinstance(result, StreamsBuilder):
            result = result.build(streams_config)
    except StreamsError as error:
        where = _position(error.__traceback__)
        raise EntrypointError(f"{entrypoint}: {error} (at {where})") from error
    except (Exception, SystemExit) as error:
        where = _position(error.__traceback__)
        raise EntrypointError(f"{entrypoint} raised {_summary(error)} at {where}") from error
    if not isinstance(result, Topology):
        wanted = "a Topology or a StreamsBuilder" + (
            ", or nothing if it fills the one it is given" if arguments else ""
        )
        raise EntrypointError(f"{entrypoint} returned {type(result).__name__}: it must return {wanted}")
    return result


def _arguments(
    function: Callable[..., Any], entrypoint: str, builder: StreamsBuilder, app_config: Mapping[str, Any]
) -> list[Any]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    positional = [item for item in parameters if item.kind in {item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD}]
    wanted = list(itertools.takewhile(lambda item: item.default is item.empty or item.name == "config", positional))
    required_by_name = [item for item in parameters if item.kind is item.KEYWORD_ONLY and item.default is item.empty]
    if [item.name for item in wanted] == ["config"]:
        offered: list[Any] = [app_config]
    else:
        offered = [builder, app_config]
    if len(wanted) > len(offered) or required_by_name:
        raise EntrypointError(
            f"{entrypoint} has the parameters {inspect.signature(function)}: it may take nothing, a StreamsBuilder, "
            "or a StreamsBuilder and the mapping `config`"
        )
    return offered[: len(wanted)]


def _summary(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _position(trace: TracebackType | None) -> str:
    """Return file and line of the innermost frame that is the user's."""
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_foreign(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _is_foreign(filename: str) -> bool:
    return filename.startswith(_FOREIGN_FOLDERS) or "site-packages" in filename
