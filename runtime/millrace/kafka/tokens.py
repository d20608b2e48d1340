"""Tokens for SASL/OAUTHBEARER: one for all clients of a process that have the same settings, and another before it expires.

librdkafka asks for a token from a thread of its own when a client is opened and when four fifths of its life have passed.
kafka-python asks when it authenticates, on the thread that also sends heartbeats, so it must find a token that is there: the
connection manager asks for it elsewhere before it connects. What a token is made from (files of secrets, the identity of the pod)
is looked at each time one is made, so changed credentials need no restart.
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
_LONGEST_ANSWER: Final = 1 << 20
_RENEW_BELOW: Final = 0.25
"""The part of its life that a token must have before it. librdkafka asks when a fifth is left."""
_SOON_S: Final = 5.0
"""A token that expires so soon does no more."""


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """What brokers are shown. Its representation does not show it."""

    value: str
    expires_at: float
    """Seconds since 1970."""
    principal: str = ""

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at})"


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Hands out a token that is valid; several threads may ask.

    Args:
        fetch: Makes one.
        extensions: What brokers are told along with it.
        clock: Seconds since 1970.
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
        """Return a token, another one if the last has little of its life before it.

        Raises:
            StreamsError: There is none; says why and what to do.
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
                log.warning("The token that clients have is used on, as there is no other yet: %s", error)
                return token
            self._token = new
            self._renew_at = new.expires_at - _RENEW_BELOW * (new.expires_at - now)
            return new

    def for_librdkafka(self, _config: str | None = None) -> tuple[str, float, str, dict[str, str]]:
        """Return a token as librdkafka's `oauth_cb` does."""
        token = self.current()
        return token.value, token.expires_at, token.principal, self._extensions

    def token(self) -> str:
        """Return a token as kafka-python wants it: the one that is there, while it is valid."""
        token = self._token
        if token is None or self._clock() > token.expires_at - _SOON_S:
            token = self.current()
        return token.value

    def extensions(self) -> dict[str, str]:
        """Return what brokers are told along with the token."""
        return self._extensions


def fetch_token(oauth: OAuth, server: str) -> Token:
    """Get a new token.

    Args:
        oauth: How.
        server: One of `bootstrap.servers`.

    Raises:
        AuthenticationError: It is refused, or there is no identity.
        BrokerUnreachableError: Who gives tokens does not answer.
        ConfigError: A setting or a library is missing.
    """
    oauth.check_served()
    if oauth.method == AWS_MSK_IAM:
        return _of_aws(oauth)
    if oauth.method == ENTRA_ID:
        return _of_azure(oauth, server)
    return _of_endpoint(oauth)


def _of_aws(oauth: OAuth) -> Token:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 (only some images have it)

    try:
        value, expires_ms = MSKAuthTokenProvider.generate_auth_token(oauth.region)
    except Exception as error:
        raise AuthenticationError(
            f"There is no AWS identity to reach the brokers with ({type(error).__name__}: {error}): give the pod's "
            "ServiceAccount an IAM role"
        ) from error
    return Token(value, expires_ms / 1000)


def _of_azure(oauth: OAuth, server: str) -> Token:
    from azure.core.exceptions import ClientAuthenticationError  # noqa: PLC0415 (only some images have it)
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415 (as above)

    scope = oauth.scope or f"https://{server.rpartition('://')[2].rpartition(':')[0]}/.default"
    try:
        with DefaultAzureCredential() as credential:
            found = credential.get_token(scope)
    except ClientAuthenticationError as error:
        raise AuthenticationError(
            f"Entra ID gives no token for {scope} ({error.message}): give the pod's ServiceAccount a workload identity"
        ) from error
    except Exception as error:
        raise BrokerUnreachableError(
            f"Entra ID gives no token for {scope} ({type(error).__name__}: {error})"
        ) from error
    return Token(found.token, found.expires_on)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Credentials go to the address that was configured, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _of_endpoint(oauth: OAuth) -> Token:
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
            return _token(url, answer.read(_LONGEST_ANSWER))
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(url, error) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
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
            f"The token endpoint {url} redirects to another address, which is not followed: name that one"
        )
    if error.code >= 500 or error.code == 429:
        return BrokerUnreachableError(f"The token endpoint {url} answered HTTP {error.code}")
    try:
        told = json.loads(error.read(_LONGEST_ANSWER))
        reason = ": ".join(str(told[key]) for key in ("error", "error_description") if key in told)[:300]
    except (OSError, ValueError, TypeError):
        reason = ""
    return AuthenticationError(
        f"The token endpoint {url} refused the client (HTTP {error.code}{', ' if reason else ''}{reason}): check client id, "
        "client secret and scope"
    )


def _token(url: str, answer: bytes) -> Token:
    try:
        told = json.loads(answer)
        value = str(told["access_token"])
        claims = _claims(value)
        expires_at = time.time() + float(told["expires_in"]) if "expires_in" in told else float(claims["exp"])
    except (ValueError, TypeError, KeyError):
        raise AuthenticationError(
            f"The token endpoint {url} gave no access_token that says when it expires: check the address"
        ) from None
    return Token(value, expires_at, str(claims.get("sub", "")))


def _claims(token: str) -> dict[str, Any]:
    """Return what a JSON Web Token says; nothing if it is another kind of token. Brokers verify it, we do not."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}
