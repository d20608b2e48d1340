"""Makes `docs/configuration.md` of `StreamsConfig` and `docs/configuration.yaml`: `python -m tests.docs.configuration`."""

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

Every setting has Kafka's dotted name; in Python the name with underscores will do as well
(`StreamsConfig(application_id="app", …)`). Times are milliseconds. This page is generated from `StreamsConfig` by
`python -m tests.docs.configuration`, and a test keeps it current.

* **partly**: served with the limits that the note tells. **ignored**: accepted, because Java's settings are taken as they are,
  but without effect. **ours**: not a setting of Kafka Streams. All others do what they do in Java.
* Settings that are not in the tables go to the Kafka clients, those with `consumer.`, `main.consumer.`, `restore.consumer.`,
  `global.consumer.`, `producer.` or `admin.` to one kind of client only. `topic.*` are settings of internal topics, and
  `client.tag.*` those of KIP-708. What is not known to any client is warned about, with the nearest known name.
"""


class Key(BaseModel):
    """What is said of one setting."""

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
    """Read what is said of the settings."""
    return [Group.model_validate(group) for group in safe_load(SOURCE.read_text())]


def fields() -> dict[str, FieldInfo]:
    """Return the settings by their dotted names."""
    return {str(info.alias): info for name, info in StreamsConfig.model_fields.items() if name != "client_settings"}


def problems(groups: list[Group]) -> Iterator[str]:
    """Yield settings that are missing or unknown, and states that the code contradicts."""
    said = {key: entry for group in groups for key, entry in group.keys.items()}
    known = fields()
    yield from (f"{key}: nothing is said of it" for key in known.keys() - said.keys())
    yield from (f"{key}: there is no such setting" for key in said.keys() - known.keys())
    names = {str(info.alias): name for name, info in StreamsConfig.model_fields.items()}
    code = "\n".join(
        path.read_text()
        for path in (ROOT / "runtime").rglob("*.py")
        if path.relative_to(ROOT / "runtime" / "millrace").as_posix() not in {"config.py", "kafka/translation.py"}
    )
    for key, entry in said.items():
        if entry.state == "ignored" and names.get(key, key) in code:
            yield f"{key}: is said to be ignored, but the code reads it"


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
