"""Applications to build children for: a small one, and one that sets every field."""

from collections.abc import Mapping
from typing import Any

from millrace.manifest import StreamsAppSpec
from millrace.manifest.pods import APP_CONTAINER
from millrace_operator.children.auxiliary_objects import (
    disruption_budget,
    headless_service,
    pod_monitor,
    service_account,
)
from millrace_operator.children.config_maps import plan_config_map, revision_config_map
from millrace_operator.children.network_policy import network_policy, plan_network_policy
from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.stateful_set import stateful_set
from millrace_operator.model import AppRevision

SMALL: dict[str, Any] = {
    "applicationId": "words-v1",
    "image": "registry.example/words:1",
    "app": {"entrypoint": "words:topology"},
    "kafka": {"bootstrapServers": ["kafka:9092"]},
}

FULL: dict[str, Any] = {
    "applicationId": "orders-v1",
    "image": "registry.example/orders:7",
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "app": {"entrypoint": "orders:topology", "args": ["--fast"], "config": {"currency": "EUR"}},
    "state": "running",
    "restartNonce": 3,
    "replicas": 3,
    "threads": 2,
    "kafka": {
        "bootstrapServers": ["kafka:9093"],
        "groupProtocol": "classic",
        "tls": {
            "caSecretRef": {"name": "kafka-ca", "keys": {"ca.crt": "authority.pem"}},
            "clientCertSecretRef": {"name": "orders-cert", "keys": {"tls.crt": "user.crt"}},
        },
        "auth": {"type": "scram-sha-512", "secretRef": {"name": "orders-login", "keys": {"username": "user"}}},
        "config": {"linger.ms": 5},
        "schemaRegistry": {
            "url": "https://registry.example:8081",
            "secretRef": {"name": "registry-login", "keys": {"password": "pass"}},
        },
    },
    "processing": {
        "guarantee": "exactly_once_v2",
        "commitInterval": "200ms",
        "deadLetterTopic": "orders-failed",
        "errorPolicy": {"deserialization": "Continue", "processing": "Continue", "production": "handlers:Ours"},
    },
    "racks": {"nodeLabel": "example.com/row", "tags": {"hall": "example.com/hall"}},
    "standby": {"replicas": 1, "maxWarmups": 3, "acceptableRecoveryLag": 500, "catchUpTimeout": "2m"},
    "membership": {"static": True, "sessionTimeout": "60s"},
    "internalTopics": {
        "management": "Admin",
        "replicationFactor": 3,
        "minInsyncReplicas": 2,
        "config": {"segment.bytes": 1_000_000},
        "deletionPolicy": "Delete",
    },
    "storage": {
        "size": "10Gi",
        "storageClassName": "fast",
        "retention": {"whenDeleted": "Delete", "whenScaled": "Delete"},
        "memoryFraction": 0.5,
    },
    "handover": {"from": {"name": "old-orders", "group": False}, "allowForeignMembers": True},
    "upgrade": {
        "strategy": "Rolling",
        "topologyPolicy": "Warn",
        "gate": {"readyTimeout": "5m", "maxLag": 1000, "minStable": "20s"},
        "rollback": {"enabled": False},
    },
    "autoscaling": {
        "mode": "Auto",
        "min": 1,
        "max": 8,
        "targetCatchUp": "2m",
        "cooldown": {"rebalance": "1m", "scaleDown": "5m"},
    },
    "drain": {"terminationGracePeriodSeconds": 90},
    "podDisruptionBudget": {"enabled": True, "maxUnavailable": 2},
    "networkPolicy": {
        "enabled": True,
        "ingressFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 7070, "protocol": "TCP"}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 9093, "protocol": "TCP"}]}],
    },
    "serviceAccountName": "orders-identity",
    "podTemplate": {
        "metadata": {"labels": {"team": "orders"}, "annotations": {"example.com/owner": "orders"}},
        "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}, "limits": {"memory": "2048Mi", "cpu": 2}},
        "env": [
            {"name": "REGION", "value": "eu"},
            {"name": "EMPTY", "value": ""},
            {"name": "FEATURE", "valueFrom": {"configMapKeyRef": {"name": "features", "key": "orders"}}},
            {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "LICENCE", "valueFrom": {"secretKeyRef": {"name": "licence", "key": "text", "optional": True}}},
        ],
        "envFrom": [
            {"prefix": "SHOP_", "configMapRef": {"name": "shop", "optional": True}},
            {"secretRef": {"name": "shop-keys"}},
        ],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "dedicated", "value": "streams", "effect": "NoSchedule"}, {"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
                }
            }
        },
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "priorityClassName": "important",
        "runtimeClassName": "sandboxed",
        "schedulerName": "packing",
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["kafka-0.kafka", "kafka"]}],
        "dnsPolicy": "None",
        "dnsConfig": {
            "nameservers": ["10.0.0.10"],
            "searches": ["corp.example"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        },
        "volumes": [
            {"name": "tables", "configMap": {"name": "tables"}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "1024Mi"}},
            {"name": "model", "secret": {"secretName": "model"}},
            {
                "name": "bulk",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2048Mi"}}}
                    }
                },
            },
        ],
        "volumeMounts": [
            {"name": "tables", "mountPath": "/tables", "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp", "readOnly": False},
            {"name": "model", "mountPath": "/model", "readOnly": True},
            {"name": "bulk", "mountPath": "/bulk"},
        ],
        "initContainers": [{"name": "fetch", "image": "registry.example/fetch:1", "command": ["fetch"]}],
        "sidecars": [
            {
                "name": "proxy",
                "image": "registry.example/proxy:1",
                "resources": {"limits": {"cpu": "0.2", "memory": "64Mi"}},
                "ports": [{"containerPort": 9000}],
                "securityContext": {"readOnlyRootFilesystem": True},
            }
        ],
        "securityContext": {
            "runAsUser": 2000,
            "runAsGroup": 2001,
            "fsGroup": 2002,
            "fsGroupChangePolicy": "Always",
            "supplementalGroups": [3000],
        },
    },
    "observability": {
        "otlp": {
            "endpoint": "http://collector:4318",
            "headersSecretRef": {"name": "otlp", "keys": {"headers": "http-headers"}},
            "sampler": {"type": "parentbased_traceidratio", "ratio": 0.1},
        },
        "metrics": {
            "level": "DEBUG",
            "podMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
        },
        "logs": {"level": "DEBUG", "format": "json"},
    },
    "deletionPolicy": "Purge",
}

