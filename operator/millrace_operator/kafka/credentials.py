"""An application's own credentials, as the operator uses them: taken out of its Secrets, held in memory, shown nowhere.

The operator has no access to anybody's Kafka of its own. What it may see and change of an application's brokers is what the
application may, so an application team cannot reach through it what is not theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.kafka.security import ClientProperties
from millrace.manifest import StreamsAppSpec
from millrace.manifest.secrets import BINDING, PEM, NamedSecret, secrets_of_brokers
from millrace.manifest.service_binding import BindingError, settings_of_binding

SecretData = Mapping[str, bytes]
"""What a Secret holds: the bytes of each key, decoded from the API's base64."""


def needed_secrets(spec: StreamsAppSpec) -> tuple[str, ...]:
    """Return the names of the Secrets that are needed to reach the application's brokers, each once."""
    return tuple(dict.fromkeys(secret.reference.name for secret in secrets_of_brokers(spec.kafka)))


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The secret part of an application's client settings. Its representation shows no value."""

    settings: Mapping[str, str] = field(default_factory=ClientProperties)
    """Under librdkafka's names; all in memory, no files."""
    problem: str | None = None
    """What is missing, in words for the user."""

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
    """Return what becomes of a Secret.

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
