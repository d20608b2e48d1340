"""A cluster's certificate authority, its certificates, and the kubeconfigs made from them."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=30)
_ADMIN = "system:masters"


class Authority:
    """Signs what a cluster needs and writes it to a directory, as `NAME.crt` and `NAME.key`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("millrace-e2e")
        certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._write("ca", certificate, self._key)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Return the authority stored in a directory."""
        authority = cls.__new__(cls)
        authority.directory = directory
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        authority._key = key
        authority._name = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes()).subject
        return authority

    def serve(self, name: str, names: Sequence[str], addresses: Sequence[str]) -> None:
        """Issue a server's certificate."""
        alternatives = [x509.DNSName(each) for each in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
        self._issue(name, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def identify(self, name: str, user: str, group: str | None = None) -> None:
        """Issue a client's certificate for a user of the API."""
        self._issue(name, _name(user, group), ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def kubeconfig(self, name: str, server: str, user: str, group: str | None = None) -> Path:
        """Issue a client's certificate and write a kubeconfig with it."""
        self.identify(name, user, group)
        data = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "e2e", "cluster": {"server": server, "certificate-authority": str(self.directory / "ca.crt")}}
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate": str(self.directory / f"{name}.crt"),
                        "client-key": str(self.directory / f"{name}.key"),
                    },
                }
            ],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
            "current-context": "e2e",
        }
        file = self.directory / f"{name}.kubeconfig"
        file.write_text(yaml.safe_dump(data))
        return file

    def _issue(
        self, name: str, subject: x509.Name, usage: x509.ObjectIdentifier, alternatives: list[x509.GeneralName]
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self._name, key)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        self._write(name, builder.sign(self._key, hashes.SHA256()), key)

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        (self.directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(self.directory / f"{name}.key", key)


def write_signing_keys(directory: Path) -> None:
    """Write the key pair that signs the tokens of service accounts: `sa.key` and `sa.pub`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_key(directory / "sa.key", key)
    (directory / "sa.pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def write_cluster_pki(directory: Path, *, server: str, address: str, service_address: str) -> None:
    """Write everything that a cluster without its nodes needs.

    Args:
        directory: The directory to write to.
        server: The API server's URL.
        address: The address on which the API server listens.
        service_address: The API server's address inside the cluster.
    """
    authority = Authority(directory)
    service = "kubernetes.default.svc"
    names = ["localhost", "kubernetes", "kubernetes.default", service, f"{service}.cluster.local"]
    authority.serve("apiserver", names, ["127.0.0.1", address, service_address])
    authority.identify("apiserver-kubelet", "apiserver-kubelet", _ADMIN)
    authority.identify("front-proxy", "front-proxy")
    authority.kubeconfig("admin", server, "admin", _ADMIN)
    authority.kubeconfig("controller-manager", server, "system:kube-controller-manager")
    authority.kubeconfig("scheduler", server, "system:kube-scheduler")
    authority.kubeconfig("proxy", server, "system:kube-proxy")
    write_signing_keys(directory)


def write_node_pki(directory: Path, *, server: str, name: str, address: str) -> None:
    """Write what an additional node needs: `kubelet-NAME.kubeconfig` and `kubelet-NAME-server.crt`.

    Args:
        directory: The directory with the cluster's files.
        server: The API server's URL.
        name: The node's name.
        address: The address on which its kubelet listens.
    """
    authority = Authority.load(directory)
    authority.serve(f"kubelet-{name}-server", [name, "localhost"], ["127.0.0.1", address])
    authority.kubeconfig(f"kubelet-{name}", server, f"system:node:{name}", "system:nodes")


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )


def _name(common: str, organisation: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organisation:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
