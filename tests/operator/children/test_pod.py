"""The pod template."""

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
import yaml
from tests.operator.children.apps import FULL, full, program, revision_of, small

from millrace.manifest.pods import APP_CONTAINER, OWN_PATHS, OWN_VOLUMES
from millrace_operator.children.auxiliary_objects import headless_service
from millrace_operator.children.naming import HTTP_PORT
from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.pod import pod_template


def spec_of(app):
    """Return the spec of an application's pods."""
    return pod_template(app)["spec"]


def variables(app):
    """Return the environment of the program by name."""
    return {variable["name"]: variable for variable in program(spec_of(app))["env"]}


def arguments(app):
    """Return the options of the program's command line with their values."""
    args = program(spec_of(app))["args"]
    return dict(itertools.pairwise(args))


def test_program_gets_its_replica_number():
    """The command names the replica by the pod's index, which Kubernetes sets as a label."""
    assert arguments(small())["--replica"] == "$(POD_INDEX)"
    index = variables(small())["POD_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.labels['apps.kubernetes.io/pod-index']"


def test_pods_say_whose_they_are_to_the_brokers():
    """Client and instance id contain part of the StreamsApp's uid: a pod of another cluster may have the same name."""
    uid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    args = program(spec_of(dataclasses.replace(small(), uid=uid)))["args"]
    assert {"client.id=$(POD_NAME).1b4e28ba", "group.instance.id=$(POD_NAME).1b4e28ba"} <= set(args)
    dynamic = program(spec_of(dataclasses.replace(small(membership={"static": False}), uid=uid)))["args"]
    assert not any("group.instance.id" in argument for argument in dynamic)


def test_program_finds_what_its_command_names():
    """Manifest, state and secrets are mounted where the command line says they are."""
    mounts = {mount["mountPath"]: mount["name"] for mount in program(spec_of(full()))["volumeMounts"]}
    options = arguments(full())
    assert mounts[options["-f"].rpartition("/")[0]] == "app"
    assert mounts[options["--state-dir"]] == "state"
    assert mounts[options["--secrets-dir"]] == "secrets"


def test_annotation_that_drains_a_pod_is_a_file_in_it():
    """The file's path is in a variable, which an image with an older Millrace ignores; it would reject an option."""
    spec = spec_of(small())
    file = variables(small())["MILLRACE_DRAIN_FILE"]["value"]
    (volume,) = (volume for volume in spec["volumes"] if "downwardAPI" in volume)
    (item,) = volume["downwardAPI"]["items"]
    assert item["fieldRef"]["fieldPath"] == "metadata.annotations['streams.millrace.dev/drain']"
    (mount,) = (mount for mount in program(spec)["volumeMounts"] if mount["name"] == volume["name"])
    assert (f"{mount['mountPath']}/{item['path']}", mount["readOnly"], "subPath" in mount) == (file, True, False)
    assert [argument for argument in program(spec)["args"] if "drain" in argument] == []


def test_every_mount_has_its_volume():
    """A mount names a volume of the pod or the claim template's."""
    for app in (small(), full()):
        spec = spec_of(app)
        volumes = {volume["name"] for volume in spec["volumes"]} | {"state"}
        assert {mount["name"] for mount in program(spec)["volumeMounts"]} <= volumes


def test_operators_volumes_are_those_that_manifests_may_not_use():
    """The manifest reserves all volumes that the operator uses, so the user's can never collide with them."""
    mine = spec_of(full(podTemplate={}))
    assert {volume["name"] for volume in mine["volumes"]} | {"state"} <= OWN_VOLUMES
    paths = {mount["mountPath"] for mount in program(mine)["volumeMounts"]} - {"/tmp"}
    assert all(path.startswith(OWN_PATHS) for path in paths)
    assert program(mine)["name"] == APP_CONTAINER


def test_users_folder_takes_the_place_of_tmp():
    """A user's volume at /tmp replaces the operator's."""
    paths = [mount["mountPath"] for mount in program(spec_of(full()))["volumeMounts"]]
    assert paths.count("/tmp") == 1
    (mount,) = (mount for mount in program(spec_of(full()))["volumeMounts"] if mount["mountPath"] == "/tmp")
    assert mount["name"] == "scratch"


@pytest.mark.parametrize(
    ("probe", "path"), [("startupProbe", "/startedz"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
)
def test_probes_ask_the_port_that_is_served(probe, path):
    """Each probe has its own path on the port that the command line opens."""
    container = program(spec_of(small()))
    request = container[probe]["httpGet"]
    (port,) = container["ports"]
    assert request["path"] == path
    assert request["port"] == port["name"]
    assert arguments(small())["--http"] == f":{port['containerPort']}"


def test_starting_may_take_minutes():
    """A starting pod is not restarted until brokers have been down for five minutes."""
    probe = program(spec_of(small()))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 300


def test_service_finds_pods_before_they_are_ready():
    """The headless Service selects the pods, names their port, and publishes those that are restoring."""
    service = headless_service(small())["spec"]
    pod_labels = pod_template(small())["metadata"]["labels"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["selector"].items() <= pod_labels.items()
    (port,) = service["ports"]
    assert port["port"] == HTTP_PORT
    assert port["targetPort"] in {port["name"] for port in program(spec_of(small()))["ports"]}


def test_revision_is_in_the_template():
    """Each revision has its own template, which names its ConfigMap and its label."""
    one = small()
    other = type(one)(one.namespace, one.name, "abcdef0123", one.spec)
    assert pod_template(one) != pod_template(other)
    (volume,) = (volume for volume in spec_of(other)["volumes"] if volume["name"] == "app")
    assert volume["configMap"]["name"].endswith("abcdef0123")


def test_replicas_are_kept_apart_by_default():
    """Different nodes and zones are preferred, and no pod waits for that."""
    spec = spec_of(small())
    assert spec["affinity"]["podAntiAffinity"].keys() == {"preferredDuringSchedulingIgnoredDuringExecution"}
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert constraint["labelSelector"]["matchLabels"].items() <= pod_template(small())["metadata"]["labels"].items()


def test_users_affinity_and_spread_replace_the_defaults():
    """A user's affinity and constraints are kept as they are; a constraint without a selector gets the application's pods."""
    wanted = FULL["podTemplate"]
    spec = spec_of(full())
    assert spec["affinity"] == wanted["affinity"]
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint.items() >= wanted["topologySpreadConstraints"][0].items()
    assert constraint["labelSelector"] == spec_of(small())["topologySpreadConstraints"][0]["labelSelector"]


def test_sandbox_scheduler_and_names_are_the_users():
    """Fields about where pods run apply to the plan Job too; DNS fields do not, as it talks to nobody."""
    pods, planning = pod_template(full())["spec"], plan_job(full())["spec"]["template"]["spec"]
    for spec in (pods, planning):
        assert (spec["runtimeClassName"], spec["schedulerName"]) == ("sandboxed", "packing")
    assert pods["dnsPolicy"] == "None"
    assert pods["dnsConfig"]["options"] == [{"name": "ndots", "value": "2"}, {"name": "edns0"}]
    assert pods["hostAliases"] == [{"ip": "10.0.0.7", "hostnames": ["kafka-0.kafka", "kafka"]}]
    assert not {"dnsPolicy", "dnsConfig", "hostAliases"} & planning.keys()


def test_a_constraints_own_selector_is_kept():
    """A constraint with its own selector keeps it."""
    selector = {"matchLabels": {"team": "orders"}}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "rack",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": selector,
    }
    spec = spec_of(small(podTemplate={"topologySpreadConstraints": [constraint]}))
    assert spec["topologySpreadConstraints"][0]["labelSelector"] == selector


def test_users_labels_and_annotations_are_added():
    """A user's labels and annotations are added to the operator's."""
    metadata = pod_template(full())["metadata"]
    assert metadata["labels"]["team"] == "orders"
    assert metadata["labels"]["streams.millrace.dev/app"] == "orders"
    assert metadata["annotations"]["example.com/owner"] == "orders"


def test_sidecars_and_init_containers_are_added():
    """A user's containers run alongside and before the program, which stays the first."""
    spec = spec_of(full())
    assert [container["name"] for container in spec["containers"]] == [APP_CONTAINER, "proxy"]
    assert [container["name"] for container in spec["initContainers"]] == ["fetch"]


def test_no_preset_is_written_when_a_user_wants_nothing():
    """For the small application there is no empty map, empty list, null or empty string anywhere in the template."""

    def empties(value, path=""):
        if value in ("", [], None) or (value == {} and not path.endswith("emptyDir")):
            yield path
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from empties(item, f"{path}.{key}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from empties(item, f"{path}[{index}]")

    assert list(empties(pod_template(small()))) == []
    assert list(empties(pod_template(full()))) == []


def test_same_revision_same_template():
    """Building twice gives the same result, including the order of keys."""
    assert str(pod_template(full())) == str(pod_template(revision_of(FULL)))


def test_probes_are_those_that_the_documentation_recommends():
    """The pod in docs/operations.md has the operator's probes."""
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    (block,) = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "startupProbe:" in block)
    container = program(spec_of(small()))
    for probe, documented in yaml.safe_load(block).items():
        request = {**documented.pop("httpGet")}
        assert request == {"path": container[probe]["httpGet"]["path"], "port": HTTP_PORT}
        assert documented.items() <= container[probe].items()
