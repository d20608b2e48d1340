"""Backfills by real Spark: drivers and executors are pods, and the brokers, the operator and the application are real.

Spark is started as kubeflow's Spark operator starts it (`e2e/spark`), or by that operator itself if `E2E_SPARK_OPERATOR` is the
path of its program. What a backfill leaves is compared with what an application has that streamed everything.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from e2e.cluster import Cluster
from e2e.helm import Release
from e2e.images.catalogue import Images, provide_spark_image
from e2e.spark.installation import install_crds, minimal, refusal, running_spark_operator
from e2e.spark.program import PROGRAM
from e2e.spark.submission import API_VERSION
from e2e.support.application import Application, merged
from e2e.support.backfill import Backfill, example_attempt, stored
from e2e.support.word_count import TEXT, Words
from millrace_operator.backfills.spark_application import spark_application

pytestmark = pytest.mark.thorough
Maker = Callable[..., Application]

GHOST = b"ghost"
"""A word that nobody has written."""
SLOWLY: Mapping[str, Any] = {"app": {"entrypoint": "versions:slow"}}
"""Computing takes 20 ms for each line."""
LINES = 400


@pytest.fixture(scope="module")
def spark_image(cluster: Cluster, images: Images) -> str:
    """Return the image of Spark pods, with the CRDs of both Spark operators in the cluster."""
    install_crds(cluster, with_checks=PROGRAM is None)
    provide_spark_image(cluster, images)
    return images.spark_apps


@pytest.fixture
def spark(word_count: Maker, spark_image: str, tmp_path: Path) -> Iterator[Maker]:
    """Return `word_count`, with a Spark operator that serves its namespace."""
    served: set[str] = set()
    with ExitStack() as stack:

        def make(*arguments: Any, **spec: Any) -> Application:
            app = word_count(*arguments, **spec)
            if app.namespace not in served:
                stack.enter_context(running_spark_operator(app.cluster, app.namespace, tmp_path))
                served.add(app.namespace)
            return app

        yield make


def counts(app: Application, words: Words) -> Mapping[tuple[int, bytes], tuple[bytes, int]]:
    """Return what would be restored of an application's counts, with timestamps."""
    return stored(words.bootstrap_servers, f"{app.spec['applicationId']}-counts-changelog")


def in_figures(state: Mapping[tuple[int, bytes], tuple[bytes, int]]) -> Counter[str]:
    """Return counts as numbers."""
    return Counter({key.decode(): int.from_bytes(value, "big") for (_, key), (value, _) in state.items()})


def test_application_goes_on_after_a_backfill(spark: Maker, spark_image: str, words: Words, admin: AdminClient) -> None:
    """Stopped, computed in Spark and started again, it has what an application has that streamed everything, and counts on."""
    app = spark(words)
    app.apply()
    app.wait_ready()
    words.write(times=5)
    words.wait_exact()
    producer = Producer({"bootstrap.servers": words.bootstrap_servers})
    producer.produce(f"{app.spec['applicationId']}-counts-changelog", (99).to_bytes(8, "big"), GHOST, partition=0)
    assert producer.flush(30) == 0
    pods = {pod["metadata"]["uid"] for pod in app.pods()}
    backfill = Backfill(app, spark_image, outputs="Last")
    backfill.wait("the application to be held", lambda: app.status().get("lifecycleState") == "Backfilling")
    words.write(times=5)  # counted by Spark, or by the application when it is back
    status = backfill.wait_until_it_ends()
    assert status["phase"] == "Succeeded", backfill.story()
    [store] = status["stores"]
    assert (store["name"], store["records"], store["tombstones"]) == ("counts", len(words.written), 1)
    app.wait_ready()
    assert not pods & {pod["metadata"]["uid"] for pod in app.pods()}
    words.write()
    words.wait_exact()
    assert backfill.pods("driver") == backfill.pods("executor") == []

    output = f"{words.output}-too"
    admin.create_topics([NewTopic(output, 4, 1)])[output].result(30)
    streamed = spark(words, name="streamed", app={"config": {"output": output}})
    streamed.apply()
    streamed.wait_ready()
    streamed.wait("the same state", lambda: counts(streamed, words) == counts(app, words))


