"""Alerts and dashboards, checked by Prometheus' promtool and against the metrics of a real operator and a real application."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.telemetry.test_prometheus import fetch, run

from e2e.cluster import tools
from e2e.test_refusals import BUDGET, World, world_in
from millrace.dev.kafka import EmbeddedKafka

__all__ = ["world_in"]

FILES: Final = Path(__file__).parents[1] / "charts/millrace-operator/files"
NAMESPACE: Final = "millrace"
TEXT: Final = (FILES / "alerts.yaml").read_text().replace("@NAMESPACE@", NAMESPACE).replace("@FOR@", "10m")
RULES: Final = {rule["alert"]: rule for rule in yaml.safe_load(TEXT)["rules"]}
SHOP: Final = {"namespace": "shop", "name": "orders"}
POD: Final = {"namespace": "shop", "pod": "orders-0", "client_id": "orders-v1-1"}
SCRAPED: Final = "scraped"
"""The namespace of the application that a real operator has reported."""
METRIC: Final = re.compile(r"\b(?:millrace_operator|millrace_app|org_apache_kafka)_\w+")


@dataclass(frozen=True)
class Case:
    """What triggers an alert, and what does not."""

    series: Mapping[str, str]
    """Series that trigger it, with their values from minute to minute."""
    quiet: Mapping[str, str]
    """Series that do not trigger it."""
    labels: Mapping[str, str]
    """The alert's labels, except its severity."""
    value: str = ""
    """What the alert's text says about the value."""
    at: str = "45m"


def own(name: str, **labels: str) -> str:
    """Return an operator series."""
    return series(f"millrace_operator_{name}", {"namespace": NAMESPACE, "pod": "operator-0", **labels})


def app(name: str, **labels: str) -> str:
    """Return a series about an application, as the operator exports it."""
    return series(f"millrace_app_{name}", {**SHOP, "pod": "operator-0", **labels})


def runtime(name: str) -> str:
    """Return a series that an application itself exports."""
    return series(f"org_apache_kafka_stream_{name}", POD)


def series(name: str, labels: Mapping[str, str]) -> str:
    """Return a series in Prometheus' notation."""
    return f"{name}{{{', '.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


def condition(kind: str, status: str, reason: str) -> str:
    """Return the series of a condition."""
    return app("condition", type=kind, status=status, reason=reason)


