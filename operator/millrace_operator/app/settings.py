"""The operator's settings, read from environment variables `MILLRACE_OPERATOR_…`, and its logging, which they configure."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from millrace_operator.kafka.client_config import is_allowed

PREFIX: Final = "MILLRACE_OPERATOR_"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_SERVERS: Final = re.compile(r"[A-Za-z0-9.*-]*[A-Za-z0-9][A-Za-z0-9.*-]*:[0-9]+")
"""Part of the host must be given: `*:9098` would match anybody's brokers."""


class SettingsError(Exception):
    """The environment contains invalid settings."""


def _separated(accepts: Callable[[str], object], form: str) -> BeforeValidator:
    """Return the validator of a list in one variable, separated by commas; `form` says what its entries must be."""

    def check(value: Any) -> Iterable[str]:
        entries = (
            tuple(entry.strip() for entry in value.split(",") if entry.strip()) if isinstance(value, str) else value
        )
        for entry in entries:
            if not accepts(entry):
                raise ValueError(f"{entry!r} is not {form}; separate several by commas")
        return entries

    return BeforeValidator(check)


class OperatorSettings(BaseModel):
    """The operator's settings; each is the variable of its name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    namespaces: Annotated[tuple[str, ...], _separated(_NAMESPACE.fullmatch, "the name of a namespace")] = ()
    """Namespaces to serve, separated by commas; empty for all."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Log level."""
    log_format: Literal["text", "json"] = "text"
    """Log format."""
    workers: Annotated[int, Field(ge=1, le=64)] = 4
    """How many applications are worked on at once."""
    resync_seconds: Annotated[float, Field(ge=1, le=3600)] = 30
    """After how many seconds an application is looked at though nothing was reported."""
    relist_seconds: Annotated[float, Field(ge=10, le=86400)] = 600
    """After how many seconds everything is listed again, to find what a watch has missed."""
    stuck_seconds: Annotated[float, Field(ge=10, le=86400)] = 300
    """How long one pass may take before the liveness probe fails."""
    template_rolls: Annotated[int, Field(ge=0, le=1000)] = 3
    """How many applications at a time have pods replaced for being built by another version of the operator; 0 for none."""
    token_endpoints: Annotated[
        tuple[str, ...], _separated(lambda url: is_allowed(url, [url]), "a URL that begins with https:// or http://")
    ] = ()
    """Beginnings of URLs, separated by commas, that tokens may be fetched from for applications that authenticate by OAuth."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of /healthz, /readyz and /metrics."""
    pod_name: Annotated[str, Field(min_length=1)] = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}"
    )
    """What this operator is called in the Lease: its pod's name."""
    pod_namespace: Annotated[str, Field(pattern=_NAMESPACE)] = "default"
    """The operator's own namespace, where its Lease is."""
    lease_name: Annotated[str, Field(min_length=1, max_length=253)] = "millrace-operator"
    """Name of the Lease that one of several operators holds."""
    lease_seconds: Annotated[float, Field(ge=3, le=600)] = 15
    """How long the Lease is held without being renewed."""
    cloud_identity: Annotated[
        tuple[str, ...], _separated(_SERVERS.fullmatch, "host:port, with `*` for any characters")
    ] = ()
    """Bootstrap servers (host:port, `*` for any characters, separated by commas) to which the operator may show the identity that
    its own pod has in AWS or Azure, for applications that reach them with theirs; empty for none."""


def settings_from(environment: Mapping[str, str]) -> OperatorSettings:
    """Read the settings.

    Raises:
        SettingsError: A variable is unknown or has a value that is not allowed; names every such variable.
    """
    given = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value
    }
    try:
        return OperatorSettings.model_validate(given)
    except ValidationError as error:
        problems = []
        for item in error.errors():
            problem = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                known = ", ".join(f"{PREFIX}{name.upper()}" for name in OperatorSettings.model_fields)
                problem = f"there is no such setting; there are {known}"
            problems.append(f"{PREFIX}{str(item['loc'][0]).upper()}={item['input']!r}: {problem}")
        raise SettingsError("\n".join(problems)) from None


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logs(settings: OperatorSettings) -> None:
    """Configure logging; libraries log only warnings and errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _Json()
        if settings.log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    if settings.log_level != "DEBUG":
        for library in ("kopf", "kubernetes", "urllib3", "aiohttp", "asyncio", "kafka"):
            logging.getLogger(library).setLevel(logging.WARNING)
