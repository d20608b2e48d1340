"""A Kafka that requires authentication: by password, by password over TLS, and by certificate."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tests.waiting import wait_until

from e2e.cluster.pki import Authority
from e2e.support.application import PATIENCE_S
from millrace.dev._ports import free_ports
from millrace.dev.kafka import EmbeddedKafka

SESSION_S = 5
"""After how long brokers require a client to authenticate again, and disconnect it if its password is different."""
_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@dataclass(frozen=True, slots=True)
class SecuredKafka:
    """Its listeners, apart from the open one for tests."""

    kafka: EmbeddedKafka
    scram: str
    """SASL_PLAINTEXT with SCRAM-SHA-512."""
    scram_over_tls: str
    """SASL_SSL with SCRAM-SHA-512."""
    mutual_tls: str
    """SSL with a client certificate."""
    pki: Authority
    """The authority that signs the brokers' certificates, and those of clients that they trust."""

    @property
    def authority(self) -> str:
        """The certificate of the authority."""
        return (self.pki.directory / "ca.crt").read_text()

    def identity(self, name: str) -> tuple[str, str]:
        """Return a new certificate for a client, and its key."""
        self.pki.identify(name, "orders")
        certificate, key = (self.pki.directory / f"{name}.{kind}" for kind in ("crt", "key"))
        return certificate.read_text(), key.read_text()

    def set_password(self, user: str, password: str) -> None:
        """Set a user's password and wait until the broker knows it, as the number of iterations shows."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096 + secrets.randbelow(4096))
        change = UserScramCredentialUpsertion(user, info, password.encode())
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(30)

        def known() -> bool:
            try:
                found = admin.describe_user_scram_credentials([user])[user].result(30)
            except KafkaException:
                return False
            return [item.iterations for item in found.scram_credential_infos] == [info.iterations]

        wait_until(known, "the broker to know the password", PATIENCE_S)


@contextmanager
def secured_kafka(host: str) -> Iterator[SecuredKafka]:
    """Run one.

    Args:
        host: An address of this machine that pods can reach.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-pki-") as folder:
        pki = Path(folder)
        authority = Authority(pki)
        authority.serve("broker", [], [host])
        plain, controller, *others = free_ports(5, host)
        names = {"SCRAM": "SASL_PLAINTEXT", "SCRAMTLS": "SASL_SSL", "MTLS": "SSL"}
        addresses = {name: f"{host}:{port}" for name, port in zip(names, others, strict=True)}
        listeners = {"PLAINTEXT": f"{host}:{plain}", "CONTROLLER": f"{host}:{controller}", **addresses}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **names}
        config = {
            "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
            "controller.quorum.voters": f"1@{listeners['CONTROLLER']}",
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": _JAAS,
            "listener.name.scramtls.scram-sha-512.sasl.jaas.config": _JAAS,
            "connections.max.reauth.ms": str(SESSION_S * 1000),
            "listener.name.mtls.ssl.client.auth": "required",
            "broker.session.timeout.ms": "60000",
        }
        for listener in ("scramtls", "mtls"):
            config |= {
                f"listener.name.{listener}.ssl.keystore.type": "PEM",
                f"listener.name.{listener}.ssl.keystore.certificate.chain": (pki / "broker.crt").read_text(),
                f"listener.name.{listener}.ssl.keystore.key": (pki / "broker.key").read_text(),
                f"listener.name.{listener}.ssl.truststore.type": "PEM",
                f"listener.name.{listener}.ssl.truststore.certificates": (pki / "ca.crt").read_text(),
            }
        with EmbeddedKafka(host=host, ports=[plain], config=config) as kafka:
            yield SecuredKafka(
                kafka,
                addresses["SCRAM"],
                addresses["SCRAMTLS"],
                addresses["MTLS"],
                authority,
            )
