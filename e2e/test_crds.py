"""The CRDs on a real API server: what it accepts and stores, and what it refuses, with which messages.

The tables are the same as in `tests/manifest`, which applies them to the models; here they are applied to the API server.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from kubernetes.client import ApiException, CustomObjectsApi
from tests.manifest import wrong

from e2e.cluster import Cluster
from millrace.manifest import GROUP, KINDS, VERSION, check
from millrace.manifest.crd import schema_of
from millrace.manifest.rules import VALIDATIONS

CRDS: Final = Path(__file__).parents[1] / "crds"
NAMESPACE: Final = "default"
TABLE: Final = list(wrong.table())
NEARLY_RIGHT: Final[list[Any]] = [
    *(True, False, 0, 1, -1, 2, 3, 100, 2**31, 2**40, 0.5, "", [], {}, [{}], {"a": 1}, {"a": "b"}, ["a"], ["a", "a"]),
    *("a", "A", "a.b", "-a", "a-", "a\n", "ä", "a b", "x" * 64, "x" * 254, "x" * 1000, "fast", "Fail", "Continue"),
    *("1", "0", "0s", "1s", "10s", "1m30s", "300h", "1Gi", "1.5", "1e3", "1e-3", "-1Gi", "10%", "0%", "100%"),
    *("m:f", "a:b:c", "kafka:1", "[::1]:1", "kafka:0", "kafka:65536", "http://a", "https://a/b?c=d", "http://a@b"),
    *("/a", "/a/", "a/b", "/etc/millrace", "/etc/millracer", "/var/lib/millrace/x"),
    *("earliest", "offset:1", "shift:-1", "timestamp:2026-02-30T00:00:00Z", "timestamp:2026-02-28T00:00:00+01:00"),
    *("timestamp:1969-12-31T23:59:59Z", "timestamp:2026-02-28T00:00:00.1234567Z", "timestamp:2026-02-28T00:00:00Z"),
]
"""Values that are valid somewhere, or nearly valid."""


class Resources:
    """The resources of Millrace's kinds in one namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = CustomObjectsApi(cluster.client)

    def where(self, kind: str) -> dict[str, str]:
        """Return the API path of a kind."""
        return {"group": GROUP, "version": VERSION, "namespace": NAMESPACE, "plural": KINDS[kind].plural}

    def create(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create a resource, strictly: unknown fields are errors, as with kubectl."""
        options = {"dry_run": "All"} if dry_run else {}
        return self._api.create_namespaced_custom_object(
            **self.where(manifest["kind"]), body=manifest, field_validation="Strict", **options
        )

    def replace(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Replace the resource of that name with a manifest, whatever its version."""
        where = {**self.where(manifest["kind"]), "name": manifest["metadata"]["name"]}
        version = self._api.get_namespaced_custom_object(**where)["metadata"]["resourceVersion"]
        body = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
        options = {"dry_run": "All"} if dry_run else {}
        return self._api.replace_namespaced_custom_object(**where, body=body, field_validation="Strict", **options)

    def write_status(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Write the status of a resource, as the operator does."""
        return self._api.patch_namespaced_custom_object_status(
            **self.where(manifest["kind"]),
            name=manifest["metadata"]["name"],
            body={"status": manifest["status"]},
            field_validation="Strict",
        )


@pytest.fixture(scope="module")
def resources(api_server: Cluster) -> Resources:
    """Return access to the resources."""
    return Resources(api_server)


@pytest.fixture(scope="module")
def stored(resources: Resources) -> dict[str, dict[str, Any]]:
    """Return the good manifests with every field, as the API server has stored them."""
    return {kind: resources.create(manifest) for kind, manifest in wrong.good("everything").items()}


def refusal(error: ApiException) -> str:
    """Return the message that the user sees."""
    assert error.status in {400, 422}
    return str(json.loads(error.body)["message"])


def refusal_of(manifest: dict[str, Any], resources: Resources) -> str:
    """Return why the API server refuses a manifest; empty if it does not."""
    try:
        resources.create(manifest, dry_run=True)
    except ApiException as error:
        return refusal(error)
    return ""


@functools.cache
def explanations(kind: str) -> set[str]:
    """Return the messages of all rules of a kind, without the lists after a colon."""

    def inside(schema: dict[str, Any]) -> Iterator[str]:
        yield from (rule["message"].partition(": ")[0] for rule in schema.get(VALIDATIONS, ()))
        parts = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
        for part in filter(None, parts):
            yield from inside(part)

    return set(inside(schema_of(KINDS[kind])))


def test_crds_are_accepted(api_server: Cluster):
    """The API server accepts the schemas: they are structural, and their rules are cheap enough."""
    names = [f"{kind.plural}.{GROUP}" for kind in KINDS.values()]
    for crd in json.loads(api_server.kubectl("get", "crd", *names, "--output=json"))["items"]:
        conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
        assert conditions.get("Established") == "True"
        assert conditions.get("NamesAccepted") == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"
    assert len(list(CRDS.glob("streams*.yaml"))) == len(KINDS)


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_wrong_value_is_refused_with_its_field(case: wrong.Wrong, resources: Resources):
    """Each invalid value is refused with a message that names the field, in the models' words where these explain it."""
    with pytest.raises(ApiException) as caught:
        resources.create(case.manifest, dry_run=True)
    message = refusal(caught.value)
    field = [step for step in case.at.split("/") if not step.isdigit()][-1]
    assert field in message
    _, problems = check(case.manifest, KINDS[case.kind])
    for explanation in explanations(case.kind):
        if any(problem.rule.startswith(explanation) for problem in problems):
            assert explanation in message


def test_models_and_api_server_agree(resources: Resources):
    """The API server accepts exactly what the models accept, with values from anywhere put anywhere.

    Nulls and whole floats are left out: the API server rewrites them before validation.
    """
    random = Random(20260131)
    places = [(kind, field) for kind, field in wrong.places() if field.startswith("spec")]
    values = [wrong.standing_at(kind, field) for kind, field in places] + NEARLY_RIGHT
    taken = 0
    for _ in range(500):
        (kind, field), value = random.choice(places), random.choice(values)
        manifest = wrong.altered(kind, field, value)
        model, problems = check(manifest, KINDS[kind])
        refused = refusal_of(manifest, resources)
        assert bool(refused) == bool(problems), (
            f"{field}={value!r}: the API server says {refused}, the models {problems}"
        )
        taken += model is not None
    assert taken > 50


@pytest.mark.parametrize("name", wrong.OTHER_WAYS)
def test_other_ways_to_brokers_are_accepted(name: str, resources: Resources) -> None:
    """Fields that are mutually exclusive with those of the fullest manifest are accepted in separate manifests."""
    assert refusal_of(wrong.good(name)["StreamsApp"], resources) == ""


@pytest.mark.parametrize("name", ["minimal", "everything"])
@pytest.mark.parametrize("kind", KINDS)
def test_good_manifest_is_accepted_and_means_the_same(kind: str, name: str, resources: Resources):
    """The API server only adds the models' own defaults, so it returns the application that was written."""
    written = wrong.good(name)[kind]
    returned = resources.create(written, dry_run=True)
    before, _ = check(written, KINDS[kind])
    after, problems = check(returned, KINDS[kind])
    assert problems == []
    assert before
    assert after
    assert after.spec == before.spec
    assert after.spec.model_dump(exclude_defaults=True) == before.spec.model_dump(exclude_defaults=True)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_spec_or_status_is_lost(kind: str, stored: dict[str, Any], resources: Resources):
    """Every field is stored as it was written: a field missing from the schema would be dropped."""
    written = wrong.good("everything")[kind]
    assert stored[kind]["spec"] == written["spec"]
    assert resources.write_status(written)["status"] == written["status"]


@pytest.mark.parametrize("change", list(wrong.changes()), ids=str)
def test_changes(change: wrong.Change, stored: dict[str, Any], resources: Resources):
    """Changes to immutable fields are refused with the reason; all others are allowed."""
    assert stored[change.kind]
    if not change.refused:
        assert resources.replace(change.manifest, dry_run=True)
        return
    with pytest.raises(ApiException) as caught:
        resources.replace(change.manifest, dry_run=True)
    assert change.refused in refusal(caught.value)


def test_kubectl_applies_twice_without_a_change(api_server: Cluster):
    """Applying the same manifest again does not change the resource."""
    arguments = ("apply", "--filename", str(wrong.GOOD / "minimal.yaml"))
    assert "created" in api_server.kubectl(*arguments)
    again = api_server.kubectl(*arguments).splitlines()
    assert len(again) == len(KINDS)
    assert all(line.endswith(" unchanged") for line in again)


def test_kubectl_explains_scales_and_shows(api_server: Cluster, stored: dict[str, Any], resources: Resources):
    """`kubectl explain`, `scale` and `get` work with these kinds as with Kubernetes' own."""
    assert stored
    resources.write_status(wrong.good("everything")["StreamsApp"])
    assert "its offsets, topics" not in api_server.kubectl("explain", "streamsapp.spec.kafka.auth.type")
    assert "client certificate" in api_server.kubectl("explain", "streamsapp.spec.kafka.auth.type")
    api_server.kubectl("scale", "streamsapp/orders", "--replicas=4")
    header, row = api_server.kubectl("get", "sapp", "orders").splitlines()
    shown = dict(zip(header.split(), row.split(), strict=True))
    assert (shown["READY"], shown["STATE"]) == ("2/3", "RollingOut")
    resources.write_status(wrong.good("everything")["StreamsReset"])
    header, row = api_server.kubectl("get", "sreset", "orders-again").splitlines()
    assert dict(zip(header.split(), row.split(), strict=True))["PHASE"] == "Succeeded"