OAUTH: dict[str, Any] = {
    "bootstrapServers": ["kafka:9093"],
    "tls": {},
    "auth": {
        "type": "oauthbearer",
        "secretRef": {"name": "orders-login"},
        "scope": "kafka",
        "extensions": {"logicalCluster": "lkc-1"},
        "tokenEndpointCaSecretRef": {"name": "login-ca", "keys": {"ca.crt": "authority.pem"}},
    },
}
MSK: dict[str, Any] = {
    "bootstrapServers": ["b-1.shop.x1.c2.kafka.eu-central-1.amazonaws.com:9098"],
    "tls": {},
    "auth": {"type": "aws-msk-iam", "region": "eu-central-1"},
}
BOUND: dict[str, Any] = {"bindingSecretRef": {"name": "orders-kafka"}}
"""Ways of reaching brokers that exclude the full application's own."""


OPERATOR_NAMESPACE = "millrace"


def revision_of(spec: Mapping[str, Any], *, name: str = "orders", namespace: str = "shop") -> AppRevision:
    """Return a revision with a spec as a user writes it."""
    return AppRevision(namespace, name, "0123456789", StreamsAppSpec.model_validate(dict(spec)))


def small(**changes: Any) -> AppRevision:
    """Return the small application with some top-level fields changed."""
    return revision_of(SMALL | changes)


def full(**changes: Any) -> AppRevision:
    """Return the application that sets every field, with some top-level fields changed."""
    return revision_of(FULL | changes)


def rendered(app: AppRevision, spec: Mapping[str, Any], *, replicas: int = 3) -> list[dict[str, Any]]:
    """Return every object that an application may have."""
    objects = [
        service_account(app),
        network_policy(app, OPERATOR_NAMESPACE),
        plan_network_policy(app),
        revision_config_map(app, spec),
        plan_config_map(app, '{"version": 1}'),
        plan_job(app),
        headless_service(app),
        disruption_budget(app),
        pod_monitor(app),
        stateful_set(app, replicas),
    ]
    return [item for item in objects if item is not None]


def program(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container of a pod's spec that runs the user's program."""
    (container,) = (container for container in pod["containers"] if container["name"] == APP_CONTAINER)
    return container