PATCH: Final = {"verb": "patch", "resource": "streamsapps/status"}
CASES: Final[dict[str, Case]] = {
    "MillraceOperatorDown": Case({}, {own("last_reconcile_age_seconds"): "0x60"}, {"namespace": NAMESPACE}),
    "MillraceOperatorStuck": Case(
        {own("last_reconcile_age_seconds"): "700x60"}, {own("last_reconcile_age_seconds"): "500x60"}, {}, "11m 40s"
    ),
    "MillraceOperatorBacklog": Case({own("queue_depth"): "60x60"}, {own("queue_depth"): "5x60"}, {}, "60"),
    "MillraceOperatorSlow": Case(
        {
            own("reconcile_seconds_bucket", le="30.0"): "0x60",
            own("reconcile_seconds_bucket", le="60.0"): "0+10x60",
            own("reconcile_seconds_bucket", le="+Inf"): "0+10x60",
        },
        {
            own("reconcile_seconds_bucket", le="30.0"): "0+10x60",
            own("reconcile_seconds_bucket", le="60.0"): "0+10x60",
            own("reconcile_seconds_bucket", le="+Inf"): "0+10x60",
        },
        {},
        "59.7s",
    ),
    "MillraceOperatorErrors": Case(
        {own("reconcile_seconds_count", result="stalled"): "0+1x60"},
        {own("reconcile_seconds_count", result="ok"): "0+9x60", own("reconcile_seconds_count", result="error"): "1x60"},
        {"result": "stalled"},
    ),
    "MillraceStatusNotWritten": Case(
        {own("api_requests_total", **PATCH, code="403"): "0+1x60"},
        {
            own("api_requests_total", **PATCH, code="409"): "0+1x60",
            own("api_requests_total", **PATCH, code="200"): "0+1x60",
        },
        {"resource": "streamsapps/status", "code": "403"},
    ),
    "MillraceOperatorWithoutLeader": Case({own("leader"): "0x60"}, {own("leader"): "1x60"}, {}),
    "MillraceAppFailed": Case(
        {app("lifecycle_state", state="Failed"): "1x60"},
        {app("lifecycle_state", state="Running"): "1x60"},
        {**SHOP, "state": "Failed"},
    ),
    "MillraceAppStalled": Case(
        {condition("Stalled", "True", "RefusedByApiServer"): "1x60"},
        {condition("Stalled", "False", "NotStalled"): "1x60"},
        {**SHOP, "reason": "RefusedByApiServer"},
    ),
    "MillraceAppNotReady": Case(
        {condition("Ready", "False", "PodsNotReady"): "1x60", app("desired_replicas"): "2x60"},
        {condition("Ready", "False", "NothingRuns"): "1x60", app("desired_replicas"): "0x60"},
        {**SHOP, "reason": "PodsNotReady"},
    ),
    "MillraceAppRolledBack": Case(
        {condition("RolledBack", "True", "PodCrashed"): "1x60"},
        {condition("RolledBack", "False", "NotRolledBack"): "1x60"},
        {**SHOP, "reason": "PodCrashed"},
    ),
    "MillraceAppBrokersUnreachable": Case(
        {condition("BrokersReachable", "False", "Unreachable"): "1x60"},
        {condition("BrokersReachable", "Unknown", "NotAsked"): "1x60"},
        {**SHOP, "reason": "Unreachable"},
    ),
    "MillraceAppLagGrows": Case(
        {app("lag_records"): "0+1000x120"},
        {app("lag_records"): "90000-500x120"},
        SHOP,
        "90k",
        "90m",
    ),
    "MillraceThreadsFailed": Case(
        {runtime("failed_stream_threads"): "1x60"}, {runtime("failed_stream_threads"): "0x60"}, POD
    ),
    "MillraceRestoringLong": Case(
        {runtime("state_updater_active_restoring_tasks"): "1x120"},
        {runtime("state_updater_active_restoring_tasks"): "0x120"},
        POD,
        at="90m",
    ),
    "MillraceRecordsDropped": Case(
        {runtime("task_dropped_records_total"): "0+5x60"}, {runtime("task_dropped_records_total"): "5x60"}, POD
    ),
}


def promtool(*arguments: str) -> tuple[int, str]:
    """Run promtool, and return its exit status and output."""
    found = subprocess.run(
        [str(tools.path("promtool")), *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    return found.returncode, found.stdout + found.stderr


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Return the file with the chart's rules."""
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "millrace", "rules": list(RULES.values())}]}))
    return path


@pytest.mark.thorough
def test_rules_are_valid(rules: Path) -> None:
    """Prometheus accepts the rules without a warning."""
    status, text = promtool("check", "rules", "--lint=all", "--lint-fatal", str(rules))
    assert status == 0, text


def test_every_alert_has_a_case() -> None:
    """Every alert has a test case."""
    assert CASES.keys() == RULES.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_alert(rules: Path, tmp_path: Path, name: str) -> None:
    """It fires when it should, names the application or pod, and is silent otherwise."""
    case, rule = CASES[name], RULES[name]
    labels = {**case.labels, "severity": rule["labels"]["severity"]}
    raised = {
        "exp_labels": labels,
        "exp_annotations": {key: _filled(text, labels, case.value) for key, text in rule["annotations"].items()},
    }
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": item, "values": values} for item, values in given.items()],
            "alert_rule_test": [{"eval_time": case.at, "alertname": name, "exp_alerts": expected}],
        }
        for given, expected in ((case.series, [raised]), (case.quiet, []))
    ]
    path = tmp_path / "tests.json"
    path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    status, text = promtool("test", "rules", str(path))
    assert status == 0, text


def _filled(text: str, labels: Mapping[str, str], value: str) -> str:
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)
    return re.sub(r"\{\{ \$value[^}]*\}\}", value, text)


