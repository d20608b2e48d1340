"""The operator dies after every single action, with real pods and a real Kafka, and everything still converges.

It runs as a process next to the cluster, with only its ServiceAccount's permissions in one namespace. It ends itself, like
SIGKILL, after a number of actions (writing a status is one), and is restarted. With one action per life, it dies after every
action of a creation, an upgrade and a deletion, before the next action, the status and the Events.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from tests.waiting import wait_until

from e2e.cluster import Cluster
from e2e.helm import Release
from e2e.operator_process import OperatorProcess
from e2e.support.application import PATIENCE_S, Application
from e2e.support.word_count import Words

pytestmark = [pytest.mark.disturbs, pytest.mark.thorough]

MOST_LIVES = 120
LONGEST_LIFE_S = 120.0
QUICK = {"gate": {"minStable": "1s"}}
OPEN = {"ingressFrom": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}
"""The operator is outside the cluster, so no policy can allow only it to reach the pods."""
LAST_DEATH_S = 60.0
"""How long a process may take to die from the last action needed."""
_ACTION = re.compile(r"app_controller: \S+ \S+: (\w+(?: the \w+| topics| members)?)|requests: patch \S+/(status)")
_WRITE = re.compile(r"requests: (?:apply|create|patch|delete|update) (?!/apis/coordination)\S*")


class Mortal:
    """An operator that keeps dying and restarting, and what is observed meanwhile.

    Args:
        app: The application that it serves.
        admin: A client for the app's Kafka.
        kubeconfig: A kubeconfig with the operator's own permissions.
        log: The log of all its lives.
    """

    def __init__(self, app: Application, admin: AdminClient, kubeconfig: Path, log: Path) -> None:
        self._app = app
        self._admin = admin
        self._kubeconfig = kubeconfig
        self._log = log
        self.topics: dict[str, str] = {}
        """The id of each internal topic that has existed."""
        self.claims: dict[str, str] = {}
        """The uid of each claim that has existed."""
        self.pods: set[str] = set()
        """The uids of all pods that have existed."""

    def live(self, **settings: int) -> OperatorProcess:
        """Start it."""
        space = self._app.namespace
        given = {"NAMESPACES": space, "POD_NAMESPACE": space, "RESYNC_SECONDS": 5, **settings}
        module = "e2e.crashing_operator" if "SIMULATED_CRASH_AFTER" in settings else "millrace_operator"
        return OperatorProcess(self._kubeconfig, self._log, module, **given)

    def until(self, done: Callable[[], bool], *lives: int, last_death_s: float = 0) -> list[str]:
        """Let it die again and again until a condition holds, and return the actions after which it died.

        Args:
            done: The condition.
            lives: How many actions each life lasts, in turn.
            last_death_s: How long to wait for one more death once the condition holds.
        """
        died_after: list[str] = []
        for actions in itertools.cycle(lives):
            if done():
                return died_after
            assert len(died_after) < MOST_LIVES, f"it does not get on: {died_after}\n{self._app.story()}"
            with self.live(SIMULATED_CRASH_AFTER=actions) as operator:
                self._app.wait("a death, or the end", lambda: operator.ends_within(1) or done(), LONGEST_LIFE_S)
                if operator.ends_within(last_death_s):
                    assert operator.status == 137, operator.log
                    died_after.append(_last_action(operator.log))
            self.look()
        raise AssertionError("lives are endless")

    def rest(self) -> None:
        """Let it die until a life has nothing left to do: there may be something to report afterwards, such as a steady lag."""
        for _ in range(MOST_LIVES):
            with self.live(SIMULATED_CRASH_AFTER=1, RESYNC_SECONDS=1) as operator:
                self._app.wait(
                    "a death, or passes", lambda: operator.ends_within(0.5) or _passes(operator) > 4, LONGEST_LIFE_S
                )
                if not operator.ends_within(1):
                    return
        raise AssertionError("there is always something to do")

    def look(self) -> None:
        """Check that nothing was created twice."""
        for name, topic_id in internal_topics(self._admin, self._app).items():
            assert self.topics.setdefault(name, topic_id) == topic_id, f"{name} was recreated"
        for claim in self._app.objects("pvc"):
            name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
            assert self.claims.setdefault(name, uid) == uid, f"{name} was recreated"
        self.pods |= {pod["metadata"]["uid"] for pod in self._app.pods()}


def _passes(operator: OperatorProcess) -> float:
    try:
        return operator.metric("millrace_operator_reconcile_seconds_count")
    except OSError:  # it has just died
        return 0.0


def _last_action(log: str) -> str:
    found = _ACTION.findall(log)
    return next(filter(None, found[-1])) if found else log[-2000:]


def internal_topics(admin: AdminClient, app: Application) -> dict[str, str]:
    """Return the ids of the app's internal topics by name."""
    prefix = f"{app.spec['applicationId']}-"
    names = [name for name in admin.list_topics(timeout=30).topics if name.startswith(prefix)]
    described = admin.describe_topics(TopicCollection(names)) if names else {}
    return {name: str(future.result(30).topic_id) for name, future in described.items()}


@pytest.fixture
def mortal(
    cluster: Cluster, operator_values, admin: AdminClient, tmp_path: Path
) -> Iterator[Callable[[Application], Mortal]]:
    """Return a factory of operators that die: `mortal(app)`; they have the chart's permissions in the app's namespace."""
    releases: list[Release] = []

    def make(app: Application) -> Mortal:
        release = Release(cluster, app.namespace)
        releases.append(release)
        release.apply(
            {**operator_values, "crds": {"install": False}, "watchNamespaces": [app.namespace], "replicas": 0}
        )
        kubeconfig = tmp_path / "kubeconfig"
        token = app.kubectl("create", "token", release.name, "--duration=1h").strip()
        known = yaml.safe_load(cluster.kubeconfig.read_text())
        known["users"] = [{"name": user["name"], "user": {"token": token}} for user in known["users"]]
        kubeconfig.write_text(yaml.safe_dump(known))
        return Mortal(app, admin, kubeconfig, tmp_path / "operator.log")

    yield make
    for release in releases:
        release.uninstall()


