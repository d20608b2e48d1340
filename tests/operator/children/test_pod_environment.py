"""The environment of the program."""

import pytest
from tests.operator.children.apps import full, program, small

from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.pod import pod_template


def variables(app):
    """Return the environment of the program by name."""
    listed = program(pod_template(app)["spec"])["env"]
    named = {variable["name"]: variable for variable in listed}
    assert len(named) == len(listed)
    return named


def attributes(app):
    """Return the resource attributes that telemetry carries."""
    return dict(pair.split("=") for pair in variables(app)["OTEL_RESOURCE_ATTRIBUTES"]["value"].split(","))


def test_telemetry_knows_where_it_comes_from():
    """Spans and metrics carry the application's id as the service, and the namespace, pod and node."""
    assert variables(small())["OTEL_SERVICE_NAME"]["value"] == "words-v1"
    found = attributes(small())
    assert found["k8s.namespace.name"] == "shop"
    assert found["k8s.pod.name"] == "$(POD_NAME)"


def test_instance_knows_which_pod_it_runs_in():
    """It gets the pod's unique uid, so its answers are not confused with those of a later pod with the same address."""
    assert variables(small())["POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"


def test_what_is_referred_to_comes_before():
    """A variable that refers to another comes after it, as Kubernetes requires."""
    names = list(variables(small()))
    assert names.index("POD_NAME") < names.index("OTEL_RESOURCE_ATTRIBUTES")
    assert names.index("POD_NODE_NAME") < names.index("OTEL_RESOURCE_ATTRIBUTES")


def test_users_attributes_are_added():
    """A user's resource attributes come after the operator's, so that the user's take precedence."""
    env = [{"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "team=orders,k8s.pod.name=mine"}]
    found = attributes(small(podTemplate={"env": env}))
    assert found["team"] == "orders"
    assert found["k8s.pod.name"] == "mine"
    assert found["k8s.namespace.name"] == "shop"


def test_user_may_name_the_service():
    """The user may change the service's name."""
    env = [{"name": "OTEL_SERVICE_NAME", "value": "shop-orders"}]
    assert variables(small(podTemplate={"env": env}))["OTEL_SERVICE_NAME"]["value"] == "shop-orders"


def test_nothing_is_exported_unless_wanted():
    """Without a collector in the spec no exporter is set up."""
    assert not {name for name in variables(small()) if "EXPORTER" in name or "SAMPLER" in name}


def test_collector_of_the_spec_wins_over_users_variable():
    """The collector in the spec takes precedence."""
    env = [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://elsewhere:4318"}]
    otlp = {"endpoint": "http://collector:4318"}
    found = variables(small(podTemplate={"env": env}, observability={"otlp": otlp}))
    assert found["OTEL_EXPORTER_OTLP_ENDPOINT"]["value"] == "http://collector:4318"
    assert found["OTEL_TRACES_SAMPLER"]["value"] == "parentbased_always_on"
    assert "OTEL_TRACES_SAMPLER_ARG" not in found


@pytest.mark.parametrize("ratio", [0, 0.1, 0.00001, 1])
def test_samplers_ratio_is_a_number(ratio):
    """The ratio reads back as it was written."""
    otlp = {"endpoint": "http://collector:4318", "sampler": {"type": "traceidratio", "ratio": float(ratio)}}
    assert float(variables(small(observability={"otlp": otlp}))["OTEL_TRACES_SAMPLER_ARG"]["value"]) == ratio


def test_no_secret_of_the_operators_is_in_the_environment():
    """A variable gets its value from a Secret only if the user says so, and never in the plan Job."""
    users = [item["name"] for item in variables(full()).values() if "secretKeyRef" in item.get("valueFrom", {})]
    assert users == ["LICENCE"]
    assert "secretKeyRef" not in str(plan_job(full()))
    assert "LICENCE" not in str(plan_job(full()))


def test_all_keys_of_config_maps_and_secrets_become_variables():
    """The program gets them as the user specified; the plan Job gets only those of ConfigMaps."""
    config_map, secret = full().spec.pod_template.env_from
    assert program(pod_template(full())["spec"])["envFrom"] == [
        {"prefix": config_map.prefix, "configMapRef": {"name": "shop", "optional": True}},
        {"secretRef": {"name": secret.secret_ref.name, "optional": False}},
    ]
    planning = program(plan_job(full())["spec"]["template"]["spec"])
    assert planning["envFrom"] == [{"prefix": "SHOP_", "configMapRef": {"name": "shop", "optional": True}}]
