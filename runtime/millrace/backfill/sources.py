"""What a backfill reads besides Kafka, as a file says it: `millrace backfill --from source.yaml`.

Needs no Spark, so that a wrong file is found before a job is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from millrace.errors import ConfigError

__all__ = ["FORMATS", "ROLES", "FileSource", "read_sources"]

FORMATS: Final = ("parquet", "json", "csv", "orc", "iceberg", "delta")
ROLES: Final = ("timestamp", "key", "value", "headers", "order", "partition")


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files that have the records of a source topic."""

    topic: str
    path: str
    columns: Mapping[str, str]
    """Role (see `ROLES`) → column. Without `value`, all columns without a role are the value together."""
    format: str = "parquet"
    """Any of Spark's: `iceberg` and `delta` need their packages."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Spark's options for the format."""
    until_ms: int | None = None
    """The instant from which Kafka is read, or None if the files have everything."""


class _Columns(BaseModel):
    model_config = ConfigDict(extra="forbid")

    timestamp: str
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    order: str | None = None
    partition: str | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    topic: str
    path: str
    columns: _Columns
    format: str = "parquet"
    options: dict[str, str] = Field(default_factory=dict)
    until: datetime | None = None


class _Sources(BaseModel):
    model_config = ConfigDict(extra="forbid")

    files: list[_File] = Field(default_factory=list)


def read_sources(path: Path) -> tuple[FileSource, ...]:
    """Read a file of sources, YAML or JSON.

    Raises:
        ConfigError: it does not exist, or says something that is not known.
    """
    try:
        found = _Sources.model_validate(yaml.safe_load(path.read_text()) or {})
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where or 'the file'}: {first['msg']} (see docs/backfill.md)") from error
    return tuple(
        FileSource(
            file.topic,
            file.path,
            file.columns.model_dump(exclude_none=True),
            file.format,
            file.options,
            None if file.until is None else _milliseconds(file.until),
        )
        for file in found.files
    )


def _milliseconds(time: datetime) -> int:
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
