"""The first batch that a producer writes to a partition, when the broker cannot take it yet and the next one is on its way.

A broker that does not know a producer yet takes any batch from it. If it took the second batch and not the first one, librdkafka
would conclude that both had been written.
"""

from __future__ import annotations

import secrets
import threading

import pytest
from tests.brokers import new_topic
from tests.instance.support import TEXT, read_all, settings
from tests.proxy import HOST, BrokerProxy, api_key, read_request
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.deadline import Deadline
from millrace.dev._ports import free_ports
from millrace.dev.kafka import EmbeddedKafka
from millrace.instance.producer import StreamsProducer
from millrace.instance.record_collector import KafkaRecordCollector
from millrace.kafka.client_settings import ClientSettings
from millrace.records import NO_HEADERS

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PRODUCE = 0
"""The API key of produce requests."""
FOLLOWS_WITHIN_S = 1.0
"""How long the answer to the first produce request is kept back, so that another one may follow."""


class Proxy(BrokerProxy):
    """The first produce request reaches the broker at a bad moment, and a second one at a good one.

    Until then the client gets no answer. If it does not send the second request without one, it gets it soon.

    Args:
        port: where it listens.
        before: called before the first produce request goes on.
        between: called when the broker has answered it.
    """

    def __init__(self, port, before, between):
        self.answered = threading.Event()
        """Set when the broker has answered the first produce request."""
        self._before, self._between = before, between
        self._held = None
        self._release = threading.Event()
        super().__init__(port)

    def close(self):
        """Accept no connection any more, and end those there are."""
        self._release.set()
        super().close()

    def pass_answers(self, client, server):
        """Hold the answer to the first produce request back."""
        while data := server.recv(65_536):
            if client is self._held:
                self.answered.set()
                self._release.wait()
            client.sendall(data)

    def pass_requests(self, client, server):
        """Wait for what follows the first produce request."""
        while True:
            request = read_request(client)
            if api_key(request) == PRODUCE and self._held is None:
                self._before()
                self._held = client
                server.sendall(request)
                self.answered.wait()
                request = self._followers(client)
                self._between()
                self._release.set()
            server.sendall(request)

    @staticmethod
    def _followers(client):
        followers, deadline = b"", Deadline(FOLLOWS_WITHIN_S)
        try:
            while not deadline.passed:
                client.settimeout(deadline.left_s(at_least=0.01))
                request = read_request(client)
                followers += request
                if api_key(request) == PRODUCE:
                    break
        except TimeoutError:
            pass
        client.settimeout(None)
        return followers


@pytest.fixture(scope="module")
def proxied():
    """Yield a broker whose clients are told to connect to a proxy, and the proxy's port."""
    [port] = free_ports(1, HOST)
    with EmbeddedKafka(advertised_ports=[port]) as kafka:
        yield kafka, port


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_first_batch_that_is_refused_is_not_lost(proxied, tmp_path, guarantee):
    """It is written before the second one is sent. Here the broker does not have the partition when the first one arrives."""
    kafka, port = proxied
    out = new_topic(kafka, "out")

    def remove():
        admin = kafka.admin()  # without a reference to it the answer never comes
        admin.delete_topics([out])[out].result()
        wait_until(lambda: not (kafka.directory / "node-1" / f"{out}-0").exists(), "the partition gone")

    proxy = Proxy(port, before=remove, between=lambda: kafka.create_topics(out))
    [proxy.broker] = kafka.proxied_ports
    config = StreamsConfig.of(
        settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path / "state", processing_guarantee=guarantee)
        | {"bootstrap.servers": f"{HOST}:{proxy.broker}", "producer.linger.ms": 0}
    )
    producer = StreamsProducer(lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms)
    producer.start()
    collector = KafkaRecordCollector(producer, kafka.admin(), config)
    try:
        for value in ("first", "second"):
            collector.send(out, None, TEXT.serialize(out, value, NO_HEADERS), 1, NO_HEADERS, 0)
            wait_until(proxy.answered.is_set, "the first batch refused", meanwhile=collector.poll)
        collector.flush()
        if producer.transactional:
            producer.client.commit_transaction(PATIENCE_S)
    finally:
        producer.close()
        proxy.close()
    assert [value for _, value, _ in read_all(kafka, out)] == [b"first", b"second"]
