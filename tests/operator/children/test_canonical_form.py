"""Kubernetes objects in a user's spec, in the form in which the API server stores them."""

import pytest

from millrace.manifest.pods import Container, Volume
from millrace_operator.children.canonical_form import canonical


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"emptyDir": {}}, {"emptyDir": {}}),
        ({"emptyDir": {"sizeLimit": "1024Mi", "medium": ""}}, {"emptyDir": {"sizeLimit": "1Gi"}}),
        ({"configMap": {"name": "c", "items": [], "optional": False}}, {"configMap": {"name": "c", "optional": False}}),
        (
            {"csi": {"driver": "d", "volumeAttributes": {"a": "", "readOnly": "x"}, "readOnly": False}},
            {"csi": {"driver": "d", "volumeAttributes": {"a": "", "readOnly": "x"}}},
        ),
        ({"emptyDir": {"sizeLimit": "much"}}, {"emptyDir": {"sizeLimit": "much"}}),
        (
            {"ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {}}, "spec": {"storageClassName": ""}}}},
            {"ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {"storageClassName": ""}}}},
        ),
    ],
    ids=str,
)
def test_volumes(written, kept):
    """Empty strings and lists are dropped, intentionally empty values stay, and quantities get their shortest form."""
    assert canonical(Volume.model_validate({"name": "v", **written})) == {"name": "v", **kept}


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"env": None, "args": []}, {}),
        ({"tty": False, "stdin": True}, {"stdin": True}),
        ({"securityContext": {}}, {}),
        ({"securityContext": {"privileged": False}}, {"securityContext": {"privileged": False}}),
        ({"resources": {"limits": {"cpu": 0.5}, "requests": {}}}, {"resources": {"limits": {"cpu": "500m"}}}),
        ({"env": [{"name": "A", "value": ""}]}, {"env": [{"name": "A"}]}),
        ({"ports": [{"containerPort": 1, "hostPort": 0}]}, {"ports": [{"containerPort": 1}]}),
        ({"resources": {"limits": {"cpu": "lots"}}}, {"resources": {"limits": {"cpu": "lots"}}}),
        ({"readinessProbe": {"initialDelaySeconds": 0, "periodSeconds": 1}}, {"readinessProbe": {"periodSeconds": 1}}),
    ],
    ids=str,
)
def test_containers(written, kept):
    """Nulls are dropped, as are values that mean the same as absent ones; others stay."""
    assert canonical(Container.model_validate({"name": "c", "image": "i", **written})) == {
        "name": "c",
        "image": "i",
        **kept,
    }
