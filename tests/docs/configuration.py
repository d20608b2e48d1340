"""Generates `docs/configuration.md` from `StreamsConfig` and `docs/configuration.yaml`: `python -m tests.docs.configuration`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from tests.docs.inventory import ROOT
from yaml import safe_load

from millrace.config import StreamsConfig

SOURCE = ROOT / "docs" / "configuration.yaml"
PAGE = ROOT / "docs" / "configuration.md"

_HEAD = """# Configuration

Settings have Kafka's dotted names; in Python you can also use underscores (`StreamsConfig(application_id="app", …)`). Times are
in milliseconds. This page is generated from `StreamsConfig` by `python -m tests.docs.configuration`, and a test keeps it up to
date.

* **partly**: supported, with the limits given in the note. **ignored**: accepted, so that you can reuse Java's settings, but has
  no effect. **ours**: not a setting of Kafka Streams. All others work as in Java.
* All other settings are passed to the Kafka clients; with the prefix `consumer.`, `main.consumer.`, `restore.consumer.`,
  `global.consumer.`, `producer.` or `admin.` only to that kind of client. `topic.*` are settings of internal topics,
  `client.tag.*` the tags of KIP-708. A setting that no client knows causes a warning with the closest known name.
"""


class Key(BaseModel):
    """What the page says about one setting."""

    model_config = ConfigDict(extra="forbid")

    meaning: str
    state: str = Field(default="served", pattern="^(served|ours|partly|ignored)$")
    note: str = ""


class Group(BaseModel):
    """Settings that belong together."""

    model_config = ConfigDict(extra="forbid")

    title: str
    keys: dict[str, Key]


def load() -> list[Group]:
    """Read the descriptions of the settings."""
    return [Group.model_validate(group) for group in safe_load(SOURCE.read_text())]


def fields() -> dict[str, FieldInfo]:
    """Return the settings by their dotted names."""
    return {str(info.alias): info for name, info in StreamsConfig.model_fields.items() if name != "client_settings"}


def problems(groups: list[Group]) -> Iterator[str]:
    """Yield settings that are missing or unknown, and states that the code contradicts."""
    said = {key: entry for group in groups for key, entry in group.keys.items()}
    known = fields()
    yield from (f"{key}: is not described" for key in known.keys() - said.keys())
    yield from (f"{key}: there is no such setting" for key in said.keys() - known.keys())
    names = {str(info.alias): name for name, info in StreamsConfig.model_fields.items()}
    code = "\n".join(
        path.read_text()
        for path in (ROOT / "runtime").rglob("*.py")
        if path.relative_to(ROOT / "runtime" / "millrace").as_posix() not in {"config.py", "kafka/translation.py"}
    )
    for key, entry in said.items():
        if entry.state == "ignored" and names.get(key, key) in code:
            yield f"{key}: is marked as ignored, but the code reads it"


def render(groups: list[Group]) -> str:
    """Return the page."""
    known = fields()
    parts = [_HEAD]
    for group in groups:
        parts.append(f"## {group.title}\n")
        parts.append("| setting | default | meaning | |\n|---|---|---|---|")
        parts.append("".join(_row(key, entry, known[key]) for key, entry in group.keys.items()))
    return "\n".join(parts)


def _row(key: str, entry: Key, info: FieldInfo) -> str:
    state = "" if entry.state == "served" else f"**{entry.state}**"
    note = ": ".join(part for part in (state, entry.note) if part)
    return f"| `{key}` | {_default(info)} | {entry.meaning} | {note} |\n"


def _default(info: FieldInfo) -> str:
    value: Any = info.default
    if value is PydanticUndefined:
        return "required" if info.default_factory is None else ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        value = str(value).lower()
    return "" if value in (None, "", ()) else f"`{value}`"


def main() -> int:
    """Write the page."""
    groups = load()
    wrong = list(problems(groups))
    print(*wrong, sep="\n", end="\n" if wrong else "")  # noqa: T201 (a command-line tool)
    PAGE.write_text(render(groups))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
