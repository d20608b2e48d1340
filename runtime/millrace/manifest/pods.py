"""`spec.podTemplate`: what a user may add to the pods that the operator builds.

It is a restricted set: the operator owns the program's container, its command, ports, probes and the parts of its security
context that the Restricted standard requires. Values of Kubernetes' own types are checked only as far as Millrace needs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from millrace.manifest.base_model import KubernetesModel, ManifestModel
from millrace.manifest.fields import (
    OBJECT_NAME_PATTERN,
    Annotations,
    Image,
    Labels,
    ObjectName,
    Quantity,
    SecretKey,
    atomic_list,
    cel_list,
    map_list,
    text,
)
from millrace.manifest.rules import Rule

APP_CONTAINER = "millrace"
"""The container that runs the program."""
OWN_VOLUMES = frozenset(
    {
        "app",
        "state",
        "tmp",
        "secrets",
        "auth",
        "tls-ca",
        "tls-client",
        "schema-registry",
        "otlp",
        "millrace-drain",
        "millrace-node",
    }
)
"""Volumes of the operator's; users' volumes must have other names."""
OWN_PATHS = ("/etc/millrace", "/var/lib/millrace")
"""Where the operator mounts them; users' volumes must be mounted elsewhere."""

_MEMBERS = "group members: "
_LONGEST_MESSAGE = 4096
"""In bytes: how much Kubernetes keeps of a termination message."""

ENV_NAME_PATTERN = "^[A-Za-z_][A-Za-z0-9_.-]*$"
_OWN_ENV_PREFIXES = ("POD_", "MILLRACE_")
_OWN_LABELS = ("streams.millrace.dev/", "app.kubernetes.io/")
_OWN_ANNOTATIONS = "streams.millrace.dev/"
_NAME_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IP_PATTERN = rf"^({_BYTE}([.]{_BYTE}){{3}}|[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f]*)$"
_SEARCH_PATTERN = r"^(\.|[a-z0-9_]([-a-z0-9_]*[a-z0-9])?(\.[a-z0-9_]([-a-z0-9_]*[a-z0-9])?)*\.?)$"
_ABSOLUTE_PATTERN = "^(/[^/:]+)+$"


