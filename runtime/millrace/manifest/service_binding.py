"""Secrets of the Service Binding Specification: one Secret that says where the brokers are and how they are reached.

The specification leaves the names of keys to the kind of service, so there are several for each thing, all of them known here.
Addresses, protocol and mechanism are read when a pod starts; user name and password stay references to files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NoReturn

from millrace.kafka.security import PASSWORD_MECHANISMS
from millrace.manifest.fields import SERVER_WITH_PORT_PATTERN

SERVERS: Final = ("bootstrap-servers", "bootstrapServers", "bootstrap.servers")
_PROTOCOL: Final = ("security-protocol", "securityProtocol", "security.protocol")
_MECHANISM: Final = ("sasl-mechanism", "saslMechanism", "sasl.mechanism")
_USER: Final = ("username", "user")
_PASSWORD: Final = ("password",)
_JAAS: Final = ("sasl.jaas.config",)
_CA: Final = ("ca.crt", "ssl.truststore.crt", "ssl.truststore.pem")
_PAIRS: Final = (("tls.crt", "tls.key"), ("user.crt", "user.key"), ("ssl.keystore.crt", "ssl.keystore.key"))
_TYPE: Final = ("type",)

KEYS: Final = (
    *SERVERS,
    *(key for names in (_PROTOCOL, _MECHANISM, _USER, _PASSWORD, _JAAS, _CA, *_PAIRS, _TYPE) for key in names),
)
"""All keys that are looked for."""

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class BindingError(Exception):
    """The Secret does not say enough, or what is not understood; says what, to be read after its name."""


def settings_of_binding(there: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return settings of clients, and the key of the Secret for each setting whose value is not to be shown.

    Args:
        there: What the Secret has under `KEYS`.

    Raises:
        BindingError: It does not say enough.
    """
    kind = there.get("type", "kafka")
    if kind.lower() != "kafka":
        raise BindingError(f"is a binding of type {kind}, not kafka")
    servers = _first(SERVERS, there)
    if servers is None:
        raise BindingError(f"has no key {' or '.join(SERVERS)}")
    for server in there[servers].split(","):
        if not re.fullmatch(SERVER_WITH_PORT_PATTERN, server.strip()):
            raise BindingError(f"has {server.strip()!r} under the key {servers}, which is not host:port")
    keys = dict(_of_tls(there))
    user = _first(_USER, there) or _first(_JAAS, there)
    protocol = _value(_PROTOCOL, there, _PROTOCOLS)
    if protocol is None:  # a password is not sent in the open unless that is said
        protocol = f"{'SASL_' if user else ''}{'SSL' if user or keys else 'PLAINTEXT'}"
    settings = {"bootstrap.servers": there[servers].replace(" ", ""), "security.protocol": protocol}
    if not protocol.endswith("SSL"):
        keys = {}
    if protocol.startswith("SASL_"):
        settings["sasl.mechanism"] = _value(_MECHANISM, there, PASSWORD_MECHANISMS) or _missing(_MECHANISM)
        keys |= _login(there, user)
    return settings, keys


def _login(there: Mapping[str, str], user: str | None) -> dict[str, str]:
    if user is None:
        return _missing(_USER)
    if user in _JAAS:
        return {"sasl.jaas.config": user}
    return {"sasl.username": user, "sasl.password": _first(_PASSWORD, there) or _missing(_PASSWORD)}


def _of_tls(there: Mapping[str, str]) -> Mapping[str, str]:
    authority = _first(_CA, there)
    keys = {} if authority is None else {"ssl.ca": authority}
    for certificate, key in _PAIRS:
        if certificate in there and key in there:
            return {**keys, "ssl.certificate": certificate, "ssl.key": key}
    return keys


def _first(names: tuple[str, ...], there: Mapping[str, str]) -> str | None:
    return next((name for name in names if name in there), None)


def _value(names: tuple[str, ...], there: Mapping[str, str], known: tuple[str, ...]) -> str | None:
    name = _first(names, there)
    if name is None:
        return None
    value = there[name].upper()
    if value not in known:
        raise BindingError(f"has {there[name]!r} under the key {name}, which must be one of {', '.join(known)}")
    return value


def _missing(names: tuple[str, ...]) -> NoReturn:
    raise BindingError(f"has no key {' or '.join(names)}")
