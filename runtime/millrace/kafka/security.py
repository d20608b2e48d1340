"""Security settings: what each SASL mechanism needs, and one value from which both client libraries are configured.

Applications configure TLS and SASL as Java applications do (`sasl.jaas.config`, `ssl.truststore.*` of type PEM), or under
librdkafka's names. librdkafka and kafka-python must understand them in exactly the same way, so they are parsed here once. Secret
values never appear in logs or representations. This module needs no Kafka client.
"""

from __future__ import annotations

import importlib.util
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from millrace.config import ClientConfig
from millrace.config_providers import Hidden
from millrace.errors import ConfigError

_SECRET_KEY = re.compile(
    r"(password|passwd|secret|jaas|\.key\.pem$|ssl\.keystore\.key|token$|credential|sasl_plain_username)"
)
HIDDEN = "[hidden]"


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What a SASL mechanism needs."""

    login_module: str
    """The class of its `sasl.jaas.config` entry, without its package."""
    password: bool = False
    """Whether it takes a user name and password. Open clients can be given new ones."""


@dataclass(frozen=True, slots=True)
class OAuthMethod:
    """What a method of getting tokens needs."""

    required: tuple[str, ...] = ()
    """Settings that must be given, without `sasl.oauthbearer.`."""
    library: str | None = None
    """The module of the cloud provider's library, if tokens are made from the cloud identity of the pod."""
    extra: str | None = None
    """The extra of Millrace that installs the library."""


MECHANISMS: Final[Mapping[str, Mechanism]] = {
    "PLAIN": Mechanism("PlainLoginModule", password=True),
    "SCRAM-SHA-256": Mechanism("ScramLoginModule", password=True),
    "SCRAM-SHA-512": Mechanism("ScramLoginModule", password=True),
    "OAUTHBEARER": Mechanism("OAuthBearerLoginModule"),
    "GSSAPI": Mechanism("Krb5LoginModule"),
}
"""The values of `sasl.mechanism`."""
PASSWORD_MECHANISMS: Final = tuple(name for name, mechanism in MECHANISMS.items() if mechanism.password)

OIDC, AWS_MSK_IAM, ENTRA_ID = "oidc", "aws-msk-iam", "entra-id"
OAUTH_METHODS: Final[Mapping[str, OAuthMethod]] = {
    OIDC: OAuthMethod(("client.id", "client.secret", "token.endpoint.url")),
    AWS_MSK_IAM: OAuthMethod(("aws.region",), "aws_msk_iam_sasl_signer", "aws"),
    ENTRA_ID: OAuthMethod((), "azure.identity", "azure"),
}
"""The values of `sasl.oauthbearer.method`: the first is Kafka's own, the others are Millrace's."""
CLOUD_IDENTITIES: Final = tuple(name for name, method in OAUTH_METHODS.items() if method.library is not None)
"""The methods that use the identity of the pod and need no Secret."""

_JAAS = re.compile(
    r"^\s*(?P<module>[\w.$]+)\s+(?P<flag>required|requisite|sufficient|optional)\b(?P<options>.*?);?\s*$", re.DOTALL
)
_JAAS_OPTION = re.compile(r"""([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;]+)""")

_EXTENSION_KEY = re.compile("[A-Za-z]+")
_OAUTH = "sasl.oauthbearer."
_OAUTH_FIELDS = {
    "client.id": "client_id",
    "client.secret": "client_secret",
    "client.credentials.client.id": "client_id",
    "client.credentials.client.secret": "client_secret",
    "token.endpoint.url": "token_endpoint",
    "scope": "scope",
    "aws.region": "region",
}


def is_secret(key: str) -> bool:
    """Return whether a setting's value must not be shown."""
    return _SECRET_KEY.search(key) is not None