def test_alerts_about_applications_name_them() -> None:
    """An alert about an application says which application, and in which namespace."""
    for name, rule in RULES.items():
        if name.startswith("MillraceApp"):
            assert "{{ $labels.namespace }}/{{ $labels.name }}" in rule["annotations"]["summary"], name


def _expressions() -> Iterator[tuple[str, str]]:
    """Yield all expressions of alerts and dashboards, by location."""
    for name, rule in RULES.items():
        yield name, rule["expr"]
    for path in sorted((FILES / "dashboards").glob("*.json")):
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}, {panel['id']}{target['refId']}", target["expr"]


def _samples(page: str, scraped: Mapping[str, str]) -> dict[str, tuple[str, dict[str, str], float]]:
    """Return the samples of a page, with the labels that Prometheus adds."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = {**scraped, **sample.labels}
            found[series(sample.name, labels)] = (sample.name, labels, sample.value)
    return found


@pytest.mark.thorough
def test_expressions_use_exported_metrics(world_in: Callable[[str], World], tmp_path: Path) -> None:
    """Every metric and label in alerts and dashboards appears in a scrape of a real operator or a real application.

    So every panel shows something: none has an expression that never matches a series.
    """
    pages: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kafka-") as folder, EmbeddedKafka() as kafka:
        run(kafka, Path(folder), lambda address: pages.append(fetch(address)[2]), **{"health.metrics": True})
    world = world_in(SCRAPED)
    world.forbid("policy", "poddisruptionbudgets", BUDGET)  # so that there are refused requests to show
    with world.operator() as operator:
        world.apply(replicas=2, autoscaling={"mode": "Recommend", "max": 3})
        world.wait("the application", lambda: world.conditions().get("Ready") == "True", operator)
        pages.append(operator.get("/metrics"))
    found = _samples(pages[0], POD) | _samples(pages[1], {"namespace": NAMESPACE, "pod": "operator-0"})
    known: dict[str, set[str]] = {}
    for name, labels, _ in found.values():
        known.setdefault(name, set()).update(labels)
    for place, expression in _expressions():
        names = METRIC.findall(expression)
        assert names, place
        assert [name for name in names if name not in known] == [], place
        for name, braces in re.findall(rf"({METRIC.pattern})\{{([^}}]*)\}}", expression):
            assert {*re.findall(r"(\w+)[=!]~?\"", braces)} <= known[name], place
        groups = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
        wanted = {label.strip() for group in groups for label in group.split(",")}
        assert wanted <= set.union(*(known[name] for name in names)), place
    panels = {place: _of_scrape(expression) for place, expression in _expressions() if ": " in place}
    assert _without_answer(tmp_path, panels, found) == []


def _of_scrape(expression: str) -> str:
    """Return a panel's expression with the dashboard's variables filled in."""
    prefixes = {"millrace_operator_": NAMESPACE, "millrace_app_": SCRAPED}
    namespace = next((found for prefix, found in prefixes.items() if prefix in expression), POD["namespace"])
    filled = expression.replace("$namespace", namespace).replace("$client", ".*").replace("$__rate_interval", "5m")
    return re.sub(r"client_id=~\"\.\*\"", 'client_id=~".*"', filled)


def _without_answer(
    tmp_path: Path, panels: Mapping[str, str], found: Mapping[str, tuple[str, Any, float]]
) -> list[str]:
    """Return the panels whose expression returns nothing for these samples.

    promtool prints the result of an expression if it differs from what a test expects; here tests expect nothing.
    """
    given = [{"series": item, "values": f"{value}x10"} for item, (_, _, value) in found.items()]
    asked = [{"expr": item, "eval_time": "10m", "exp_samples": []} for item in panels.values()]
    path = tmp_path / "panels.json"
    tests = [{"interval": "1m", "input_series": given, "promql_expr_test": asked}]
    path.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": tests}))
    _, text = promtool("test", "rules", str(path))
    answers = {
        json.loads(f'"{match[1]}"') for match in re.finditer(r'expr: "((?:[^"\\]|\\.)*)", time: \S+\s+exp: ', text)
    }
    assert answers, text[-2000:]
    return [place for place, item in panels.items() if item not in answers]
