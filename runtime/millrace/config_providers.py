"""Settings with values in files, in the syntax of Kafka's own configuration providers.

`${directory:/etc/app/secrets:password}` is the content of the file `password` in that folder (DirectoryConfigProvider), without
the newline at its end; `${file:/etc/app/kafka.properties:password}` is the value of that key in a properties file
(FileConfigProvider). Both may be part of a longer value, such as a `sasl.jaas.config`. Any other `${…}` is left unchanged.

Settings keep their references, which are resolved when a client is opened, and again when a file changes. Text from a file is
`Hidden`: its representation does not show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from millrace.errors import ConfigError

__all__ = ["Hidden", "files", "is_reference", "refers", "resolve"]

_REFERENCE: Final = re.compile(r"\$\{(directory|file):([^:}]+):([^}]+)\}")
_PROPERTY: Final = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]?\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Hidden(str):
    """Text from a file, whose representation does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[hidden]'"


def refers(value: object) -> bool:
    """Return whether a setting's value contains a reference."""
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def is_reference(value: object) -> bool:
    """Return whether a setting's value is a single reference and nothing else."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value.strip()) is not None


def files(value: object) -> Iterator[Path]:
    """Yield the files that a setting's value refers to."""
    if isinstance(value, str):
        for kind, path, key in _REFERENCE.findall(value):
            yield Path(path, key) if kind == "directory" else Path(path)


def resolve(setting: str, value: object) -> object:
    """Return a setting's value with its references resolved; a value without references is returned unchanged.

    Args:
        setting: Its name, for errors.
        value: What the user wrote.

    Raises:
        ConfigError: A file or a key in it does not exist or cannot be read; names the setting and the file.
    """
    if not isinstance(value, str) or not refers(value):
        return value
    return Hidden(_REFERENCE.sub(lambda match: _read(setting, match[1], match[2], match[3]), value))


def _read(setting: str, kind: str, path: str, key: str) -> str:
    file = Path(path, key) if kind == "directory" else Path(path)
    if kind == "directory" and (len(Path(key).parts) != 1 or key == ".."):
        raise ConfigError(f"{setting} refers to {key!r} in {path}: name a file in that folder, without a path")
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{setting} refers to {file}, which does not exist: mount the secret there, or correct the setting"
        ) from None
    except OSError as error:
        raise ConfigError(f"{setting} refers to {file}, which cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting} refers to {file}, which is not text in UTF-8") from None
    if kind == "directory":
        return text.removesuffix("\n").removesuffix("\r")
    properties = _properties(text)
    if key not in properties:
        raise ConfigError(f"{setting} refers to the key {key!r} of {file}, which has no such key")
    return properties[key]


def _properties(text: str) -> dict[str, str]:
    r"""Read a Java properties file: `key=value`, `key: value` or `key value`, `#` and `!` comments, `\\` continues a line."""
    found = {}
    for line in re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n\s*", r"\1", text).splitlines():
        line = line.lstrip()  # noqa: PLW2901 (the line without its indentation)
        if line and line[0] not in "#!" and (match := _PROPERTY.match(line)):
            found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _CONTROLS.get(escape, escape)

    return _ESCAPE.sub(plain, text)
