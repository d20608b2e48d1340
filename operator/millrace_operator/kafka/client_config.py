"""How the operator's own Kafka clients are configured, and the credentials that they use.

Where tokens are fetched for OAuth is in an application's Secret. The operator's network reaches more than the
application's, so it fetches them only from where the platform team has allowed it.

A manifest may set any client setting, and pods use them all. The operator must not: some name files,
libraries to load or addresses to fetch tokens from, and the operator's files, token and network are not the
application's. So only the settings listed here are used, and needed settings that cannot be used are refused with a message.

An application's own credentials, as the operator uses them: read from its Secrets, held in memory, shown nowhere.

The operator itself has no access to anybody's Kafka. On an application's brokers it may see and change exactly what the
application may, so an application team cannot use it to reach anything that is not theirs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.security import CLOUD_IDENTITIES, ClientProperties
from millrace.manifest import StreamsApp, StreamsAppSpec
from millrace.manifest.kafka import is_security_setting
from millrace.manifest.secrets import BINDING, PEM, NamedSecret, secrets_of_brokers
from millrace.manifest.service_binding import BindingError, settings_of_binding
from millrace.manifest.settings import mechanism

CLIENT_ID: Final = "millrace-operator"
REQUEST_TIMEOUT_MS: Final = 3_500
"""How long the operator waits for one answer; the next pass asks again."""

_TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 (the name of a setting)
_URL: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+([/?][A-Za-z0-9._~:/?&=%+,;-]*)?")
"""No user part, and no characters that two URL parsers may interpret differently."""
_TAKEN: Final = frozenset({"security.protocol", "ssl.endpoint.identification.algorithm"})
_IGNORED: Final = frozenset({"ssl.cipher.suites"})


class TokenEndpointNotAllowedError(ConfigError):
    """A Secret names a token endpoint from which the operator may not fetch tokens."""


@dataclass(frozen=True, slots=True)
class AllowedAccess:
    """What the platform team lets the operator do to reach the brokers of an application."""

    token_endpoints: Collection[str] = ()
    """Beginnings of the URLs that tokens may be fetched from."""
    cloud_identity: Sequence[str] = ()
    """Patterns of the bootstrap servers to which the operator may show the identity of its own pod."""


NOTHING: Final = AllowedAccess()


def client_config(app: StreamsApp, credentials: Credentials, allowed: AllowedAccess = NOTHING) -> StreamsConfig:
    """Return the settings of the operator's clients of an application's brokers.

    Args:
        app: The application.
        credentials: What its Secrets hold.
        allowed: What the platform team lets the operator do.

    Raises:
        ConfigError: The operator cannot reach the brokers in the way that the manifest says.
        TokenEndpointNotAllowedError: Its token endpoint is not one of those allowed.
    """
    endpoint = credentials.settings.get(_TOKEN_ENDPOINT)
    if endpoint is not None and not is_allowed(endpoint, allowed.token_endpoints):
        shown = "not an http or https URL of plain characters"
        if _URL.fullmatch(endpoint):
            shown = endpoint.partition("?")[0][:200]  # without what may be secret in it
        raise TokenEndpointNotAllowedError(
            f"The token endpoint in the Secret of spec.kafka.auth ({shown}) is not one that the operator may fetch "
            "tokens from. The platform team has to add it to MILLRACE_OPERATOR_TOKEN_ENDPOINTS (operator.tokenEndpoints in the "
            "chart)"
        )
    spec = app.spec
    _check_identity(spec, allowed.cloud_identity)
    settings: dict[str, object] = {
        "application.id": spec.application_id,
        "bootstrap.servers": ",".join(spec.kafka.bootstrap_servers),
        "client.id": CLIENT_ID,
        "admin.request.timeout.ms": REQUEST_TIMEOUT_MS,
        "admin.reconnect.backoff.max.ms": 1_000,
        **_taken(spec),
        **dict(mechanism(spec.kafka)),
        **credentials.settings,
    }
    protocol = str(settings.get("security.protocol", "PLAINTEXT")).upper()
    if protocol.startswith("SASL") and "sasl.mechanism" not in settings:
        raise ConfigError(
            f"spec.kafka.config sets security.protocol={protocol}, but no credentials are given: name their Secret in "
            "spec.kafka.auth"
        )
    return StreamsConfig.of(settings)


def is_allowed(endpoint: str, allowed: Collection[str]) -> bool:
    """Return whether a URL begins with one of those allowed: scheme, host and port the same, and whole parts of the path.

    >>> is_allowed("https://login.example/realms/a/token", ["https://login.example/realms/a"])
    True
    >>> is_allowed("https://login.example.evil/realms/a", ["https://login.example"])
    False
    """
    if not _URL.fullmatch(endpoint) or "%2e" in endpoint.lower():
        return False
    origin, path = _parts(endpoint)
    if {".", ".."} & set(path):
        return False
    return bool(origin[0]) and any(
        origin == there and path[: len(parts)] == parts for there, parts in map(_parts, allowed)
    )


def _parts(url: str) -> tuple[tuple[str, str | None, int | None], list[str]]:
    try:
        split = urlsplit(url)
        port = split.port or {"https": 443, "http": 80}.get(split.scheme)
    except ValueError:
        return ("", None, None), []
    return (split.scheme, split.hostname, port), [part for part in split.path.split("/") if part]


def client_settings(config: StreamsConfig) -> ClientSettings:
    """Return the settings of the clients themselves.

    Text that looks like a file reference is taken literally: otherwise, whoever writes a Secret could make the operator
    read its own files and send them to brokers of their choice.
    """
    return ClientSettings(config, "operator", resolve_references=False)


def _check_identity(spec: StreamsAppSpec, cloud_identity: Sequence[str]) -> None:
    """Check that the operator may show its own identity to the brokers, if the application authenticates as its pods."""
    auth = spec.kafka.auth
    if auth is None or auth.type not in CLOUD_IDENTITIES:
        return
    servers = spec.kafka.bootstrap_servers
    strange = [server for server in servers if not any(fnmatchcase(server, pattern) for pattern in cloud_identity)]
    if strange:
        raise ConfigError(
            f"spec.kafka.auth.type {auth.type} is an identity of the pods, which the operator does not have, and it may not show "
            f"its own to {', '.join(strange)}: list the bootstrap servers in MILLRACE_OPERATOR_CLOUD_IDENTITY, and give the "
            "operator's ServiceAccount an identity that these brokers know"
        )


def _taken(spec: StreamsAppSpec) -> dict[str, object]:
    ours = [
        key
        for key in spec.kafka.config
        if is_security_setting(key) and key.startswith(("admin.", "security.", "sasl.", "ssl."))
    ]
    ours.sort(key=lambda key: key.startswith("admin."))
    if foreign := [key for key in ours if key.removeprefix("admin.") not in _TAKEN | _IGNORED]:
        raise ConfigError(
            f"spec.kafka.config sets {', '.join(foreign)}, which only pods can follow: the operator reads no files and "
            "fetches no tokens for an application. Use spec.kafka.tls and spec.kafka.auth, which name Secrets"
        )
    taken = {key.removeprefix("admin."): spec.kafka.config[key] for key in ours}
    return {key: value for key, value in taken.items() if key in _TAKEN}


SecretData = Mapping[str, bytes]
"""What a Secret holds: the bytes of each key, decoded from the API's base64."""


