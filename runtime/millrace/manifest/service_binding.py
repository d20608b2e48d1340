"""Secrets of the Service Binding Specification: one Secret that says where the brokers are and how to reach them.

The specification leaves key names to the kind of service, so each setting has several, all of which are accepted here.
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
    """The Secret lacks a key or has an invalid value; the message continues a sentence that begins with its name."""


def settings_of_binding(data: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return client settings, and for each setting with a confidential value the Secret's key that holds it.

    Args:
        data: The Secret's values for `KEYS`.

    Raises:
        BindingError: Something is missing or not understood.
    """
    kind = data.get("type", "kafka")
    if kind.lower() != "kafka":
        raise BindingError(f"is a binding of type {kind}, not kafka")
    servers = _first(SERVERS, data)
    if servers is None:
        raise BindingError(f"has no key {' or '.join(SERVERS)}")
    for server in data[servers].split(","):
        if not re.fullmatch(SERVER_WITH_PORT_PATTERN, server.strip()):
            raise BindingError(f"has {server.strip()!r} under the key {servers}, which is not host:port")
    authority = _first(_CA, data)
    keys = {} if authority is None else {"ssl.ca": authority}
    pair = next((pair for pair in _PAIRS if all(key in data for key in pair)), None)
    if pair is not None:
        keys |= {"ssl.certificate": pair[0], "ssl.key": pair[1]}
    user = _first(_USER, data) or _first(_JAAS, data)
    protocol = _value(_PROTOCOL, data, _PROTOCOLS)
    if protocol is None:  # a password is never sent unencrypted by default
        protocol = f"{'SASL_' if user else ''}{'SSL' if user or keys else 'PLAINTEXT'}"
    settings = {"bootstrap.servers": data[servers].replace(" ", ""), "security.protocol": protocol}
    if not protocol.endswith("SSL"):
        keys = {}
    if protocol.startswith("SASL_"):
        settings["sasl.mechanism"] = _value(_MECHANISM, data, PASSWORD_MECHANISMS) or _missing(_MECHANISM)
        keys |= _login(data, user)
    return settings, keys


def _login(data: Mapping[str, str], user: str | None) -> dict[str, str]:
    if user is None:
        return _missing(_USER)
    if user in _JAAS:
        return {"sasl.jaas.config": user}
    return {"sasl.username": user, "sasl.password": _first(_PASSWORD, data) or _missing(_PASSWORD)}


def _first(names: tuple[str, ...], data: Mapping[str, str]) -> str | None:
    return next((name for name in names if name in data), None)


def _value(names: tuple[str, ...], data: Mapping[str, str], known: tuple[str, ...]) -> str | None:
    name = _first(names, data)
    if name is None:
        return None
    value = data[name].upper()
    if value not in known:
        raise BindingError(f"has {data[name]!r} under the key {name}, which must be one of {', '.join(known)}")
    return value


def _missing(names: tuple[str, ...]) -> NoReturn:
    raise BindingError(f"has no key {' or '.join(names)}")
