"""Opens the Kafka clients of an application (Kafka Streams' `KafkaClientSupplier`, key `default.client.supplier`).

Your own supplier can wrap or replace the clients: `millrace.testing.simulation` runs an application on clients of a
simulated cluster. Settings are librdkafka's, derived from the application's by `millrace.kafka.client_settings`.
"""

from __future__ import annotations

import kafka.errors as kafka_errors
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from millrace.config import ClientConfig, StreamsConfig
from millrace.errors import BrokerUnreachableError, ConfigError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin, open_consumer, open_producer
from millrace.kafka.connection import Connection
from millrace.kafka.connection_check import check_connection
from millrace.kafka.group_metadata import check_group_metadata
from millrace.loading import load_instance

__all__ = ["KafkaClientSupplier", "client_supplier"]


class KafkaClientSupplier:
    """Opens clients of the brokers in `bootstrap.servers`; override the methods that should differ."""

    def admin(self, settings: ClientConfig) -> AdminClient:
        """Open the admin client that an instance's threads share."""
        return open_admin(settings)

    def consumer(self, settings: ClientConfig) -> Consumer:
        """Open the consumer that feeds a stream thread; it is given partitions and never joins the group."""
        return open_consumer(settings)

    def restore_consumer(self, settings: ClientConfig) -> Consumer:
        """Open the consumer that reads a stream thread's changelogs."""
        return open_consumer(settings)

    def global_consumer(self, settings: ClientConfig) -> Consumer:
        """Open the consumer that fills an instance's global stores."""
        return open_consumer(settings)

    def producer(self, settings: ClientConfig) -> Producer:
        """Open a stream thread's producer; called again when one is replaced after a failure."""
        return open_producer(settings)

    def member(self, settings: ClientSettings, thread: int, timeout_s: float) -> Connection:
        """Connect a stream thread's group member to the brokers.

        Args:
            settings: the instance's.
            thread: the thread's number, from 1.
            timeout_s: how long to wait for a broker.

        Raises:
            BrokerUnreachableError: no broker answered in time.
            AuthenticationError: the credentials were refused, or the listener has another security protocol.
            UnsupportedFeatureError: this confluent-kafka cannot commit this member's offsets in transactions.
        """
        check_group_metadata()
        check_connection(settings, timeout_s)
        connection = Connection(settings.kafka_python(thread))
        try:
            connection.manager.bootstrap(int(timeout_s * 1000))
        except (kafka_errors.KafkaError, OSError) as error:
            connection.close()
            servers = ",".join(settings.config.bootstrap_servers)
            raise BrokerUnreachableError(
                f"The brokers of bootstrap.servers={servers} stopped answering ({error}): check that they are running"
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection


def client_supplier(config: StreamsConfig) -> KafkaClientSupplier:
    """Return the supplier that `default.client.supplier` names.

    Raises:
        ConfigError: it names no supplier.
    """
    key, known = "default.client.supplier", {"DefaultKafkaClientSupplier": KafkaClientSupplier}
    given = config.default_client_supplier
    supplier = load_instance(KafkaClientSupplier if given is None else given, key, known)
    if not isinstance(supplier, KafkaClientSupplier):
        raise ConfigError(f"{key}: {given!r} is not a millrace.kafka.client_supplier.KafkaClientSupplier")
    return supplier
