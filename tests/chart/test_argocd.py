"""Argo CD's health checks, run in a real Lua on their test data, which are manifests that the models accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lupa.lua51
import pytest
import yaml

from millrace.manifest import StreamsApp, StreamsBackfill, StreamsReset
from millrace_operator.reconcile.condition_reason import ConditionReason

CHECKS = Path(__file__).parents[2] / "charts/argocd/resource_customizations/streams.millrace.dev"
MODELS = {"StreamsApp": StreamsApp, "StreamsReset": StreamsReset, "StreamsBackfill": StreamsBackfill}
CASES = [
    pytest.param(kind, case["inputPath"], case["healthStatus"], id=f"{kind}-{Path(case['inputPath']).stem}")
    for kind in MODELS
    for case in yaml.safe_load((CHECKS / kind / "health_test.yaml").read_text())["tests"]
]


def _health(kind: str, resource: dict[str, Any]) -> dict[str, str]:
    lua = lupa.lua51.LuaRuntime(unpack_returned_tuples=True)  # Argo CD also uses Lua 5.1
    lua.globals().obj = lua.table_from(resource, recursive=True)
    return dict(lua.execute((CHECKS / kind / "health.lua").read_text()))


@pytest.mark.parametrize(("kind", "path", "expected"), CASES)
def test_health(kind: str, path: str, expected: dict[str, str]) -> None:
    """The script answers each resource in the test data as in `health_test.yaml`, including the message."""
    assert _health(kind, yaml.safe_load((CHECKS / kind / path).read_text())) == expected


@pytest.mark.parametrize(("kind", "path", "expected"), CASES)
def test_test_data_are_real(kind: str, path: str, expected: dict[str, str]) -> None:
    """The API server could return the test data: a misspelt field or condition would test nothing."""
    resource = yaml.safe_load((CHECKS / kind / path).read_text())
    MODELS[kind].model_validate(resource)
    for condition in resource.get("status", {}).get("conditions", []):
        assert ConditionReason(condition["reason"]).condition == condition["type"]


def test_all_test_data_are_used() -> None:
    """Every file in the test data is used by an expectation."""
    listed = {(CHECKS / case.values[0] / case.values[1]) for case in CASES}
    assert {*CHECKS.glob("*/testdata/*.yaml")} == listed


@pytest.mark.parametrize("kind", MODELS)
def test_status_without_conditions_is_progress(kind: str) -> None:
    """An empty status at the start does not make the script fail: the resource is in progress."""
    assert _health(kind, {"metadata": {"generation": 1}, "status": {}})["status"] == "Progressing"
