"""Secrets that a manifest names: the keys expected in each, and the client settings they become.

Pods find the keys as files, with one folder for each Secret; the operator reads the Secrets themselves. Both follow this
module, so that a Secret works for both or for neither. Secrets written by other operators work unchanged: cert-manager's,
and Strimzi's for a `KafkaUser` and the cluster certificate authority.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from millrace.manifest.fields import SecretReference
from millrace.manifest.kafka import Auth, Kafka
from millrace.manifest.service_binding import KEYS, SERVERS
from millrace.manifest.streamsapp import StreamsAppSpec

AUTH, TLS_CA, TLS_CLIENT, SCHEMA_REGISTRY, OTLP = "auth", "tls-ca", "tls-client", "schema-registry", "otlp"
OAUTH_CA, BINDING = "oauth-ca", "binding"
"""The folders of Secrets in a pod."""

PEM: Final = frozenset({"ssl.ca", "ssl.certificate", "ssl.key", "https.ca"})
"""Settings that clients take as files (`.location`) or as text (`.pem`)."""

_JAAS: Final = "sasl.jaas.config"


@dataclasses.dataclass(frozen=True, slots=True)
class NamedSecret:
    """A Secret that a manifest names."""

    field: str
    """The field of the manifest."""
    folder: str
    """The folder in which a pod finds its keys, under the expected names."""
    reference: SecretReference
    """The field's value."""
    forms: tuple[tuple[str, ...], ...]
    """Alternative sets of expected keys; one of them must be complete."""
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The setting that each key becomes."""
    optional: tuple[str, ...] = ()
    """Keys that are used if they exist."""

    @property
    def required(self) -> tuple[str, ...]:
        """The keys that every form contains."""
        first, *others = self.forms
        return tuple(key for key in first if all(key in form for form in others))

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that are looked for, each once."""
        return tuple(dict.fromkeys([*(key for form in self.forms for key in form), *self.optional]))

    def problem(self, there: Collection[str]) -> str | None:
        """Return a message about missing keys; None if a form is complete.

        Args:
            there: The expected keys that the Secret has.
        """
        missing = [[self.reference.key(key) for key in form if key not in there] for form in self.forms]
        if not all(missing):
            return None
        begun = [lack for form, lack in zip(self.forms, missing, strict=True) if len(lack) < len(form)]
        if begun or len(missing) == 1:
            lack = min(begun or missing, key=len)
            plural = len(lack) > 1
            found = f"has no key{'s' if plural else ''} {' and '.join(lack)}"
        else:
            plural = True
            found = f"has neither the keys {' nor '.join(' and '.join(lack) for lack in missing)}"
        advice = "add them, or map them with `keys`" if plural else "add it, or map it with `keys`"
        return f"Secret {self.reference.name} of {self.field} {found}: {advice}"

    def used(self, there: Collection[str] | None) -> tuple[str, ...]:
        """Return the keys to use: the first complete form, and the optional keys that it still needs.

        Args:
            there: The expected keys that the Secret has; None if unknown.
        """
        if there is None:
            return self.forms[0] if _JAAS not in self.optional else ("username", "password")
        form = next((form for form in self.forms if set(form) <= set(there)), self.forms[0])
        others = [key for key in self.optional if key in there]
        return (*form, *(others[:1] if _JAAS in self.optional else others))

    def named_user(self, used: Collection[str]) -> str | None:
        """Return the user's name if no key contains it: Strimzi names the Secret of a `KafkaUser` after the user."""
        return self.reference.name if _JAAS in self.optional and not {"username", _JAAS} & set(used) else None


def secrets_of_brokers(kafka: Kafka) -> Iterator[NamedSecret]:
    """Yield the Secrets needed to connect to the brokers."""
    if kafka.binding_secret_ref is not None:
        reference = SecretReference(name=kafka.binding_secret_ref.name)
        forms = tuple((key,) for key in SERVERS)
        yield NamedSecret("spec.kafka.bindingSecretRef", BINDING, reference, forms, optional=KEYS[len(SERVERS) :])
    if kafka.auth is not None and kafka.auth.secret_ref is not None:
        yield _of_auth(kafka.auth, kafka.auth.secret_ref)
    if kafka.auth is not None and kafka.auth.token_endpoint_ca_secret_ref is not None:
        where = "spec.kafka.auth.tokenEndpointCaSecretRef"
        authority = {"ca.crt": "https.ca"}
        yield NamedSecret(where, OAUTH_CA, kafka.auth.token_endpoint_ca_secret_ref, (("ca.crt",),), authority)
    tls = kafka.tls
    if tls is not None and tls.ca_secret_ref is not None:
        yield NamedSecret("spec.kafka.tls.caSecretRef", TLS_CA, tls.ca_secret_ref, (("ca.crt",),), {"ca.crt": "ssl.ca"})
    if tls is not None and tls.client_cert_secret_ref is not None:
        client, pairs = tls.client_cert_secret_ref, (("tls.crt", "tls.key"), ("user.crt", "user.key"))
        settings = {
            name: kind for pair in pairs for name, kind in zip(pair, ("ssl.certificate", "ssl.key"), strict=True)
        }
        where = "spec.kafka.tls.clientCertSecretRef"
        yield NamedSecret(where, TLS_CLIENT, client, pairs[:1] if client.keys else pairs, settings)


def named_secrets(spec: StreamsAppSpec) -> Iterator[NamedSecret]:
    """Yield every Secret that a manifest names for its pods."""
    yield from secrets_of_brokers(spec.kafka)
    registry, otlp = spec.kafka.schema_registry, spec.observability.otlp
    if registry is not None and registry.secret_ref is not None:
        where = "spec.kafka.schemaRegistry.secretRef"
        yield NamedSecret(where, SCHEMA_REGISTRY, registry.secret_ref, (("username", "password"),))
    if otlp is not None and otlp.headers_secret_ref is not None:
        where = "spec.observability.otlp.headersSecretRef"
        yield NamedSecret(where, OTLP, otlp.headers_secret_ref, (("headers",),))


def _of_auth(auth: Auth, reference: SecretReference) -> NamedSecret:
    where = "spec.kafka.auth.secretRef"
    if auth.type == "oauthbearer":
        settings = {
            "clientId": "sasl.oauthbearer.client.id",
            "clientSecret": "sasl.oauthbearer.client.secret",
            "tokenEndpoint": "sasl.oauthbearer.token.endpoint.url",
        }
        return NamedSecret(where, AUTH, reference, (tuple(settings),), settings)
    settings = {"username": "sasl.username", "password": "sasl.password"}
    if auth.type == "plain" or "username" in reference.keys:
        return NamedSecret(where, AUTH, reference, (("username", "password"),), settings)
    settings |= {_JAAS: _JAAS}
    return NamedSecret(where, AUTH, reference, (("password",),), settings, optional=("username", _JAAS))
