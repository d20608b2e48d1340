"""Passwords that change while an instance runs: every client switches to the new one, and neither is ever shown."""

from __future__ import annotations

import io
import json
import logging
import secrets
import urllib.request

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tests.apart import run_apart
from tests.instance.support import expected_counts, last_counts, produce, running, settings, two_step_word_count
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import ConfigError
from millrace.instance import KafkaStreams, State
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.credential_watch import CredentialWatch, LiveClients
from millrace.kafka.security import Security

pytestmark = pytest.mark.broker
OLD, NEW = "old-0b1946", "new-77c1ad"
HANDED_OUT = "use them from their next authentication on"


def set_password(kafka, user, password):
    """Set a SCRAM user's password over the open listener, and wait until the broker knows it.

    The broker learns it a moment after the controller has accepted it; the number of iterations shows when.
    """
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096 + secrets.randbelow(4096))
    for done in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(user, info, password.encode())]
    ).values():
        done.result(PATIENCE_S)

    def is_known():
        try:
            found = admin.describe_user_scram_credentials([user])[user].result(PATIENCE_S)
        except KafkaException:
            return False
        return [item.iterations for item in found.scram_credential_infos] == [info.iterations]

    wait_until(is_known, "the password to be known to the broker")


def secured(kafka, app, tmp_path, folder, **others):
    """Return the settings of an instance whose user name and password are in files."""
    return settings(kafka.sasl_bootstrap_servers, app, tmp_path / "state", **others) | {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": f"${{directory:{folder}:username}}",
        "sasl.password": f"${{directory:{folder}:password}}",
        "health.listener": "127.0.0.1:0",
        "reconnect.backoff.max.ms": 500,
    }


def mount(folder, user, password):
    """Write the files as Kubernetes does: a new folder, and a link that switches to it in one step."""
    folder.mkdir(exist_ok=True)
    version = folder / f"..{secrets.token_hex(4)}"
    version.mkdir()
    (version / "username").write_text(user)
    (version / "password").write_text(f"{password}\n")
    link = folder / "..data.new"
    link.symlink_to(version.name)
    link.replace(folder / "..data")
    for name in ("username", "password"):
        if not (folder / name).exists():
            (folder / name).symlink_to(f"..data/{name}")


@pytest.mark.parametrize(
    ("first", "guarantee"), [("file", "exactly_once_v2"), ("broker", "at_least_once"), ("broker", "exactly_once_v2")]
)
def test_password_is_changed_without_a_restart(kafka, tmp_path, guarantee, first):
    """Whether the file or the broker changes first, the same threads continue exactly-once, and no password is shown.

    Clients authenticate again every second, which librdkafka may not survive when their brokers close connections meanwhile.
    """
    run_apart(change_password, kafka.directory, tmp_path, guarantee, first)


def change_password(directory, tmp_path, guarantee, first):
    """Do so with the broker that runs in a directory."""
    kafka, logged = EmbeddedKafka.attach(directory), io.StringIO()
    logging.basicConfig(stream=logged, level=logging.DEBUG)
    user, app = f"user-{secrets.token_hex(4)}", f"app-{secrets.token_hex(4)}"
    kafka.create_topics(f"{app}-in", f"{app}-out", partitions=1)
    set_password(kafka, user, OLD)
    mount(tmp_path / "auth", user, OLD)
    config = secured(kafka, app, tmp_path, tmp_path / "auth", processing_guarantee=guarantee)
    lines = [f"w{number % 7}" for number in range(50)]
    with running(two_step_word_count(f"{app}-in", f"{app}-out"), config) as streams:
        threads = streams.threads
        produce(kafka, f"{app}-in", lines)
        wait_until(lambda: last_counts(kafka, f"{app}-out") == expected_counts(lines), "counted with the old password")
        if first == "file":
            mount(tmp_path / "auth", user, NEW)
            wait_until(lambda: HANDED_OUT in logged.getvalue(), "handed out")
            set_password(kafka, user, NEW)
        else:
            set_password(kafka, user, NEW)
            wait_until(lambda: "uthentication" in logged.getvalue(), "refused")
            mount(tmp_path / "auth", user, NEW)
            wait_until(lambda: HANDED_OUT in logged.getvalue(), "handed out")
        generation, changed_ms = streams.status().group.generation, streams.status().time_ms
        produce(kafka, f"{app}-in", lines)
        wait_until(lambda: last_counts(kafka, f"{app}-out") == expected_counts(2 * lines), "counted on")
        wait_until(lambda: streams.status().time_ms - changed_ms > 2_500, "two of the broker's sessions are over")
        produce(kafka, f"{app}-in", lines)
        wait_until(lambda: last_counts(kafka, f"{app}-out") == expected_counts(3 * lines), "counted on and on")
        assert streams.status().group.generation == generation
        wait_until(lambda: streams.state is State.RUNNING, "running")
        host, port = streams.health_address
        with urllib.request.urlopen(f"http://{host}:{port}/status", timeout=PATIENCE_S) as answer:
            shown = answer.read().decode()
        assert json.loads(shown)["credentials_stale"] is False
        assert streams.threads == threads
    assert streams.error is None
    for password in (OLD, NEW):
        assert password not in logged.getvalue() + shown + repr(streams.config)


