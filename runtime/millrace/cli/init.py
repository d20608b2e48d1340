"""`millrace init`: creates an application that runs as it is."""

from __future__ import annotations

import keyword
import re
import shlex
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from millrace.errors import ConfigError

_FILES: Final = {
    "topology.py.template": "{module}.py",
    "test_topology.py.template": "tests/test_{module}.py",
    "streamsapp.yaml.template": "streamsapp.yaml",
    "pyproject.toml.template": "pyproject.toml",
    "README.md.template": "README.md",
}
"""Templates, and the files that they become."""


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder; created if it does not exist.", show_default=False)
    ] = Path(),
    name: Annotated[
        str | None,
        typer.Option("--name", help="The application's name; by default the folder's.", show_default=False),
    ] = None,
) -> None:
    """Create an application: a topology, its test, a manifest, a pyproject.toml and a README.

    The application counts words, and its test passes. Existing files are not changed: if a new file would replace one,
    nothing is created. For example:

    - `millrace init orders`
    - `millrace init --name order-totals`
    """
    folder = directory.absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{directory} is a file: name a folder, which is created if it does not exist")
    given = name if name is not None else re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", given):
        raise ConfigError(
            f"`{given}` cannot be the application's name: use lower-case letters, digits and `-`, beginning with a letter; "
            "give another one with --name"
        )
    module = given.replace("-", "_")
    if keyword.iskeyword(module):
        raise ConfigError(f"`{given}` cannot be the application's name, as `{module}` is a Python keyword: use --name")
    if _is_imported_elsewhere(module, folder):
        raise ConfigError(
            f"`{given}` cannot be the application's name, as there already is a module `{module}`, which would be imported "
            "instead, or hidden: use --name"
        )
    texts = {target.format(module=module): _filled(source, given, module) for source, target in _FILES.items()}
    if existing := [path for path in texts if (folder / path).exists()]:
        raise ConfigError(f"Nothing was created, because {folder} already has {', '.join(existing)}")
    for path, text in texts.items():
        _write(folder / path, text)
        print(f"Created {directory / path}")
    enter = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    print(f"Run its test with `{enter}pytest`, and run it with `{enter}millrace dev up`")


def _is_imported_elsewhere(module: str, folder: Path) -> bool:
    """Return whether there is a module of Python, or of a package, with this name."""
    found = find_spec(module)
    if found is None or found.origin is None:
        return False
    return not Path(found.origin).resolve().is_relative_to(folder.resolve())


def _filled(template: str, name: str, module: str) -> str:
    text = resources.files("millrace.cli").joinpath("scaffold", template).read_text()
    return Template(text).substitute(name=name, module=module)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"Cannot create {path}: {error.strerror}") from error