class ClientProperties(dict[str, Any]):
    """The settings of one client: a dict that hides passwords, keys, tokens and values from files when it is printed."""

    on_open: Callable[[Any], None] | None = None
    """Called with the client that is opened with them."""

    def __repr__(self) -> str:
        return repr(dict(self.redacted()))

    __str__ = __repr__

    def redacted(self) -> Iterator[tuple[str, object]]:
        """Iterate over the settings, with secret values replaced."""
        return ((key, HIDDEN if is_secret(key) or isinstance(value, Hidden) else value) for key, value in self.items())


@dataclass(frozen=True, slots=True, repr=False)
class OAuth:
    """How a client gets its tokens. Its representation contains no secret."""

    method: str
    client_id: str | None = None
    client_secret: str | None = None
    token_endpoint: str | None = None
    scope: str | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)
    region: str | None = None
    """The AWS region of the cluster."""
    ca_location: str | None = None
    ca_pem: str | None = None

    def __repr__(self) -> str:
        return f"OAuth(method={self.method!r})"

    def check_served(self) -> None:
        """Check that the library it needs is installed.

        Raises:
            ConfigError: It is not.
        """
        method = OAUTH_METHODS[self.method]
        if method.library is None:
            return
        try:
            found = importlib.util.find_spec(method.library) is not None
        except ModuleNotFoundError:  # its parent package is missing too
            found = False
        if not found:
            raise ConfigError(
                f"sasl.oauthbearer.method={self.method} needs a library that is not installed: "
                f"`pip install 'millrace-streams[{method.extra}]'` in this image"
            )


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """How to reach the brokers: protocol, SASL credentials, certificates. Its representation contains no secret."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = None
    ca_location: str | None = None
    ca_pem: str | None = None
    certificate_location: str | None = None
    certificate_pem: str | None = None
    key_location: str | None = None
    key_pem: str | None = None
    key_password: str | None = None
    verify_hostname: bool = True
    oauth: OAuth | None = None
    """Where tokens come from, for the mechanism OAUTHBEARER."""
    others: Mapping[str, object] = field(default_factory=dict)
    """Kerberos settings, under librdkafka's names."""

    def __repr__(self) -> str:
        return f"Security(protocol={self.protocol!r}, mechanism={self.mechanism!r})"

    @property
    def sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def locations(self) -> tuple[Path, ...]:
        """The certificate and key files."""
        named = (self.ca_location, self.certificate_location, self.key_location)
        return tuple(Path(name) for name in named if self.tls and name is not None)

    def fields(self) -> tuple[object, ...]:
        """Return the value of every field including secrets, for comparisons."""
        return tuple(getattr(self, item.name) for item in fields(self))

    def for_librdkafka(self) -> ClientProperties:
        """Return the settings under librdkafka's names."""
        settings = ClientProperties({"security.protocol": self.protocol})
        if self.tls:
            settings["ssl.endpoint.identification.algorithm"] = "https" if self.verify_hostname else "none"
            pairs = {
                "ssl.ca.location": self.ca_location,
                "ssl.ca.pem": self.ca_pem,
                "ssl.certificate.location": self.certificate_location,
                "ssl.certificate.pem": self.certificate_pem,
                "ssl.key.location": self.key_location,
                "ssl.key.pem": self.key_pem,
                "ssl.key.password": self.key_password,
            }
            settings.update({key: value for key, value in pairs.items() if value is not None})
        if self.sasl:
            settings["sasl.mechanism"] = self.mechanism
            if self.username is not None:
                settings.update({"sasl.username": self.username, "sasl.password": self.password})
            settings.update(self.others)
        return settings

    def for_kafka_python(self) -> ClientProperties:
        """Return the settings under kafka-python's names."""
        settings = ClientProperties({"security_protocol": self.protocol})
        if self.tls:
            settings["ssl_context"] = self.ssl_context()
            settings["ssl_check_hostname"] = self.verify_hostname
        if self.sasl:
            settings.update(
                sasl_mechanism=self.mechanism,
                sasl_plain_username=self.username,
                sasl_plain_password=self.password,
            )
            if self.mechanism == "GSSAPI":
                service = self.others.get("sasl.kerberos.service.name", "kafka")
                settings["sasl_kerberos_service_name"] = service
        return settings

    def ssl_context(self) -> ssl.SSLContext:
        """Return a TLS context with the certificates of these settings.

        Raises:
            ConfigError: A file cannot be read or holds no valid PEM.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_location, cadata=self.ca_pem)
            context.check_hostname = self.verify_hostname
            if self.certificate_pem is not None:
                _load_pem_chain(context, self.certificate_pem, self.key_pem or "", self.key_password)
            elif self.certificate_location is not None:
                context.load_cert_chain(self.certificate_location, self.key_location, self.key_password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"The TLS certificates cannot be loaded ({error}): check ssl.ca.location, ssl.certificate.location and "
                "ssl.key.location; all are PEM"
            ) from error
        return context


def _load_pem_chain(context: ssl.SSLContext, certificate: str, key: str, password: str | None) -> None:
    """Load a certificate and key given as text. Python's ssl only takes files, so they briefly become one, in memory."""
    text = f"{certificate}\n{key}\n".encode()
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("millrace", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=password)
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile(
        prefix="millrace-", suffix=".pem"
    ) as file:  # with mode 0600; only where there is no memfd
        file.write(text)
        file.flush()
        context.load_cert_chain(file.name, password=password)


