"""A certificate authority for tests: what it signs is PEM in memory."""

import datetime as dt
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


class Authority:
    """Signs certificates for servers on 127.0.0.1 and for clients."""

    def __init__(self, name="authority"):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self):
        """Its own certificate."""
        return _pem(self._certificate)

    def issue(self, name):
        """Return a certificate and its key (PKCS #8)."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(name), self._name, key)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        encryption = serialization.NoEncryption()
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        return _pem(certificate), text.decode()

    def broker_settings(self, plain, controller, tls, host="127.0.0.1"):
        """Return settings of a broker with a mutual TLS listener in addition to the open one, given their ports."""
        certificate, key = self.issue("broker")
        prefix = "listener.name.tls."
        return {
            "listeners": f"PLAINTEXT://{host}:{plain},CONTROLLER://{host}:{controller},TLS://{host}:{tls}",
            "controller.quorum.voters": f"1@{host}:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL",
            f"{prefix}ssl.client.auth": "required",
            f"{prefix}ssl.keystore.type": "PEM",
            f"{prefix}ssl.keystore.certificate.chain": certificate,
            f"{prefix}ssl.keystore.key": key,
            f"{prefix}ssl.truststore.type": "PEM",
            f"{prefix}ssl.truststore.certificates": self.pem,
        }


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject, issuer, key):
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
