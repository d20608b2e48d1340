"""Reading objects as `kubectl get --output=json` does, without a process for each: tests that wait do it all the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from e2e.cluster.errors import ClusterError

Manifest = dict[str, Any]

_PATHS: Final[Mapping[str, str]] = {
    "configmap": "api/v1",
    "event": "api/v1",
    "node": "api/v1",
    "persistentvolumeclaim": "api/v1",
    "pod": "api/v1",
    "resourcequota": "api/v1",
    "service": "api/v1",
    "serviceaccount": "api/v1",
    "statefulset": "apis/apps/v1",
    "job": "apis/batch/v1",
    "lease": "apis/coordination.k8s.io/v1",
    "networkpolicy": "apis/networking.k8s.io/v1",
    "poddisruptionbudget": "apis/policy/v1",
    "streamsapp": "apis/streams.millrace.dev/v1alpha1",
    "streamsbackfill": "apis/streams.millrace.dev/v1alpha1",
    "streamsreset": "apis/streams.millrace.dev/v1alpha1",
    "sparkapplication": "apis/sparkoperator.k8s.io/v1beta2",
}
"""The kinds that tests read, and where the API server has them."""
_CLUSTER_SCOPED: Final = {"node"}
_TIMEOUT_S: Final = 120.0


def get(client: ApiClient, kind: str, namespace: str, name: str) -> Manifest | None:
    """Return an object, or None if there is none.

    Args:
        client: The API server.
        kind: Its kind as kubectl takes it, in the singular or plural: `pods`.
        namespace: Its namespace, unless it is in none.
        name: Its name.

    Raises:
        ClusterError: The API server does not answer, or refuses.
    """
    text = _get(client, f"{_path(kind, namespace)}/{name}")
    return None if text is None else json.loads(text)


def find(client: ApiClient, kinds: str, namespace: str, **selectors: str) -> list[Manifest]:
    """Return the objects of one or more kinds.

    Args:
        client: The API server.
        kinds: Their kinds as kubectl takes them: `statefulset,pods`.
        namespace: Their namespace.
        selectors: `labelSelector` and `fieldSelector`.

    Raises:
        ClusterError: The API server does not answer, refuses, or does not know a kind.
    """
    found = []
    for kind in kinds.split(","):
        text = _get(client, _path(kind, namespace), **selectors)
        if text is None:
            raise ClusterError(f"The API server has no {kind}")
        listed = json.loads(text)
        of_kind = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
        found += [{**of_kind, **item} for item in listed["items"]]
    return found


def get_raw(client: ApiClient, path: str) -> str:
    """Return what a path has, as `kubectl get --raw` does.

    Raises:
        ClusterError: The API server does not answer, or refuses.
    """
    text = _get(client, path)
    if text is None:
        raise ClusterError(f"GET {path} failed: it is not there")
    return text


def _path(kind: str, namespace: str) -> str:
    name = "persistentvolumeclaim" if kind == "pvc" else kind
    singular = name if name in _PATHS else name.removesuffix("s")
    plural = "networkpolicies" if singular == "networkpolicy" else f"{singular}s"
    scope = "" if singular in _CLUSTER_SCOPED else f"/namespaces/{namespace}"
    return f"/{_PATHS[singular]}{scope}/{plural}"


def _get(client: ApiClient, path: str, **query: str) -> str | None:
    url = f"{client.configuration.host}{path}?{urlencode(query)}"
    try:
        response = client.rest_client.request("GET", url, _request_timeout=_TIMEOUT_S)
        text = response.read().decode()
    except (ApiException, HTTPError) as error:
        raise ClusterError(f"GET {path} failed: {error}") from error
    if response.status == HTTPStatus.NOT_FOUND:
        return None
    if response.status != HTTPStatus.OK:
        raise ClusterError(f"GET {path} failed: {text}")
    return str(text)
