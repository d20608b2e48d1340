"""Fixtures that give a test a real Kafka; registered with pytest, so they exist wherever Millrace is installed.

The plugin is loaded in every pytest run of every user, so it imports nothing from Millrace until a fixture is used. Under
pytest-xdist all workers share one broker: the first that needs it starts it, and it belongs to the controller, which stops it
at the end of the session. If the controller is killed the broker ends too.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from millrace.dev.kafka import EmbeddedKafka

_SHARED_DIRECTORY = "millrace_kafka_directory"
_SHARED_OWNER = "millrace_kafka_owner"
_shared_directory_key = pytest.StashKey[Path]()


class TopicFactory(Protocol):
    """Creates topics with unique names."""

    def __call__(self, name: str = "topic", *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic and return its name, which begins with `name`."""


class KafkaFactory(Protocol):
    """Starts Kafka clusters for a test that may break them."""

    def __call__(self, brokers: int = 1, **options: Any) -> EmbeddedKafka:
        """Start a cluster; it takes the options of `EmbeddedKafka`."""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker where the session's shared broker is or will be."""
    config: pytest.Config = node.config
    if _shared_directory_key not in config.stash:
        name = f"millrace-kafka-{os.getpid()}-{secrets.token_hex(4)}"
        config.stash[_shared_directory_key] = Path(tempfile.gettempdir()) / name
    node.workerinput[_SHARED_DIRECTORY] = str(config.stash[_shared_directory_key])
    node.workerinput[_SHARED_OWNER] = os.getpid()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the broker that xdist's workers shared, if they started one."""
    directory = config.stash.get(_shared_directory_key, None)
    if directory is None or not directory.exists():
        return
    from millrace.dev.kafka import EmbeddedKafka  # noqa: PLC0415
    from millrace.errors import DevKafkaError  # noqa: PLC0415

    try:
        EmbeddedKafka.attach(directory).stop(timeout_s=1.0)
    except DevKafkaError:
        pass  # it has already ended
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka_options() -> Mapping[str, Any]:
    """Options of `EmbeddedKafka` for the session's broker; override it in `conftest.py`."""
    return {}


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, kafka_options: Mapping[str, Any]) -> Iterator[EmbeddedKafka]:
    """The session's running Kafka, shared by all tests and all xdist workers: do not stop or kill it."""
    import fcntl  # noqa: PLC0415

    from millrace.dev._broker_files import ClusterState  # noqa: PLC0415
    from millrace.dev.kafka import EmbeddedKafka  # noqa: PLC0415

    worker_input: Mapping[str, Any] = getattr(request.config, "workerinput", {})  # only xdist's workers have it
    if _SHARED_DIRECTORY not in worker_input:
        with EmbeddedKafka(**kafka_options) as kafka:
            yield kafka
        return
    directory = Path(worker_input[_SHARED_DIRECTORY])
    directory.mkdir(mode=0o700, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ClusterState.of_running(directory) is None:
            EmbeddedKafka(directory=directory, owner_pid=worker_input[_SHARED_OWNER], **kafka_options).start()
        shared = EmbeddedKafka.attach(directory)
    yield shared


@pytest.fixture
def topic_factory(kafka: EmbeddedKafka) -> TopicFactory:
    """Create topics with unique names on the session's Kafka: `topic_factory("orders", partitions=4)`."""

    def create(name: str = "topic", *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        unique = f"{name}-{secrets.token_hex(6)}"
        kafka.create_topics(unique, partitions=partitions, config=config)
        return unique

    return create


@pytest.fixture
def own_kafka() -> Iterator[KafkaFactory]:
    """Start clusters that belong only to this test and end with it: `own_kafka(brokers=3)`."""
    from millrace.dev.kafka import EmbeddedKafka  # noqa: PLC0415

    with ExitStack() as running:

        def start(brokers: int = 1, **options: Any) -> EmbeddedKafka:
            kafka = EmbeddedKafka(brokers, **options)
            running.callback(kafka.stop)
            return kafka.start()

        yield start
