"""Tokens for SASL/OAUTHBEARER, shared by all clients of a process with the same settings, and renewed before they expire.

librdkafka asks for a token on its own thread, when a client is opened and when four fifths of the token's lifetime have passed.
kafka-python asks when it authenticates, on the thread that also sends heartbeats, so the token must be there by then: the
connection manager fetches it on another thread before it connects. The inputs of a token (files of Secrets, the identity of the
pod) are read for each new token, so changed credentials need no restart.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka.net.sasl.oauth import AbstractTokenProvider

from millrace.errors import AuthenticationError, BrokerUnreachableError, ConfigError, StreamsError
from millrace.kafka.security import AWS_MSK_IAM, ENTRA_ID, OAuth

__all__ = ["Token", "Tokens", "fetch_token"]

log = logging.getLogger("millrace.kafka.tokens")

_TIMEOUT_S: Final = 10.0
_MAX_RESPONSE_BYTES: Final = 1 << 20
_RENEW_BELOW: Final = 0.25
"""The part of its lifetime below which a token is renewed. librdkafka asks when a fifth is left."""
_SOON_S: Final = 5.0
"""A token this close to its expiry is treated as expired."""


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A token. Its representation does not contain its value."""

    value: str
    expires_at: float
    """Seconds since 1970."""
    principal: str = ""

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at})"


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Provides a valid token to all threads.

    Args:
        fetch: Fetches a new token.
        extensions: Sent to the brokers along with the token.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        fetch: Callable[[], Token],
        extensions: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._extensions = dict(extensions)
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_at = 0.0

    def current(self) -> Token:
        """Return the token, or a new one if it expires soon.

        Raises:
            StreamsError: No token could be fetched; says why and what to do.
        """
        with self._lock:
            now, token = self._clock(), self._token
            if token is not None and now < self._renew_at:
                return token
            try:
                new = self._fetch()
            except StreamsError as error:
                if token is None or now > token.expires_at - _SOON_S:
                    log.warning("%s", error)
                    raise
                log.warning("No new token could be fetched; clients keep using the current one: %s", error)
                return token
            self._token = new
            self._renew_at = new.expires_at - _RENEW_BELOW * (new.expires_at - now)
            return new

    def for_librdkafka(self, _config: str | None = None) -> tuple[str, float, str, dict[str, str]]:
        """Return a token in the form of librdkafka's `oauth_cb`."""
        token = self.current()
        return token.value, token.expires_at, token.principal, self._extensions

    def token(self) -> str:
        """Return a token in kafka-python's form: the current one for as long as it is valid."""
        token = self._token
        if token is None or self._clock() > token.expires_at - _SOON_S:
            token = self.current()
        return token.value

    def extensions(self) -> dict[str, str]:
        """Return the extensions sent to the brokers along with the token."""
        return self._extensions


def fetch_token(oauth: OAuth, server: str) -> Token:
    """Fetch a new token.

    Args:
        oauth: How to get it.
        server: One of `bootstrap.servers`.

    Raises:
        AuthenticationError: It was refused, or the pod has no identity.
        BrokerUnreachableError: The token endpoint does not answer.
        ConfigError: A setting or a library is missing.
    """
    oauth.check_served()
    if oauth.method == AWS_MSK_IAM:
        return _aws_token(oauth)
    if oauth.method == ENTRA_ID:
        return _azure_token(oauth, server)
    return _oidc_token(oauth)


def _aws_token(oauth: OAuth) -> Token:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 (installed in some images only)

    try:
        value, expires_ms = MSKAuthTokenProvider.generate_auth_token(oauth.region)
    except Exception as error:
        raise AuthenticationError(
            f"The pod has no AWS identity to authenticate with ({type(error).__name__}: {error}): give the pod's "
            "ServiceAccount an IAM role"
        ) from error
    return Token(value, expires_ms / 1000)


def _azure_token(oauth: OAuth, server: str) -> Token:
    from azure.core.exceptions import ClientAuthenticationError  # noqa: PLC0415 (installed in some images only)
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415 (as above)

    scope = oauth.scope or f"https://{server.rpartition('://')[2].rpartition(':')[0]}/.default"
    try:
        with DefaultAzureCredential() as credential:
            found = credential.get_token(scope)
    except ClientAuthenticationError as error:
        raise AuthenticationError(
            f"Entra ID issued no token for {scope} ({error.message}): give the pod's ServiceAccount a workload identity"
        ) from error
    except Exception as error:
        raise BrokerUnreachableError(
            f"Entra ID issued no token for {scope} ({type(error).__name__}: {error})"
        ) from error
    return Token(found.token, found.expires_on)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: credentials are sent only to the configured address."""

    def redirect_request(self, *_: object) -> None:
        return None


def _oidc_token(oauth: OAuth) -> Token:
    assert oauth.token_endpoint is not None
    form = {"grant_type": "client_credentials", **({} if oauth.scope is None else {"scope": oauth.scope})}
    login = base64.b64encode(f"{oauth.client_id}:{oauth.client_secret}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
    url = oauth.token_endpoint
    if not url.startswith(("https://", "http://")):
        raise ConfigError("sasl.oauthbearer.token.endpoint.url must be a URL that starts with https:// or http://")
    try:
        request = urllib.request.Request(url, urllib.parse.urlencode(form).encode(), headers)  # noqa: S310 (checked above)
        opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=_context(oauth)))
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return _parse_token(url, answer.read(_MAX_RESPONSE_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(url, error) from None
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise BrokerUnreachableError(
            f"The token endpoint {url} cannot be reached ({reason}): check the address, its certificate (https.ca.location) and "
            "network policies"
        ) from error


def _context(oauth: OAuth) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=oauth.ca_location, cadata=oauth.ca_pem)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"The certificate authority of the token endpoint cannot be loaded ({error}): check https.ca.location"
        ) from error


def _refused(url: str, error: urllib.error.HTTPError) -> StreamsError:
    if error.code in {301, 302, 303, 307, 308}:
        return ConfigError(
            f"The token endpoint {url} redirects to another address, which Millrace does not follow: configure that address"
        )
    if error.code >= 500 or error.code == 429:
        return BrokerUnreachableError(f"The token endpoint {url} answered HTTP {error.code}")
    try:
        body = json.loads(error.read(_MAX_RESPONSE_BYTES))
        reason = ": ".join(str(body[key]) for key in ("error", "error_description") if key in body)[:300]
    except (OSError, ValueError, TypeError):
        reason = ""
    return AuthenticationError(
        f"The token endpoint {url} refused the client (HTTP {error.code}{', ' if reason else ''}{reason}): check client id, "
        "client secret and scope"
    )


def _parse_token(url: str, answer: bytes) -> Token:
    try:
        body = json.loads(answer)
        value = str(body["access_token"])
        claims = _claims(value)
        expires_at = time.time() + float(body["expires_in"]) if "expires_in" in body else float(claims["exp"])
    except (ValueError, TypeError, KeyError):
        raise AuthenticationError(
            f"The token endpoint {url} returned no access_token with an expiry time: check the address"
        ) from None
    return Token(value, expires_at, str(claims.get("sub", "")))


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a JSON Web Token, empty for other kinds of tokens. Verifying it is up to the brokers."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}
