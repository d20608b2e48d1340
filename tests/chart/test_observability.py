"""Alerts and dashboards use metrics that exist, and the chart uses settings that the operator knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace.telemetry.metrics import mapping_rows
from millrace_operator.app.metrics import OperatorMetrics
from millrace_operator.app.settings import settings_from

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts/millrace-operator/files"
ALERTS = yaml.safe_load((FILES / "alerts.yaml").read_text())["rules"]
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
METRIC = re.compile(r"\b(?:millrace_operator|millrace_app|org_apache_kafka)_\w+")
APP: dict[str, Any] = {
    "metadata": {"namespace": "shop", "name": "orders", "generation": 1},
    "status": {
        "lifecycleState": "Running",
        "replicas": 1,
        "desiredReplicas": 1,
        "readyReplicas": 1,
        "autoscaling": {"recommended": 1},
        "lag": {"total": 0},
        "tasks": {"restoring": 0},
        "restoration": {"remainingRecords": 0},
        "conditions": [{"type": "Ready", "status": "True", "reason": "AllTasksRun"}],
    },
}


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Every series by its name in Prometheus, with its labels; the labels of the scrape are added."""
    metrics = OperatorMetrics()
    metrics.watch(depth=lambda: 0, leads=lambda: True, apps=lambda: [APP])
    metrics.request("get", "pods", "200", 0.1)
    metrics.event("pods")
    metrics.passed("ok", 0.1)
    series: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    of_runtime = {name.replace(".", "_"): {"client_id", "thread_id", "task_id"} for _, _, name, _, _ in mapping_rows()}
    return {name: labels | {"namespace", "pod"} for name, labels in {**series, **of_runtime}.items()}


def _expressions() -> Iterator[Any]:
    for rule in ALERTS:
        yield pytest.param(rule["expr"], id=rule["alert"])
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield pytest.param(target["expr"], id=f"{path.stem}: {panel['title']}")
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                yield pytest.param(variable["query"], id=f"{path.stem}: ${variable['name']}")


@pytest.mark.parametrize("expression", list(_expressions()))
def test_expression_uses_existing_metrics(expression: str, known: dict[str, set[str]]) -> None:
    """Every metric has a name, and labels to filter or group by, that the code really uses."""
    names = METRIC.findall(expression)
    assert names
    assert [name for name in names if name not in known] == []
    for name, braces in re.findall(rf"({METRIC.pattern})\{{([^}}]*)\}}", expression):
        assert {*re.findall(r"(\w+)[=!]~?", braces)} <= known[name]
    groups = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
    labels = {label.strip() for group in groups for label in group.split(",")}
    assert labels - {"le"} <= set.union(*(known[name] for name in names))


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    """Each dashboard has a unique id, and panels with titles and targets that do not overlap."""
    dashboards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len({dashboard["uid"] for dashboard in dashboards}) == len(dashboards) == 2
    for dashboard in dashboards:
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            assert panel["title"]
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken
            assert all(x < 24 for x, _ in cells)
            taken |= cells


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    """An alert has a severity, a summary and a description, and the operations guide has its remedy."""
    guide = (ROOT / "docs/operations.md").read_text()
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert {*rule["annotations"]} == {"summary", "description"}
        assert f"`{rule['alert']}`" in guide


@pytest.mark.parametrize("overlay", ["cluster-wide", "namespaced"])
def test_operator_understands_its_environment(overlay: str) -> None:
    """The operator rejects unknown variables, and accepts those that the chart sets, with their values."""
    objects = yaml.safe_load_all((ROOT / f"charts/kustomize/{overlay}/operator.yaml").read_text())
    (deployment,) = [item for item in objects if item["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    pod = {"metadata.name": "millrace-operator-5d9c-x2x", "metadata.namespace": "millrace"}
    values = {
        variable["name"]: variable.get("value", "")
        or pod.get(variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath"), "")
        for variable in container["env"]
    }
    settings = settings_from(values)
    assert settings.namespaces == (("millrace",) if overlay == "namespaced" else ())
    assert (settings.pod_name, settings.pod_namespace) == ("millrace-operator-5d9c-x2x", "millrace")
    assert settings.metrics_port == container["ports"][0]["containerPort"]
    assert settings.lease_name == deployment["metadata"]["name"]