def at_rest(app: Application, *, but_not: str | None = None) -> bool:
    """Return whether all replicas run the newest manifest, the status says so, and the children are exactly the required ones.

    Args:
        app: The application.
        but_not: A revision that must no longer be current.
    """
    resource = app.object("streamsapp")
    assert resource is not None
    status = resource.get("status", {})
    conditions = {item["type"]: item["status"] for item in status.get("conditions", ())}
    stable = status.get("stableRevision")
    return (
        status.get("observedGeneration") == resource["metadata"]["generation"]
        and conditions.get("Ready") == "True"
        and conditions.get("Reconciling") == "False"
        and status.get("readyReplicas") == app.spec["replicas"]
        and stable == status.get("currentRevision") != but_not
        and children(app) == expected_children(app, stable)
    )


def children(app: Application) -> set[str]:
    """Return kinds and names of all objects created for the app, except its pods and claims."""
    kinds = "statefulset,job,configmap,service,serviceaccount,poddisruptionbudget,networkpolicy"
    return {f"{item['kind']}/{item['metadata']['name']}" for item in app.objects(kinds)}


def expected_children(app: Application, revision: str) -> set[str]:
    """Return the expected objects for an app with one good revision and no others to remember."""
    kinds = ("StatefulSet", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy")
    own = {f"{kind}/{app.name}" for kind in kinds} | {f"NetworkPolicy/{app.name}.plan"}
    return own | {f"ConfigMap/{app.name}-{what}-{revision}" for what in ("rev", "plan")}


def test_operator_that_keeps_dying_converges(word_count, words: Words, stood_down, mortal, admin) -> None:
    """Create, upgrade, scale in, delete, recreate, purge: counts are exact, nothing is created twice, left over or lost."""
    settings = {"upgrade": QUICK, "membership": {"sessionTimeout": "5m"}, "networkPolicy": OPEN}
    app: Application = word_count(words, replicas=2, **settings)
    operator: Mortal = mortal(app)
    words.write(times=20)
    app.apply()
    created = operator.until(lambda: at_rest(app), 1)
    words.wait_exact()
    assert (len(operator.pods), len(operator.claims), len(operator.topics)) == (2, 2, 2)
    claims, topics = dict(operator.claims), dict(operator.topics)

    first = app.status()["stableRevision"]
    with words.load():
        app.apply(app={"entrypoint": "versions:compatible"})
        upgraded = operator.until(lambda: at_rest(app, but_not=first), 1)
    words.wait_exact()
    assert len(operator.pods) == 4, "each pod was replaced once"
    app.apply(replicas=1)
    scaled = operator.until(lambda: at_rest(app), 1)
    assert len(app.pods()) == 1
    operator.rest()
    with operator.live() as healthy:
        healthy.wait_until_it_leads()
        wait_until(lambda: _passes(healthy) > 3, "some passes", PATIENCE_S)
        assert not _WRITE.findall(healthy.log), "there was nothing left to be done"

    retained = {f"ConfigMap/{app.name}.retained", f"ConfigMap/{app.name}-plan-{app.status()['stableRevision']}"}
    app.kubectl("delete", "streamsapp", app.name, "--wait=false")
    deleted = operator.until(lambda: app.object("streamsapp") is None, 1, last_death_s=LAST_DEATH_S)
    app.wait("no other children", lambda: children(app) == retained and not app.objects("pods"))
    assert {item["metadata"]["name"]: item["metadata"]["uid"] for item in app.objects("pvc")} == claims
    assert internal_topics(admin, app) == topics
    assert app.spec["applicationId"] in groups(admin)

    words.write(times=20)
    app.apply(deletionPolicy="Purge")
    made_again = operator.until(lambda: at_rest(app), 3, 2, 5)
    words.wait_exact()
    assert (operator.claims, operator.topics) == (claims, topics)
    app.kubectl("delete", "streamsapp", app.name, "--wait=false")
    purged = operator.until(lambda: app.object("streamsapp") is None, 1, last_death_s=LAST_DEATH_S)
    app.wait("nothing left", lambda: not children(app) and not app.objects("pods") and not app.objects("pvc"))
    assert internal_topics(admin, app) == {}
    assert app.spec["applicationId"] not in groups(admin)
    assert {words.input, words.output} <= set(admin.list_topics(timeout=30).topics)

    assert {"Set the finalizer", "Apply", "Create topics", "status"} <= set(created)
    assert {"Apply", "Delete", "status"} <= set(upgraded)
    assert {"Annotate", "Apply", "status"} <= set(scaled)
    assert {"Delete", "Remove members", "Remove the finalizer"} <= set(deleted)
    assert {"Delete topics", "Delete the consumer"} <= set(purged)
    deaths = {
        "created": created,
        "upgraded": upgraded,
        "scaled": scaled,
        "deleted": deleted,
        "made again": made_again,
        "purged": purged,
    }
    print({what: f"{len(after)}: {' '.join(after)}" for what, after in deaths.items()})  # noqa: T201 - shown by `-s`


def groups(admin: AdminClient) -> set[str]:
    """Return the existing consumer groups."""
    return {group.group_id for group in admin.list_consumer_groups(request_timeout=30).result().valid}
