"""How secrets reach pods."""

import copy
import re

import pytest
from tests.operator.children.apps import BOUND, FULL, full, program, revision_of, small

from millrace.manifest import StreamsApp, to_streams_config
from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.pod import pod_template


def projected(app):
    """Return the projected volume of the secrets."""
    (volume,) = (volume for volume in pod_template(app)["spec"]["volumes"] if volume["name"] == "secrets")
    return volume["projected"]


def files(app):
    """Return the files of the secrets: path to Secret and key."""
    sources = [source["secret"] for source in projected(app)["sources"]]
    return {item["path"]: (source["name"], item["key"]) for source in sources for item in source["items"]}


def with_auth(**auth):
    """Return the full spec with another kind of authentication."""
    spec = copy.deepcopy(FULL)
    spec["kafka"]["auth"] = auth
    return spec


SPECS = {
    "scram": FULL,
    "oauthbearer": with_auth(type="oauthbearer", secretRef={"name": "oauth"}),
    "plain": with_auth(type="plain", secretRef={"name": "login"}),
    "mtls": with_auth(type="mtls"),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_runtime_finds_every_file_named_in_its_settings(spec):
    """The files that the runtime's settings refer to are exactly those mounted for it, at the same paths."""
    app = revision_of(spec)
    resource = StreamsApp.model_validate({"metadata": {"name": app.name}, "spec": spec})
    settings = to_streams_config(resource, 0)
    (mount,) = (m for m in program(pod_template(app)["spec"])["volumeMounts"] if m["name"] == "secrets")
    text = "\n".join(str(value) for value in settings.values())
    told = {f"{folder}/{file}" for folder, file in re.findall(r"\$\{directory:([^:}]+):([^}]+)\}", text)}
    told |= {str(value) for key, value in settings.items() if key.endswith((".location", ".headers.file"))}
    there = {f"{mount['mountPath']}/{path}" for path in files(app)}
    assert told == there


def test_keys_are_renamed():
    """A Secret with different key names is projected under the expected names."""
    assert files(full())["auth/username"] == ("orders-login", "user")
    assert files(full())["tls-client/tls.crt"] == ("orders-cert", "user.crt")
    assert files(full())["tls-client/tls.key"] == ("orders-cert", "tls.key")


def test_missing_secret_keeps_the_pod_from_starting():
    """No Secret is optional, so that the pod's events name the one that is missing."""
    assert {source["secret"]["optional"] for source in projected(full())["sources"]} == {False}


def test_keys_of_which_either_may_be_there_do_not_keep_the_pod_from_starting():
    """Strimzi and cert-manager Secrets are projected with the keys they have; required keys stay required."""
    spec = with_auth(type="scram-sha-512", secretRef={"name": "orders-user"})
    spec["kafka"]["tls"] = {"clientCertSecretRef": {"name": "orders-cert"}}
    sources = [source["secret"] for source in projected(revision_of(spec))["sources"]]
    found = {(source["name"], source["optional"]): {item["path"] for item in source["items"]} for source in sources}
    assert found[("orders-user", False)] == {"auth/password"}
    assert found[("orders-user", True)] == {"auth/username", "auth/sasl.jaas.config"}
    pairs = {"tls-client/tls.crt", "tls-client/tls.key", "tls-client/user.crt", "tls-client/user.key"}
    assert found[("orders-cert", True)] == pairs


def test_every_key_that_a_binding_may_have_is_projected():
    """Nobody knows in advance which keys a Secret has: none is required, and each has its own path."""
    sources = [source["secret"] for source in projected(revision_of({**FULL, "kafka": BOUND}))["sources"]]
    (binding,) = (source for source in sources if source["name"] == "orders-kafka")
    assert binding["optional"]
    paths = [item["path"] for item in binding["items"]]
    assert {"binding/bootstrapServers", "binding/password", "binding/ssl.truststore.crt"} <= set(paths)
    assert len(set(paths)) == len(paths)


def test_secrets_are_for_the_programs_group_only():
    """Files are readable for owner and group, and for nobody else."""
    assert projected(full())["defaultMode"] == 0o440


def test_changes_arrive():
    """No mount of the operator's uses subPath, which would freeze a file."""
    assert not [mount for mount in program(pod_template(full())["spec"])["volumeMounts"] if "subPath" in mount]


def test_no_secrets_no_volume():
    """An application without secrets has no volume for them."""
    assert "secrets" not in {volume["name"] for volume in pod_template(small())["spec"]["volumes"]}


def test_plan_sees_no_secret():
    """The plan Job has neither the secrets named in the manifest nor any user volume that holds one."""
    spec = plan_job(full())["spec"]["template"]["spec"]
    assert "secret" not in {kind for volume in spec["volumes"] for kind in volume}
    assert "projected" not in {kind for volume in spec["volumes"] for kind in volume}
    names = {source["secret"]["name"] for source in projected(full())["sources"]} | {"licence", "shop-keys"}
    assert not [name for name in names if name in str(spec)]
