"""An application's own credentials, as the operator uses them: taken out of its Secrets, held in memory, shown nowhere.

The operator has no access to anybody's Kafka of its own. What it may see and change of an application's brokers is what the
application may, so an application team cannot reach through it what is not theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.kafka.secrets import Settings
from millrace.manifest import StreamsAppSpec
from millrace.manifest.references import SecretReference

SecretData = Mapping[str, bytes]
"""What a Secret holds: the bytes of each key, decoded from the API's base64."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A key of a Secret, and the setting it becomes."""

    field: str
    reference: SecretReference
    key: str
    setting: str


def _wanted(spec: StreamsAppSpec) -> Iterator[_Wanted]:
    tls, auth = spec.kafka.tls, spec.kafka.auth
    if tls is not None and tls.ca_secret_ref is not None:
        yield _Wanted("spec.kafka.tls.caSecretRef", tls.ca_secret_ref, "ca.crt", "ssl.ca.pem")
    if tls is not None and tls.client_cert_secret_ref is not None:
        field = "spec.kafka.tls.clientCertSecretRef"
        yield _Wanted(field, tls.client_cert_secret_ref, "tls.crt", "ssl.certificate.pem")
        yield _Wanted(field, tls.client_cert_secret_ref, "tls.key", "ssl.key.pem")
    if auth is not None and auth.secret_ref is not None:
        keys = {"username": "sasl.username", "password": "sasl.password"}
        if auth.type == "oauthbearer":
            keys = {
                "clientId": "sasl.oauthbearer.client.id",
                "clientSecret": "sasl.oauthbearer.client.secret",
                "tokenEndpoint": "sasl.oauthbearer.token.endpoint.url",
            }
        for key, setting in keys.items():
            yield _Wanted("spec.kafka.auth.secretRef", auth.secret_ref, key, setting)


def needed_secrets(spec: StreamsAppSpec) -> tuple[str, ...]:
    """Return the names of the Secrets that are needed to reach the application's brokers, each once."""
    return tuple(dict.fromkeys(wanted.reference.name for wanted in _wanted(spec)))


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The secret part of an application's client settings. Its representation shows no value."""

    settings: Mapping[str, str] = field(default_factory=Settings)
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
        settings: dict[str, Any] = {}
        problems = []
        for wanted in _wanted(spec):
            name, key = wanted.reference.name, wanted.reference.key(wanted.key)
            data = secrets.get(name)
            if data is None:
                problems.append(f"Secret {name} of {wanted.field} does not exist: create it with the key {key}")
            elif not data.get(key):
                problems.append(
                    f"Secret {name} of {wanted.field} has no key {key}: add it, or say by `keys` which it is"
                )
            else:
                try:
                    settings[wanted.setting] = data[key].decode().rstrip("\r\n")
                except UnicodeDecodeError:
                    problems.append(f"Secret {name} of {wanted.field} holds no text under the key {key}")
        if problems:
            return cls(problem="; ".join(dict.fromkeys(problems)))
        return cls(Settings(settings))
