"""The real cluster, Kafka, images and operator that the tests share; each is created when the first test needs it.

`--cluster DIR` uses a running cluster, and leaves it running: `python -m e2e.cluster up --dir DIR` starts one. With `--prepared`
its images and operator are also used as they are, so that several pytest processes can share them. `--api-server DIR` is the same
for `api_server`. `--cluster KUBECONFIG` uses any other cluster.
"""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.running import RunningTests

from e2e import diagnostics
from e2e.cluster import Cluster, ClusterError
from e2e.cluster.cluster import prepare
from e2e.cluster.existing import ExistingCluster
from e2e.cluster.progress import phase
from e2e.cluster.temporary import temporary_cluster
from e2e.helm import OPERATOR_NAMESPACE, Release, image_values
from e2e.images.catalogue import Images, provide_images
from e2e.order import durations
from e2e.support.api import control_plane
from e2e.support.application import KUBECTL_PATIENCE, Application, merged
from e2e.support.word_count import Words
from millrace.dev.kafka import EmbeddedKafka

collect_ignore = ["apps"]  # programs that run in pods
NamespaceFactory = Callable[..., str]
_TEST_TIMEOUT_S = 1800

_cluster_key = pytest.StashKey[Cluster]()
_namespaces_key = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a running cluster be used."""
    parser.addoption(
        "--cluster",
        type=Path,
        metavar="DIR|KUBECONFIG",
        help="use the cluster that runs in DIR, or any cluster by its kubeconfig, and leave it running",
    )
    parser.addoption(
        "--load-image",
        metavar="COMMAND",
        help="how an image gets into the nodes of a cluster with a KUBECONFIG, such as 'kind load image-archive {archive}'; "
        "known for kind, k3d and minikube",
    )
    parser.addoption("--images-loaded", action="store_true", help="the images are in the cluster already")
    parser.addoption(
        "--host-address",
        metavar="ADDRESS",
        help="where pods of a cluster with a KUBECONFIG reach this machine, if not found out",
    )
    parser.addoption(
        "--api-server", type=Path, metavar="DIR", help="use the control plane that runs in DIR and leave it running"
    )
    parser.addoption(
        "--prepared", action="store_true", help="use the images and the operator that are in the cluster as they are"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long, and with those of which that is not known; give every test its time.

    Raises:
        UsageError: A test disturbs others and is not thorough: `make e2e` would not run it.
    """
    for item in items:
        if item.get_closest_marker("disturbs") and not item.get_closest_marker("thorough"):
            raise pytest.UsageError(f"{item.nodeid} disturbs others, so mark it `thorough` too")
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TEST_TIMEOUT_S))
    known = durations()
    items.sort(key=lambda item: -known.get(item.path.name, float("inf")))


def pytest_configure(config: pytest.Config) -> None:
    """Handle SIGTERM like Ctrl-C, so that everything is taken down, and say what had not ended."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunningTests(config))
    else:
        signal.signal(signal.SIGTERM, lambda *_: pytest.exit("told to end", returncode=143))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Show the state of the cluster with a failure."""
    report = yield
    cluster = item.config.stash.get(_cluster_key, None)
    if report.failed and cluster:
        namespaces = [OPERATOR_NAMESPACE, *item.config.stash.get(_namespaces_key, [])]
        report.sections.append(("cluster", diagnostics.describe(cluster, namespaces)))
    return report


@pytest.fixture(scope="session")
def loudly(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Report slow steps and how long they took, even though pytest captures output."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    @contextmanager
    def shown(title: str) -> Iterator[None]:
        with capture.global_and_fixture_disabled(), phase(title):
            yield

    return shown


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, loudly) -> Iterator[Cluster]:
    """Return the session's Kubernetes with its node."""
    running: Path | None = request.config.getoption("--cluster")
    if running:
        found = _found(request.config, running, tmp_path_factory)
        request.config.stash[_cluster_key] = found
        yield found
        return
    prepare()
    with temporary_cluster(saying=loudly) as cluster:
        request.config.stash[_cluster_key] = cluster
        yield cluster


def _found(config: pytest.Config, running: Path, directories: pytest.TempPathFactory) -> Cluster:
    if running.is_file():
        address, load_image = (config.getoption(name) for name in ("--host-address", "--load-image"))
        return ExistingCluster(running, directories.mktemp("cluster"), host_address=address, load_image=load_image)
    found = Cluster.find(running)
    if found is None or found.node is None:
        raise ClusterError(f"No cluster with a node runs in {running}, and it is no kubeconfig")
    return found


@pytest.fixture(scope="session")
def api_server(request: pytest.FixtureRequest, loudly) -> Iterator[Cluster]:
    """Return a separate Kubernetes without a node but with the CRDs, for tests that stay in namespaces of their own."""
    running: Path | None = request.config.getoption("--api-server")
    if running:
        found = Cluster.find(running)
        if found is None:
            raise ClusterError(f"No cluster runs in {running}")
        yield found
        return
    _needs_control_planes(request.config)
    with control_plane(loudly) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def own_api_server(request: pytest.FixtureRequest, loudly) -> Iterator[Cluster]:
    """Return another one for a file's tests alone: they restart it, or their operator serves all namespaces."""
    _needs_control_planes(request.config)
    with control_plane(loudly) as cluster:
        yield cluster


