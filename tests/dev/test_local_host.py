"""The local host: its folder, its topics, and a manifest that runs, dies, stops and resumes."""

from __future__ import annotations

import fcntl
import os
import sys
import uuid

import pytest
from tests import forked

from millrace.dev._readiness import quiet_admin
from millrace.dev.local_directory import LocalDirectory, ReplicaView
from millrace.dev.local_host import HostOptions, LocalHost, provide_topics
from millrace.errors import BrokerUnreachableError, LocalHostError, ManifestError, MissingSourceTopicError
from millrace.instance.activity import RateMeter
from millrace.kafka.admin import topic_partitions
from millrace.plan.topology_plan import PlannedRepartitionTopic, PlannedSubtopology, TopologyPlan

MANIFEST = """\
apiVersion: streams.millrace.dev/v1alpha1
kind: StreamsApp
metadata: {name: shop}
spec:
  applicationId: shop-v1
  image: shop:1
  app: {entrypoint: "shop:topology"}
  kafka: {bootstrapServers: ["kafka:9092"], config: {security.protocol: SASL_SSL}}
"""
NOTE = '{"pid": 1, "manifest": "m", "replicas": []}'


@pytest.fixture
def manifest(tmp_path):
    """Return a manifest in a file, in a folder with its program."""
    path = tmp_path / "streamsapp.yaml"
    path.write_text(MANIFEST)
    return path


def test_folder_has_a_place_for_everything(tmp_path, monkeypatch):
    """By default data is in the user's data directory, under the manifest's name."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert LocalDirectory.of("shop").root == tmp_path / "millrace" / "dev" / "shop"
    place = LocalDirectory.of("shop", tmp_path / "x")
    paths = {place.kafka, place.state("shop-0"), place.log("shop-0"), place.status("shop-0"), place.host_log}
    assert len(paths) == 5
    assert all(path.is_relative_to(tmp_path / "x") for path in paths)


def test_one_host_per_folder(tmp_path):
    """A second host is refused with the pid of the first; when the first has ended, the folder is free."""
    place = LocalDirectory.of("shop", tmp_path)
    with place.host(tmp_path / "m.yaml") as note:
        note.set_kafka("127.0.0.1:1")
        view = ReplicaView("shop-0", 7, "RUNNING", 2, 0, None, 1, "")
        note.set_replicas((view,))
        record = place.running_host()
        assert record
        assert (record.pid, record.serving, record.bootstrap_servers) == (os.getpid(), True, "127.0.0.1:1")
        assert record.replicas == (view,)
        with (
            pytest.raises(LocalHostError, match=rf"in use by another `millrace dev up` \(pid {os.getpid()}\)"),
            place.host(tmp_path),
        ):
            pass
    assert place.running_host() is None
    with place.host(tmp_path):
        pass


def test_file_of_a_killed_host_is_ignored(tmp_path):
    """A host that was killed leaves its file behind, but not its lock."""
    code = (
        "import os, sys, pathlib; from millrace.dev.local_directory import LocalDirectory\n"
        "with LocalDirectory(pathlib.Path(sys.argv[1])).host(pathlib.Path('m')): os.kill(os.getpid(), 9)"
    )
    forked.run([sys.executable, "-c", code, str(tmp_path)], timeout=120)
    assert (tmp_path / "host.json").exists()
    assert LocalDirectory(tmp_path).running_host() is None


def asking(place):
    """Hold a folder's lock as a query does."""
    file = (place.root / "host.lock").open("w")
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


@pytest.mark.parametrize("killed_before", [False, True])
def test_host_waits_for_a_concurrent_query(tmp_path, monkeypatch, killed_before):
    """A query at the moment of the start does not block the host, even if a killed host has left its file."""
    place = LocalDirectory.of("shop", tmp_path)
    if killed_before:
        (tmp_path / "host.json").write_text(NOTE)
    with asking(place) as lock:
        monkeypatch.setattr("millrace.dev.local_directory.time.sleep", lambda _: lock.close())
        with place.host(tmp_path):
            assert place.running_host().pid == os.getpid()


def test_concurrent_query_is_not_mistaken_for_a_host(tmp_path):
    """Two concurrent queries both find that the host was killed."""
    place = LocalDirectory.of("shop", tmp_path)
    (tmp_path / "host.json").write_text(NOTE)
    with asking(place):
        assert place.running_host() is None