def test_missing_secret_ends_the_start_with_its_name(kafka, tmp_path):
    """The error for a secret that is not mounted names the setting and the file; the state directory is not locked."""
    config = secured(kafka, "app", tmp_path, tmp_path / "nowhere")
    with pytest.raises(
        ConfigError, match=rf"sasl\.username refers to {tmp_path}/nowhere/username, which does not exist"
    ):
        KafkaStreams(two_step_word_count("in", "out"), config).start()


def test_certificate_that_changed_is_reported_until_it_is_restored(tmp_path, caplog):
    """Client libraries read certificates once, so with a changed file credentials are stale until the old one is restored."""
    certificate = tmp_path / "ca.crt"
    certificate.write_text("first")
    config = StreamsConfig.of(
        {
            "application.id": "app",
            "bootstrap.servers": "127.0.0.1:9092",
            "security.protocol": "SSL",
            "ssl.ca.location": str(certificate),
        }
    )
    watch = ClientSettings(config, "p").watch_credentials()
    watch.check()
    assert not watch.stale
    certificate.write_text("another")
    watch.check()
    assert watch.stale
    assert "restart this instance" in caplog.text
    certificate.unlink()
    watch.check()
    assert watch.stale
    certificate.write_text("first")
    watch.check()
    assert not watch.stale


def test_secret_that_vanishes_for_a_moment_changes_nothing(tmp_path, caplog):
    """While a file is missing, clients keep their credentials, and the reason is logged once."""
    caplog.set_level(logging.INFO)
    mount(tmp_path / "auth", "alice", OLD)
    config = StreamsConfig.of(
        {
            "application.id": "app",
            "bootstrap.servers": "127.0.0.1:9092",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": f"${{directory:{tmp_path}/auth:username}}",
            "sasl.password": f"${{directory:{tmp_path}/auth:password}}",
        }
    )
    watch = ClientSettings(config, "p").watch_credentials()
    (tmp_path / "auth" / "..data").unlink()
    watch.check()
    watch.check()
    assert caplog.text.count("Credentials stay as they are") == 1
    mount(tmp_path / "auth", "alice", NEW)
    watch.check()
    assert "Credentials have changed: 0 clients" in caplog.text
    assert NEW not in caplog.text


def test_secret_that_changes_while_it_is_first_read_is_seen(tmp_path):
    """If the file changes while the watch is being created, its first check finds that clients need another password."""
    file, given, being_made = tmp_path / "password", [], True
    file.write_text("x")

    class Client:
        def set_sasl_credentials(self, username, password):
            given.append(password)

    def security(_):
        found = Security("SASL_PLAINTEXT", "PLAIN", "alice", file.read_text())
        if being_made:
            file.write_text(f"{found.password}x")
        return found

    clients, client = LiveClients(), Client()
    clients.add(client, ())
    watch = CredentialWatch(clients, security, [()], [file])
    being_made = False
    watch.check()
    assert given == [file.read_text()]
