"""The chart's rights are enough to manage the children."""

import re
from pathlib import Path

import yaml
from tests.operator.children.apps import FULL, SMALL, rendered, revision_of

from millrace_operator.cluster.kinds import CHILDREN, KINDS, POD_MONITORS

RULES = Path(__file__).parents[3] / "charts/millrace-operator/templates/_rules.tpl"
VERBS = {"list", "create", "patch", "delete"}


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


def children():
    """Return children of every kind."""
    return [child for spec in (SMALL, FULL) for child in rendered(revision_of(spec), spec)]


def test_every_child_is_observed():
    """All objects that are built have a kind and version that the operator lists."""
    observed = {(kind.api_version, kind.kind) for kind in (*CHILDREN, POD_MONITORS)}
    assert {(child["apiVersion"], child["kind"]) for child in children()} <= observed


def test_operator_may_write_and_delete_every_child():
    """For each kind of child the chart's role has all verbs needed to observe, apply and delete it."""
    allowed = rights()
    kinds = {KINDS[child["kind"]] for child in children()}
    missing = {kind.plural: VERBS - allowed.get((kind.group, kind.plural), set()) for kind in kinds}
    assert {plural: verbs for plural, verbs in missing.items() if verbs} == {}