def format_last_message(members: Collection[str], error: str = "") -> str:
    r"""Return the message that a program leaves in case it dies: its members of the consumer group, and why it failed.

    In a pod it is the container's termination message. As each container has its own, the members named in it are certainly dead
    once the container has ended, even if a new one has joined the group in their place.

    >>> format_last_message(["words-0-1-7d0f", "words-0-2-91ac"], "StreamsError: disk full")
    'group members: words-0-1-7d0f words-0-2-91ac\nStreamsError: disk full'
    """
    line = _MEMBERS
    for member in members:
        if len(line) + len(member) < _LONGEST_MESSAGE // 2:
            line += f"{member} "
    return "\n".join(filter(None, (line.strip(), error[: _LONGEST_MESSAGE // 4])))


def parse_last_message(message: str) -> tuple[frozenset[str], str]:
    """Return the members and the rest of a termination message, which may not be from `format_last_message`.

    >>> parse_last_message("Traceback (most recent call last): ...")
    (frozenset(), 'Traceback (most recent call last): ...')
    """
    if not message.startswith(_MEMBERS):
        return frozenset(), message
    line, _, rest = message.partition("\n")
    return frozenset(line.removeprefix(_MEMBERS).split()), rest


PodLabels = Annotated[
    Labels,
    Rule(
        lambda labels: not any(key.startswith(_OWN_LABELS) for key in labels),
        f"self.all(key, !{cel_list(_OWN_LABELS)}.exists(prefix, key.startsWith(prefix)))",
        f"must not have keys that begin with {' or '.join(_OWN_LABELS)}, which are the operator's",
    ),
]

PodAnnotations = Annotated[
    Annotations,
    Rule(
        lambda annotations: not any(key.startswith(_OWN_ANNOTATIONS) for key in annotations),
        f"self.all(key, !key.startsWith('{_OWN_ANNOTATIONS}'))",
        f"must not have keys that begin with {_OWN_ANNOTATIONS}, which are the operator's",
    ),
]


class PodMetadata(ManifestModel):
    """Labels and annotations of the pods."""

    labels: PodLabels = Field(default_factory=dict)
    """Labels in addition to the operator's."""
    annotations: PodAnnotations = Field(default_factory=dict)
    """Annotations."""


class Resources(ManifestModel):
    """Resources of the program's container. Restoring and large caches need memory beyond Python's own."""

    requests: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """What is reserved for it, for example `{cpu: 500m, memory: 1Gi}`."""
    limits: Annotated[dict[str, Quantity], Field(max_length=32)] = Field(default_factory=dict)
    """The most it may use."""


class ConfigMapKey(ManifestModel):
    """A key of a ConfigMap in the same namespace."""

    name: ObjectName
    """The ConfigMap's name."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """The key."""
    optional: bool = False
    """Whether a pod starts if it does not exist."""


class FieldOfPod(ManifestModel):
    """A field of the pod."""

    field_path: Annotated[str, Field(min_length=1, max_length=253)]
    """The path of the field, for example `status.podIP`."""
    api_version: Literal["v1"] = "v1"
    """The version of Kubernetes' API that the path refers to."""


class SecretKeyOf(ManifestModel):
    """A key of a Secret in the same namespace."""

    name: ObjectName
    """The Secret's name."""
    key: SecretKey
    """The key."""
    optional: bool = False
    """Whether a pod starts if it does not exist."""


class EnvSource(ManifestModel):
    """The source of a variable's value; exactly one."""

    config_map_key_ref: ConfigMapKey | None = None
    """A key of a ConfigMap."""
    secret_key_ref: SecretKeyOf | None = None
    """A key of a Secret. Variables do not change when the Secret does, but mounted files do: prefer a mount if the program
    can read files. The plan Job does not get the variable."""
    field_ref: FieldOfPod | None = None
    """A field of the pod."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda source: [source.config_map_key_ref, source.secret_key_ref, source.field_ref].count(None) == 2,
            "[has(self.configMapKeyRef), has(self.secretKeyRef), has(self.fieldRef)].filter(given, given).size() == 1",
            "must have exactly one of configMapKeyRef, secretKeyRef and fieldRef",
        ),
    )


EnvName = Annotated[
    str,
    *text(ENV_NAME_PATTERN, "must be the name of an environment variable", least=1, most=253),
    Rule(
        lambda name: not name.startswith(_OWN_ENV_PREFIXES),
        f"!{cel_list(_OWN_ENV_PREFIXES)}.exists(prefix, self.startsWith(prefix))",
        f"must not begin with {' or '.join(_OWN_ENV_PREFIXES)}, which are the operator's",
    ),
]


class EnvVariable(ManifestModel):
    """An environment variable of the program."""

    name: EnvName
    """Its name."""
    value: Annotated[str, Field(max_length=32_768)] | None = None
    """Its value, visible to everybody who may read pods. For secrets use `valueFrom.secretKeyRef`."""
    value_from: EnvSource | None = None
    """The source of its value, instead of `value`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda variable: variable.value is None or variable.value_from is None,
            "!has(self.value) || !has(self.valueFrom)",
            "value and valueFrom must not both be given",
        ),
    )


class WholeObject(ManifestModel):
    """All keys of a ConfigMap or Secret in the same namespace."""

    name: ObjectName
    """Its name."""
    optional: bool = False
    """Whether a pod starts if it does not exist."""


EnvPrefix = Annotated[
    str,
    *text(ENV_NAME_PATTERN, "must be the beginning of an environment variable's name", least=1, most=253),
    Rule(
        lambda prefix: not prefix.startswith(_OWN_ENV_PREFIXES),
        f"!{cel_list(_OWN_ENV_PREFIXES)}.exists(prefix, self.startsWith(prefix))",
        f"must not begin with {' or '.join(_OWN_ENV_PREFIXES)}, which are the operator's",
    ),
]


class EnvFrom(ManifestModel):
    """Variables for all keys of a ConfigMap or Secret; exactly one source."""

    prefix: EnvPrefix | None = None
    """A prefix for their names, before the key; none if not given."""
    config_map_ref: WholeObject | None = None
    """The ConfigMap."""
    secret_ref: WholeObject | None = None
    """The Secret. Variables do not change when it does, and the plan Job does not get them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda source: (source.config_map_ref is None) != (source.secret_ref is None),
            "has(self.configMapRef) != has(self.secretRef)",
            "must have exactly one of configMapRef and secretRef",
        ),
    )


Ip = Annotated[str, *text(_IP_PATTERN, "must be an IP address", most=45)]
HostName = Annotated[
    str,
    *text(
        OBJECT_NAME_PATTERN, "must be the name of a host: lower-case letters, digits, `-` and `.`", least=1, most=253
    ),
]
DnsName = Annotated[
    str,
    *text(_SEARCH_PATTERN, "must be a domain: lower-case letters, digits, `-`, `_` and `.`", least=1, most=255),
]


class HostAlias(ManifestModel):
    """Names for an address, in the pods' `/etc/hosts`."""

    ip: Ip
    """The address."""
    hostnames: Annotated[tuple[HostName, ...], *atomic_list(64, least=1)]
    """Its names."""


class DnsOption(ManifestModel):
    """An option of the resolver, such as `ndots`."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Its name."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Its value, for options that have one."""


class DnsConfig(ManifestModel):
    """How names are looked up, in addition to `dnsPolicy`."""

    nameservers: Annotated[tuple[Ip, ...], *atomic_list(3)] = ()
    """Addresses of name servers."""
    searches: Annotated[tuple[DnsName, ...], *atomic_list(32)] = ()
    """Domains in which short names are looked up."""
    options: Annotated[tuple[DnsOption, ...], *atomic_list(16)] = ()
    """Options of the resolver, for example `{name: ndots, value: "2"}`."""


class Toleration(ManifestModel):
    """A taint of nodes that the pods tolerate."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """The taint's key; every key if not given."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How key and value are compared."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; every effect if not given."""
    toleration_seconds: Annotated[int, Field(json_schema_extra={"format": "int64"})] | None = None
    """How long a taint with `NoExecute` is tolerated; for ever if not given."""


class TopologySpreadConstraint(KubernetesModel):
    """How pods are spread over nodes or zones; a Kubernetes TopologySpreadConstraint. Without a label selector
    it applies to the application's pods."""  # noqa: D205, D209 (the text is one in the CRD)

    max_skew: Annotated[int, Field(ge=1, json_schema_extra={"format": "int32"})]
    """By how many pods two domains may differ."""
    topology_key: Annotated[str, Field(min_length=1, max_length=317)]
    """The node label that defines the domains, for example `topology.kubernetes.io/zone`."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What happens to a pod that would violate the constraint."""


VolumeName = Annotated[
    str,
    *text(_NAME_PATTERN, "must consist of lower-case letters, digits and `-`", least=1, most=63),
    Rule(
        lambda name: name not in OWN_VOLUMES,
        f"!(self in {cel_list(sorted(OWN_VOLUMES))})",
        f"must not be one of the operator's volumes: {', '.join(sorted(OWN_VOLUMES))}",
    ),
]


class Volume(KubernetesModel):
    """A Kubernetes Volume, such as a Secret, a ConfigMap or an emptyDir."""

    name: VolumeName
    """Its name."""


MountPath = Annotated[
    str,
    *text(_ABSOLUTE_PATTERN, "must be an absolute path such as `/etc/words`", least=1, most=1024),
    Rule(
        lambda path: not any(f"{path}/".startswith(f"{own}/") for own in OWN_PATHS),
        f"!{cel_list(OWN_PATHS)}.exists(path, (self + '/').startsWith(path + '/'))",
        f"must not be in {' or '.join(OWN_PATHS)}, which are the operator's",
    ),
]


class VolumeMount(KubernetesModel):
    """A Kubernetes VolumeMount in the program's container."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """The volume's name."""
    mount_path: MountPath
    """Where it is mounted."""


ContainerName = Annotated[
    str,
    *text(_NAME_PATTERN, "must consist of lower-case letters, digits and `-`", least=1, most=63),
    Rule(
        lambda name: name != APP_CONTAINER,
        f"self != '{APP_CONTAINER}'",
        f"must not be `{APP_CONTAINER}`, which is the program's container",
    ),
]


class Container(KubernetesModel):
    """A Kubernetes Container in addition to the program's. Gaps in its security context are filled as Restricted requires."""

    name: ContainerName
    """Its name."""
    image: Image
    """Its image."""


class PodSecurity(ManifestModel):
    """Users and groups of the pods. The operator sets everything else that Restricted requires, such as running as non-root."""

    run_as_user: Annotated[int, Field(ge=1, json_schema_extra={"format": "int64"})] | None = None
    """The user that containers run as; 65532, as in Millrace's own images, if not given."""
    run_as_group: Annotated[int, Field(ge=1, json_schema_extra={"format": "int64"})] | None = None
    """The group that containers run as; 65532 if not given."""
    fs_group: Annotated[int, Field(ge=1, json_schema_extra={"format": "int64"})] | None = None
    """The group that owns the volumes; 65532 if not given."""
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    """When the ownership of a volume is set again."""
    supplemental_groups: Annotated[
        tuple[Annotated[int, Field(ge=1, json_schema_extra={"format": "int64"})], ...],
        *atomic_list(32),
    ] = ()
    """Further groups of the containers' users."""


class PodTemplate(ManifestModel):
    """Additions to the pods that the operator builds."""

    metadata: PodMetadata = PodMetadata()
    """Labels and annotations of the pods."""
    resources: Resources = Resources()
    """Resources of the program's container."""
    env: Annotated[tuple[EnvVariable, ...], *map_list(256)] = ()
    """Environment variables of the program."""
    env_from: Annotated[tuple[EnvFrom, ...], *atomic_list(64)] = ()
    """Environment variables for all keys of ConfigMaps and Secrets. Variables set by `env` or the operator
    take precedence."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels of the nodes that pods may run on."""
    tolerations: Annotated[tuple[Toleration, ...], *atomic_list(64)] = ()
    """Taints of nodes that the pods tolerate."""
    affinity: KubernetesModel | None = None
    """Where pods may and may not run, as a Kubernetes Affinity; replicas are spread over nodes if not given."""
    topology_spread_constraints: Annotated[tuple[TopologySpreadConstraint, ...], *atomic_list(16)] = ()
    """How pods are spread; over zones where possible if not given."""
    priority_class_name: ObjectName | None = None
    """The priority class of the pods."""
    runtime_class_name: ObjectName | None = None
    """The runtime class of the pods, such as a sandbox; the node's own if not given."""
    scheduler_name: ObjectName | None = None
    """The scheduler of the pods; Kubernetes' own if not given."""
    host_aliases: Annotated[tuple[HostAlias, ...], *map_list(64, "ip")] = ()
    """Names for addresses, in the pods' `/etc/hosts`."""
    dns_policy: Literal["ClusterFirst", "Default", "None"] | None = None
    """Where names are looked up: in the cluster first (`ClusterFirst`, if not given), as the node does (`Default`), or only as
    `dnsConfig` says (`None`)."""
    dns_config: DnsConfig | None = None
    """How names are looked up, in addition to `dnsPolicy`."""
    volumes: Annotated[tuple[Volume, ...], *map_list(64)] = ()
    """Further volumes of the pods."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], *map_list(64, "mountPath")] = ()
    """Where they are mounted in the program's container."""
    init_containers: Annotated[tuple[Container, ...], *map_list(16)] = ()
    """Containers that run before the program."""
    sidecars: Annotated[tuple[Container, ...], *map_list(16)] = ()
    """Containers that run alongside the program."""
    security_context: PodSecurity = PodSecurity()
    """Users and groups of the pods."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda template: (
                {mount.name for mount in template.volume_mounts} <= {item.name for item in template.volumes}
            ),
            "!has(self.volumeMounts) || self.volumeMounts.all(mount, "
            "has(self.volumes) && self.volumes.exists(volume, volume.name == mount.name))",
            "volumeMounts must name volumes that are among volumes",
        ),
        Rule(
            lambda template: (
                not {item.name for item in template.init_containers} & {item.name for item in template.sidecars}
            ),
            "!has(self.initContainers) || !has(self.sidecars) || "
            "!self.initContainers.exists(first, self.sidecars.exists(other, other.name == first.name))",
            "sidecars must not have the same names as initContainers",
        ),
        Rule(
            lambda template: (
                template.dns_policy != "None" or bool(template.dns_config and template.dns_config.nameservers)
            ),
            "!has(self.dnsPolicy) || self.dnsPolicy != 'None' || (has(self.dnsConfig) && "
            "has(self.dnsConfig.nameservers) && size(self.dnsConfig.nameservers) > 0)",
            "dnsConfig.nameservers must be given when dnsPolicy is None",
        ),
    )