def test_rate_is_measured_over_the_last_seconds():
    """The rate follows a counter, forgets old values, and starts over when the counter does."""
    meter = RateMeter(5.0)
    assert meter.add(0.0, 100) is None
    assert meter.add(1.0, 300) == 200
    assert meter.add(1.0, 300) == 200
    assert meter.add(20.0, 300) == 0
    assert meter.add(21.0, 5) is None
    assert meter.add(22.0, 10) == 5


def plan(reads: str, writes: str) -> TopologyPlan:
    """Return the plan of an application with an input, an output and a repartition topic."""
    inner = "shop-v1-by-item-repartition"
    first = PlannedSubtopology(id=0, source_topics=(reads,), sink_topics=(inner,))
    second = PlannedSubtopology(
        id=1,
        source_topics=(inner,),
        sink_topics=(writes,),
        repartition_topics=(PlannedRepartitionTopic(name=inner),),
    )
    return TopologyPlan(application_id="shop-v1", hash="", subtopologies=(first, second))


@pytest.mark.broker
def test_missing_topics_are_named_with_the_remedy_or_created(kafka):
    """Topics that may not be created are all named; otherwise they are created with the inputs' partition count."""
    orders, totals, new = (f"{name}-{uuid.uuid4().hex}" for name in ("orders", "totals", "new"))
    needs = plan(orders, totals)
    admin = quiet_admin(kafka.bootstrap_servers)
    said: list[str] = []
    with pytest.raises(MissingSourceTopicError) as caught:
        provide_topics(admin, needs, wanted={}, create_missing=False, report=said.append)
    assert str(caught.value) == (
        f"Topics of the application do not exist: {orders} (input), {totals} (output). "
        f"Create them, or add `--topic {orders}:4 --topic {totals}:4`"
    )
    provide_topics(admin, needs, wanted={orders: 3, totals: 2}, create_missing=False, report=said.append)
    assert said == [f"Created topic {orders}, partitions: 3", f"Created topic {totals}, partitions: 2"]
    assert topic_partitions(admin, [orders, totals]) == {orders: 3, totals: 2}
    provide_topics(admin, plan(orders, new), wanted={}, create_missing=True, report=said.append)
    assert said[2:] == [f"Created topic {new}, partitions: 3"]


@pytest.mark.broker
def test_dead_letter_topic_is_an_output(kafka):
    """It must exist like the topics that the topology writes to, or is created with the inputs' partition count."""
    orders, totals, failed = (f"{name}-{uuid.uuid4().hex}" for name in ("orders", "totals", "failed"))
    needs = plan(orders, totals).model_copy(update={"dead_letter_topic": failed})
    admin = quiet_admin(kafka.bootstrap_servers)
    said: list[str] = []
    with pytest.raises(MissingSourceTopicError, match=rf"{failed} \(dead letters\).*--topic {failed}:4"):
        provide_topics(admin, needs, wanted={orders: 3, totals: 2}, create_missing=False, report=said.append)
    provide_topics(admin, needs, wanted={orders: 3}, create_missing=True, report=said.append)
    assert f"Created topic {failed}, partitions: 4" in said
    assert topic_partitions(admin, [failed]) == {failed: 4}


def test_wrong_manifest_is_refused_before_anything_starts(manifest, tmp_path):
    """For a manifest that breaks its schema nothing is created."""
    manifest.write_text(MANIFEST.replace("image: shop:1", "image: ''"))
    with pytest.raises(ManifestError, match=r"spec\.image: must not be empty"):
        LocalHost(HostOptions(manifest, directory=tmp_path / "data"), report=print)
    assert not (tmp_path / "data").exists()


def test_brokers_that_do_not_answer_are_named(manifest, tmp_path, monkeypatch):
    """With --bootstrap the given brokers must answer; the manifest's security settings do not apply to them."""
    monkeypatch.setattr("millrace.dev.local_host.CHECK_TIMEOUT_S", 0.5)
    options = HostOptions(manifest, directory=tmp_path / "data", bootstrap="127.0.0.1:1")
    with (
        LocalHost(options, report=print) as host,
        pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1"),
    ):
        host.start_kafka()


def test_program_that_cannot_make_a_plan(manifest, tmp_path):
    """The host reports the error of `millrace plan`."""
    from millrace.dev.local_host import ask_for_plan

    with pytest.raises(
        LocalHostError, match=r"The program cannot make a plan: shop:topology: there is no module `shop`"
    ):
        ask_for_plan(manifest)