WRONG: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "a name that begins with a digit": ({"metadata": {"name": "1st"}}, "invalid SparkApplication name"),
    "a name with a dot": ({"metadata": {"name": "a.b"}}, "invalid SparkApplication name"),
    "an old Spark": ({"spec": {"sparkVersion": "2.4.0", "driver": {"template": {}}}}, "Spark version 3.0.0 or higher"),
    "the master": ({"spec": {"sparkConf": {"spark.master": "local"}}}, "not allowed"),
    "the executors' account": (
        {"spec": {"sparkConf": {"spark.kubernetes.authenticate.executor.serviceAccountName": "me"}}},
        "not allowed",
    ),
    "a token": ({"spec": {"sparkConf": {"spark.kubernetes.authenticate.driver.oauthToken": "t"}}}, "not allowed"),
    "another namespace": ({"spec": {"sparkConf": {"spark.kubernetes.namespace": "other"}}}, "must equal"),
}
"""SparkApplications that the webhook refuses: what is wrong, and what it says."""


def test_webhook_refuses_what_is_wrong_and_takes_ours(
    cluster: Cluster, namespace: str, spark_image: str, tmp_path: Path
) -> None:
    """With no field or with every field of the manifests, SparkApplications of backfills are admitted; wrong ones are not."""
    assert spark_image
    with running_spark_operator(cluster, namespace, tmp_path):
        said = {wrong: refusal(cluster, merged(minimal(namespace), changes)) for wrong, (changes, _) in WRONG.items()}
        assert {wrong: words in said[wrong] for wrong, (_, words) in WRONG.items()} == dict.fromkeys(WRONG, True), said
        for good in ("minimal", "everything"):
            ours = spark_application(example_attempt(good, namespace), API_VERSION)
            assert refusal(cluster, ours) == ""