def needed_secrets(spec: StreamsAppSpec) -> tuple[str, ...]:
    """Return the names of the Secrets that are needed to reach the application's brokers, each once."""
    return tuple(dict.fromkeys(secret.reference.name for secret in secrets_of_brokers(spec.kafka)))


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The secret part of an application's client settings. Its `repr` shows no values."""

    settings: Mapping[str, str] = field(default_factory=ClientProperties)
    """Under librdkafka's names; all in memory, no files."""
    problem: str | None = None
    """What is missing, as a message for the user."""

    def __repr__(self) -> str:
        return f"Credentials({', '.join(self.settings)}, problem={self.problem!r})"

    @classmethod
    def of(cls, spec: StreamsAppSpec, secrets: Mapping[str, SecretData | None]) -> Credentials:
        """Take what an application needs out of its Secrets.

        Args:
            spec: The application's.
            secrets: The data of `needed_secrets` by name; None, or no entry, for those that do not exist.
        """
        settings: dict[str, str] = {}
        problems = []
        for secret in secrets_of_brokers(spec.kafka):
            try:
                settings |= _settings(secret, secrets.get(secret.reference.name))
            except _LackingError as error:
                problems.append(str(error))
        if problems:
            return cls(problem="; ".join(dict.fromkeys(problems)))
        return cls(ClientProperties(settings))


class _LackingError(Exception):
    """A Secret lacks something; says what."""


def _settings(secret: NamedSecret, data: SecretData | None) -> dict[str, str]:
    """Return the settings that come from a Secret.

    Raises:
        _LackingError: It does not exist, or lacks something.
    """
    name = secret.reference.name
    if data is None:
        if secret.folder == BINDING:
            raise _LackingError(f"Secret {name} of {secret.field} does not exist: create it, or name another")
        first = [secret.reference.key(key) for key in secret.forms[0]]
        noun = "keys" if len(first) > 1 else "key"
        raise _LackingError(
            f"Secret {name} of {secret.field} does not exist: create it with the {noun} {' and '.join(first)}"
        )
    if secret.folder == BINDING:
        return _of_binding(secret, data)
    there = {key for key in secret.keys if data.get(secret.reference.key(key))}
    problem = secret.problem(there)
    if problem is not None:
        raise _LackingError(problem)
    used = secret.used(there)
    user = secret.named_user(used)
    settings = {} if user is None else {"sasl.username": user}
    for key in used:
        setting = secret.settings[key]
        if setting in PEM:
            setting = f"{setting}.pem"
        settings[setting] = _text(secret, data, secret.reference.key(key))
    return settings


def _of_binding(secret: NamedSecret, data: SecretData) -> dict[str, str]:
    there = {key: _text(secret, data, key) for key in secret.keys if data.get(key)}
    try:
        settings, keys = settings_of_binding(there)
    except BindingError as error:
        raise _LackingError(f"Secret {secret.reference.name} of {secret.field} {error}") from None
    return settings | {f"{name}.pem" if name in PEM else name: there[key] for name, key in keys.items()}


def _text(secret: NamedSecret, data: SecretData, key: str) -> str:
    try:
        return data[key].decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise _LackingError(
            f"Secret {secret.reference.name} of {secret.field} holds no text under the key {key}"
        ) from None