def _needs_control_planes(config: pytest.Config) -> None:
    """Provide the programs of control planes; whoever brings a cluster may be on a machine where they cannot be built."""
    running: Path | None = config.getoption("--cluster")
    if running and running.is_file():
        pytest.skip("needs a control plane of its own, as `make e2e` builds")
    prepare()


@pytest.fixture(scope="session")
def images(request: pytest.FixtureRequest, cluster: Cluster, loudly) -> Images:
    """Return the names of the images, built from the checkout and loaded into the node."""
    if request.config.getoption("--prepared") or request.config.getoption("--images-loaded"):
        return Images()
    with loudly("Building the images and loading them into the node"):
        return provide_images(cluster)


@pytest.fixture(scope="session")
def kafka_options(cluster: Cluster) -> Mapping[str, Any]:
    """Let the session's Kafka listen where pods can reach it; `kafka` itself comes with Millrace's pytest plugin."""
    config = {
        # No test stops it, and a pause of the machine must not abort a transaction.
        "broker.session.timeout.ms": "60000",
        # What manifests may ask for: groups that rebalance soon, and that wait long for members that have died.
        "group.streams.min.heartbeat.interval.ms": "500",
        "group.streams.max.session.timeout.ms": "1800000",
    }
    return {"host": cluster.host_address, "config": config}


@pytest.fixture
def namespaces(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[NamespaceFactory]:
    """Create namespaces that are deleted after the test: `namespaces()`, `namespaces("orders", labels={…})`."""
    made: list[str] = []
    request.config.stash[_namespaces_key] = made

    def create(name: str = "e2e", *, labels: Mapping[str, str] | None = None) -> str:
        unique = f"{name}-{secrets.token_hex(3)}"
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique, "labels": labels or {}}})
        made.append(unique)
        return unique

    yield create
    for namespace in made:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def namespace(namespaces: NamespaceFactory) -> str:
    """Return one namespace for this test."""
    return namespaces()


@pytest.fixture(scope="session")
def operator_values(images: Images) -> Mapping[str, Any]:
    """Return the chart's values for the operator built from the checkout."""
    return image_values(images.operator)


@pytest.fixture(scope="session")
def operator(
    request: pytest.FixtureRequest, cluster: Cluster, operator_values: Mapping[str, Any], loudly
) -> Iterator[Release]:
    """Return the operator, installed cluster-wide from its chart and ready."""
    release = Release(cluster, OPERATOR_NAMESPACE)
    if request.config.getoption("--prepared"):
        yield release
        return
    with loudly("Installing the operator"):
        release.apply(operator_values)
    yield release
    release.uninstall()


@pytest.fixture
def stood_down(cluster: Cluster, operator: Release) -> Iterator[None]:
    """Stop the shared operator, so that a test's own operator serves everything: for tests that disturb."""
    deployment = ("-n", operator.namespace, f"deployment/{operator.name}")
    selector = f"--selector=app.kubernetes.io/instance={operator.name}"
    cluster.kubectl("scale", *deployment, "--replicas=0")
    cluster.kubectl("wait", "--for=delete", "pod", "-n", operator.namespace, selector, KUBECTL_PATIENCE)
    yield
    cluster.kubectl("scale", *deployment, "--replicas=1")
    cluster.kubectl("rollout", "status", *deployment, KUBECTL_PATIENCE)


@pytest.fixture
def admin(kafka) -> AdminClient:
    """Return an administrator client for the session's Kafka."""
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def kafka_topics(admin: AdminClient) -> Callable[[], list[str]]:
    """Return a function that lists the existing topics: `kafka_topics()`."""
    return lambda: sorted(admin.list_topics(timeout=30).topics)


@pytest.fixture
def words(kafka) -> Words:
    """Return topics for this test with words to count."""
    return Words(kafka.bootstrap_servers, f"e2e-{secrets.token_hex(3)}")


@pytest.fixture
def own_words(cluster: Cluster) -> Iterator[tuple[EmbeddedKafka, Words]]:
    """Return a Kafka that the test may stop, and words in it."""
    with EmbeddedKafka(host=cluster.host_address) as kafka:
        yield kafka, Words(kafka.bootstrap_servers, "own")


@pytest.fixture
def word_count(
    cluster: Cluster, images: Images, operator: Release, namespaces: NamespaceFactory
) -> Iterator[Callable[..., Application]]:
    """Create word counts in a namespace that enforces Restricted: `word_count(words, replicas=2)`; deleted after the test."""
    namespace = namespaces(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    made: list[Application] = []

    def make(words: Words, *, name: str = "counts", **spec: Any) -> Application:
        base = {
            "applicationId": f"{name}-{words.input}",
            "image": images.apps,
            "app": {"entrypoint": "wordcount:topology", "config": {"input": words.input, "output": words.output}},
            "kafka": {"bootstrapServers": words.bootstrap_servers.split(",")},
            "processing": {"guarantee": "exactly_once_v2", "commitInterval": "200ms"},
            "storage": {"size": "1Gi"},
        }
        app = Application(cluster, namespace, name, merged(base, spec))
        made.append(app)
        return app

    yield make
    for app in made:
        app.kubectl("annotate", "streamsapp", app.name, "streams.millrace.dev/pause-", check=False)
    for app in made:
        app.ask_to_delete()
    for app in made:
        app.delete()


@pytest.fixture
def kubectl_json(cluster: Cluster) -> Callable[..., Any]:
    """Run kubectl and return its output as data: `kubectl_json("get", "pods", "-n", namespace)`."""
    return lambda *arguments: json.loads(cluster.kubectl(*arguments, "--output=json"))
