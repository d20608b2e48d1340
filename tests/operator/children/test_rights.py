"""What the chart lets the operator do is enough for the children."""

import re
from pathlib import Path

import yaml
from tests.operator.children.apps import FULL, SMALL, rendered, revision_of

RULES = Path(__file__).parents[3] / "charts/millrace-operator/templates/_rules.tpl"
VERBS = {"get", "list", "watch", "create", "patch", "delete"}


def rights():
    """Return the verbs by API group and resource."""
    text = RULES.read_text().split("{{- end }}")[0]
    rules = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "", text))
    return {
        (group, resource): set(rule["verbs"])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def resource_of(child):
    """Return the API group and resource of a child."""
    group, _, _version = child["apiVersion"].rpartition("/")
    kind = child["kind"].lower()
    return group, f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def test_operator_may_write_and_delete_every_child():
    """For each kind of child the chart's role has all verbs that observing, applying and deleting need."""
    kinds = {resource_of(child) for spec in (SMALL, FULL) for child in rendered(revision_of(spec), spec)}
    allowed = rights()
    assert ("apps", "statefulsets") in kinds
    assert {kind: VERBS - allowed.get(kind, set()) for kind in kinds} == {kind: set() for kind in kinds}