def parse_security(settings: Mapping[str, object], protocol: str | None = None) -> Security:
    """Return the security settings among a client's settings; ignores all others.

    Args:
        settings: Under Java's or librdkafka's names.
        protocol: The `security.protocol` if it is not among the settings.

    Raises:
        ConfigError: A setting is missing, contradicts another, or names a Java key store; the message says which key to use.
    """
    get = settings.get
    protocol = str(get("security.protocol", protocol or "PLAINTEXT")).upper()
    fields: dict[str, Any] = {"protocol": protocol}
    if protocol.startswith("SASL_"):
        fields |= _parse_sasl(settings)
    if protocol.endswith("SSL"):
        fields |= _parse_tls(settings)
    return Security(**fields)


def _parse_sasl(settings: Mapping[str, object]) -> dict[str, Any]:
    mechanism = str(settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI"))).upper()
    username, password = settings.get("sasl.username"), settings.get("sasl.password")
    others = {key: value for key, value in settings.items() if key.startswith("sasl.kerberos.")}
    if mechanism == "OAUTHBEARER":
        return {"mechanism": mechanism, "oauth": _parse_oauth(settings)}
    if jaas := settings.get("sasl.jaas.config"):
        options = parse_jaas(str(jaas), mechanism)
        if mechanism == "GSSAPI":
            names = {"principal": "principal", "keyTab": "keytab", "serviceName": "service.name"}
            others |= {f"sasl.kerberos.{names[key]}": value for key, value in options.items() if key in names}
        else:
            username, password = options.get("username"), options.get("password")
    if mechanism in PASSWORD_MECHANISMS and (username is None or password is None):
        raise ConfigError(
            f"sasl.mechanism={mechanism} needs credentials: give sasl.jaas.config with username and password, or "
            "sasl.username and sasl.password"
        )
    return {"mechanism": mechanism, "username": username, "password": password, "others": others}


def _parse_oauth(settings: ClientConfig) -> OAuth:
    given = {key.removeprefix(_OAUTH): str(value) for key, value in settings.items() if key.startswith(_OAUTH)}
    extensions = dict(_extensions(given.pop("extensions", "")))
    if jaas := settings.get("sasl.jaas.config"):
        options = parse_jaas(str(jaas), "OAUTHBEARER")
        names = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
        given |= {names[key]: value for key, value in options.items() if key in names}
        prefix = "extension_"
        extensions |= {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}
    method = given.pop("method", OIDC).lower()
    if method not in OAUTH_METHODS:
        raise ConfigError(
            f"sasl.oauthbearer.method={method} is not supported: it must be one of {', '.join(OAUTH_METHODS)}"
        )
    if unknown := sorted(given.keys() - _OAUTH_FIELDS.keys()):
        known = ", ".join(f"{_OAUTH}{key}" for key in ("method", "extensions", *_OAUTH_FIELDS))
        raise ConfigError(f"{_OAUTH}{unknown[0]} is not supported; the supported settings are {known}")
    fields = {_OAUTH_FIELDS[key]: value for key, value in given.items()}
    if missing := [key for key in OAUTH_METHODS[method].required if not fields.get(_OAUTH_FIELDS[key])]:
        raise ConfigError(
            f"sasl.oauthbearer.method={method} needs {' and '.join(f'{_OAUTH}{key}' for key in missing)}: set it"
        )
    return OAuth(
        method,
        extensions=extensions,
        ca_location=settings.get("https.ca.location"),
        ca_pem=settings.get("https.ca.pem"),
        **fields,
    )


def _extensions(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not _EXTENSION_KEY.fullmatch(key.strip()) or key.strip() == "auth":
            raise ConfigError("sasl.oauthbearer.extensions must be key=value,key=value, with letters only in keys")
        yield key.strip(), value.strip()


def parse_jaas(text: str, mechanism: str) -> dict[str, str]:
    """Return the options of a `sasl.jaas.config` entry.

    >>> parse_jaas('org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";', "PLAIN")
    {'username': 'a', 'password': 'b'}

    Raises:
        ConfigError: It is not a single login module entry, or the module is not the mechanism's. Contains no value.
    """
    match = _JAAS.match(text)
    if match is None:
        raise ConfigError(
            'sasl.jaas.config is not of the form: <login module class> required name="value" ...; (its value is not shown)'
        )
    module = match["module"].rpartition(".")[2]
    served = [name for name, item in MECHANISMS.items() if item.login_module == module]
    if served and mechanism not in served:
        raise ConfigError(
            f"sasl.jaas.config names {module}, which is for {' or '.join(served)}, but sasl.mechanism is {mechanism}"
        )
    return {name: _unquote(value) for name, value in _JAAS_OPTION.findall(match["options"])}


def _unquote(value: str) -> str:
    if value[:1] in {'"', "'"} and value[-1:] == value[:1]:
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value


def _parse_tls(settings: Mapping[str, object]) -> dict[str, Any]:
    get = settings.get
    fields: dict[str, Any] = {
        "ca_location": get("ssl.ca.location"),
        "ca_pem": get("ssl.ca.pem", get("ssl.truststore.certificates")),
        "certificate_location": get("ssl.certificate.location"),
        "certificate_pem": get("ssl.certificate.pem", get("ssl.keystore.certificate.chain")),
        "key_location": get("ssl.key.location"),
        "key_pem": get("ssl.key.pem", get("ssl.keystore.key")),
        "key_password": get("ssl.key.password"),
        "verify_hostname": str(get("ssl.endpoint.identification.algorithm", "https")).lower() not in {"", "none"},
    }
    for store, pem_keys in (
        ("truststore", "ssl.ca.location (a PEM file) or ssl.ca.pem"),
        ("keystore", "ssl.certificate.location and ssl.key.location (PEM files)"),
    ):
        location = get(f"ssl.{store}.location")
        if location is None:
            continue
        if str(get(f"ssl.{store}.type", "JKS")).upper() != "PEM":
            raise ConfigError(
                f"ssl.{store}.location is a Java key store, which only Java can read: convert it (keytool, openssl) and set "
                f"{pem_keys}, or set ssl.{store}.type=PEM if the file is already PEM"
            )
        if store == "truststore":
            fields["ca_location"] = location
        else:
            fields["certificate_location"] = fields["key_location"] = location
    return fields
