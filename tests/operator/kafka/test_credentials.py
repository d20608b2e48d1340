"""What is taken out of Secrets, and what is said when it is not there."""

import pytest
from tests.operator.kafka.support import streams_app

from millrace_operator.kafka import Credentials, needed_secrets

CANARY = b"c4n4ry-s3cret"
SCRAM = {"auth": {"type": "scram-sha-512", "secretRef": {"name": "user"}}}
TLS = {"caSecretRef": {"name": "ca"}, "clientCertSecretRef": {"name": "user", "keys": {"tls.crt": "user.crt"}}}


def spec(**kafka):
    """Return the spec of an application that reaches its brokers so."""
    return streams_app(kafka=kafka).spec


@pytest.mark.parametrize(
    ("kafka", "names"),
    [
        ({}, ()),
        ({"tls": {}}, ()),
        (SCRAM, ("user",)),
        ({"tls": TLS, "auth": {"type": "mtls"}}, ("ca", "user")),
        ({"tls": TLS, **SCRAM}, ("ca", "user")),
        ({"schemaRegistry": {"url": "http://registry:8081", "secretRef": {"name": "registry"}}}, ()),
    ],
)
def test_secrets_that_reach_the_brokers_are_needed(kafka, names):
    """Each Secret of `tls` and `auth` is named once; others are the pods' business."""
    assert needed_secrets(spec(**kafka)) == names


def test_keys_become_settings_in_memory():
    """Every key is a setting that holds the value itself; a key may have another name, a last line feed is not part of it."""
    secrets = {
        "ca": {"ca.crt": b"CA"},
        "user": {"user.crt": b"CERT", "tls.key": b"KEY", "username": b"me", "password": CANARY + b"\n"},
    }
    credentials = Credentials.of(spec(tls=TLS, **SCRAM), secrets)
    assert credentials.problem is None
    assert dict(credentials.settings) == {
        "ssl.ca.pem": "CA",
        "ssl.certificate.pem": "CERT",
        "ssl.key.pem": "KEY",
        "sasl.username": "me",
        "sasl.password": CANARY.decode(),
    }


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "Secret user of spec.kafka.auth.secretRef does not exist: create it with the key username"),
        ({"username": b"me"}, "Secret user of spec.kafka.auth.secretRef has no key password"),
        ({"username": b"me", "password": b""}, "has no key password"),
        ({"username": b"\xff", "password": CANARY}, "holds no text under the key username"),
    ],
)
def test_what_is_missing_is_named(data, told):
    """A Secret or key that is not there is told with the field that asks for it, and nothing half is used."""
    credentials = Credentials.of(spec(**SCRAM), {"user": data})
    assert told in credentials.problem
    assert not credentials.settings


def test_printing_credentials_shows_no_secret():
    """Neither the credentials nor their settings show a value, however they are printed."""
    credentials = Credentials.of(spec(**SCRAM), {"user": {"username": b"me", "password": CANARY}})
    assert CANARY.decode() not in f"{credentials} {credentials!r} {credentials.settings} {credentials.settings!r}"
