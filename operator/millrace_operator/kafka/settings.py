"""What the operator's own clients are configured with: a few things of the manifest, and nothing that could lead elsewhere.

A manifest may set any client setting, and pods take them all. The operator must not: among them are names of files, of
libraries to load and of addresses to fetch tokens from, and the operator's files, token and network are not the
application's. So only what is listed here is taken over, and what would be needed but cannot be taken is refused in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.kafka.clients import ClientSettings
from millrace.manifest import StreamsApp, StreamsAppSpec
from millrace.manifest.kafka import is_security_setting
from millrace_operator.kafka.credentials import Credentials

CLIENT_ID: Final = "millrace-operator"
REQUEST_TIMEOUT_MS: Final = 3_500
"""How long the operator waits for one answer; what it asks is asked again at the next pass."""

_MECHANISMS: Final = {
    "scram-sha-512": "SCRAM-SHA-512",
    "scram-sha-256": "SCRAM-SHA-256",
    "plain": "PLAIN",
    "oauthbearer": "OAUTHBEARER",
}
_TAKEN: Final = frozenset({"security.protocol", "ssl.endpoint.identification.algorithm"})
_IGNORED: Final = frozenset({"ssl.cipher.suites"})


def client_config(app: StreamsApp, credentials: Credentials) -> StreamsConfig:
    """Return the settings of the operator's clients of an application's brokers.

    Raises:
        ConfigError: The manifest reaches its brokers in a way that the operator cannot go.
    """
    spec = app.spec
    settings: dict[str, Any] = {
        "application.id": spec.application_id,
        "bootstrap.servers": ",".join(spec.kafka.bootstrap_servers),
        "client.id": CLIENT_ID,
        "admin.request.timeout.ms": REQUEST_TIMEOUT_MS,
        "admin.reconnect.backoff.max.ms": 1_000,
        **_taken(spec),
        **dict(_security(spec)),
        **credentials.settings,
    }
    protocol = str(settings.get("security.protocol", "PLAINTEXT")).upper()
    if protocol.startswith("SASL") and "sasl.mechanism" not in settings:
        raise ConfigError(
            f"spec.kafka.config sets security.protocol={protocol}, but no credentials are given: name their Secret in "
            "spec.kafka.auth"
        )
    return StreamsConfig.of(settings)


def client_settings(config: StreamsConfig) -> ClientSettings:
    """Return the settings of the clients themselves.

    What looks like a reference to a file stays the text that it is: whoever writes a Secret would otherwise have the operator
    read its own files, and send them to brokers of his choice.
    """
    return ClientSettings(config, "operator", resolve_references=False)


def _taken(spec: StreamsAppSpec) -> dict[str, Any]:
    ours = sorted(filter(_is_ours, spec.kafka.config), key=lambda key: key.startswith("admin."))
    if foreign := [key for key in ours if key.removeprefix("admin.") not in _TAKEN | _IGNORED]:
        raise ConfigError(
            f"spec.kafka.config sets {', '.join(foreign)}, which only pods can follow: the operator reads no files and "
            "fetches no tokens for an application. Use spec.kafka.tls and spec.kafka.auth, which name Secrets"
        )
    taken = {key.removeprefix("admin."): spec.kafka.config[key] for key in ours}
    return {key: value for key, value in taken.items() if key in _TAKEN}


def _is_ours(key: str) -> bool:
    return is_security_setting(key) and key.startswith(("admin.", "security.", "sasl.", "ssl."))


def _security(spec: StreamsAppSpec) -> Iterator[tuple[str, str]]:
    tls, auth = spec.kafka.tls, spec.kafka.auth
    sasl = auth is not None and auth.type != "mtls"
    if tls is not None or sasl:
        yield "security.protocol", f"{'SASL_' if sasl else ''}{'PLAINTEXT' if tls is None else 'SSL'}"
    if auth is not None and sasl:
        yield "sasl.mechanism", _MECHANISMS[auth.type]
    if auth is not None and auth.type == "oauthbearer":
        yield "sasl.oauthbearer.method", "oidc"