def begun(spark: Maker, words: Words, image: str, **spec: Any) -> tuple[Application, Backfill]:
    """Return an application that was stopped half-way, and its backfill."""
    app = spark(words, **SLOWLY)
    app.apply()
    app.wait_ready()
    words.write(times=LINES // len(TEXT))
    backfill = Backfill(app, image, **spec)
    backfill.wait_for("Submitted")
    return app, backfill


class Watch:
    """Looks at an application's state until its backfill ends: there is the old one, then the new one, and nothing else."""

    def __init__(self, app: Application, backfill: Backfill, words: Words) -> None:
        self._app, self._backfill, self._words = app, backfill, words
        self._seen = [counts(app, words)]

    @property
    def states(self) -> int:
        """How many different states there were."""
        return sum(state not in self._seen[:number] for number, state in enumerate(self._seen))

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition."""

        def holds() -> object:
            self._seen.append(counts(self._app, self._words))
            return condition()

        self._backfill.wait(what, holds)

    def until_it_succeeds(self) -> dict[str, Any]:
        """Wait for the end and check the result, all that was seen, and that the application goes on."""
        self.until(lambda: self._backfill.phase in {"Succeeded", "Failed", "Refused"}, "the end")
        status = self._backfill.status()
        assert status["phase"] == "Succeeded", self._backfill.story()
        new = counts(self._app, self._words)
        assert in_figures(new) == self._words.written
        assert [state for state in self._seen if state not in (self._seen[0], new)] == []
        self._goes_on()
        return status

    def _goes_on(self) -> None:
        self._app.wait_ready()
        mark = self._words.mark()
        self._words.write()
        self._words.wait_exact(since=mark)
        assert self._backfill.pods("driver") == self._backfill.pods("executor") == []


def test_killed_drivers_are_replaced(spark: Maker, spark_image: str, words: Words) -> None:
    """Killed while it computes or publishes, or deleted with its log, each is followed by one that finds nothing in its way."""
    app, backfill = begun(spark, words, spark_image, attempts=8)
    watch = Watch(app, backfill, words)
    for state, how in itertools.product(("Computing", "Publishing"), ("kill", "delete")):
        backfill.wait_until_it_says(state)
        attempt = backfill.status()["attempt"]
        if how == "kill":
            backfill.kill("driver")
        else:
            [pod] = backfill.pods("driver")
            app.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
        watch.until(lambda attempt=attempt: backfill.status()["attempt"] > attempt, f"another than {attempt}")
    assert watch.until_it_succeeds()["attempt"] >= 5
    states = [item["status"]["applicationState"]["state"] for item in backfill.spark_applications()]
    assert states == ["FAILED"] * (len(states) - 1) + ["COMPLETED"]


def test_killed_executors_are_replaced(spark: Maker, spark_image: str, words: Words) -> None:
    """Killed while it computes and while the driver publishes, Spark itself replaces it."""
    app, backfill = begun(spark, words, spark_image)
    watch = Watch(app, backfill, words)
    backfill.wait_until_it_says("Computing")
    first = backfill.kill("executor")
    backfill.wait_until_it_says("Publishing")
    second = backfill.kill("executor")
    assert first != second
    watch.until_it_succeeds()


@pytest.mark.disturbs
def test_killed_operator_goes_on(spark: Maker, spark_image: str, words: Words, operator: Release) -> None:
    """Killed in every phase, it starts one SparkApplication, and lets the application go on at the end."""
    app, backfill = begun(spark, words, spark_image)
    watch = Watch(app, backfill, words)
    kill_operator(app.cluster, operator)
    backfill.wait_until_it_says("Computing")
    kill_operator(app.cluster, operator)
    backfill.wait_until_it_says("Publishing")
    kill_operator(app.cluster, operator)
    watch.until(lambda: backfill.phase == "Succeeded", "success")
    kill_operator(app.cluster, operator)
    watch.until_it_succeeds()
    assert len(backfill.spark_applications()) == 1


def kill_operator(cluster: Cluster, operator: Release) -> None:
    """Kill the operator's process as SIGKILL does."""
    app = Application(cluster, operator.namespace, operator.name, {})
    [pod] = app.objects("pods", f"app.kubernetes.io/instance={operator.name}")
    [container] = pod["status"]["containerStatuses"]
    assert cluster.node is not None
    cluster.node.kill_container(container["containerID"])


def test_killed_broker_is_waited_for(spark: Maker, spark_image: str, own_words: Any) -> None:
    """Killed in every phase and started again, the only broker has either the old state or the new one."""
    kafka, words = own_words

    def kill_broker() -> None:
        kafka.kill()
        kafka.restart_broker()

    app, backfill = begun(spark, words, spark_image)
    watch = Watch(app, backfill, words)
    kill_broker()
    backfill.wait_until_it_says("Computing")
    kill_broker()
    backfill.wait_until_it_says("Publishing")
    kill_broker()
    watch.until(lambda: backfill.phase == "Succeeded", "success")
    kill_broker()
    watch.until_it_succeeds()


def test_deleted_backfill_leaves_the_old_state_or_the_new_one(spark: Maker, spark_image: str, words: Words) -> None:
    """Deleted while it computes, nothing has happened; deleted while it publishes, it is finished first. Both let go."""
    app, backfill = begun(spark, words, spark_image)
    watch = Watch(app, backfill, words)
    backfill.wait_until_it_says("Computing")
    backfill.delete()
    watch.until(lambda: not backfill.pods("driver") and not backfill.pods("executor"), "no Spark pods")
    assert watch.states == 1
    backfill.wait("nothing left", lambda: backfill.resource() is None and not backfill.spark_applications())
    app.wait("the rest to be streamed", lambda: in_figures(counts(app, words)) == words.written)

    mark = words.mark()
    words.write()
    again = Backfill(app, spark_image, outputs="Last")
    again.wait_until_it_says("Publishing")
    again.delete()
    again.wait("nothing left", lambda: again.resource() is None and not again.pods("driver"))
    assert in_figures(counts(app, words)) == words.written
    app.wait_ready()
    words.write()
    words.wait_exact(since=mark)


def test_account_without_rights_is_reported(spark: Maker, spark_image: str, words: Words) -> None:
    """A driver that does not get its account fails with Kubernetes' reason; the application goes on as it was."""
    app = spark(words)
    app.apply()
    app.wait_ready()
    words.write()
    words.wait_exact()
    account = f"nobody-{secrets.token_hex(2)}"
    backfill = Backfill(app, spark_image, attempts=1, driver={"serviceAccountName": account})
    status = backfill.wait_until_it_ends()
    assert status["phase"] == "Failed"
    assert account in status["message"]
    app.wait_ready()
    mark = words.mark()
    words.write()
    words.wait_exact(since=mark)
