"""The API server that kubectl would talk to, with the rights of kubectl's user: for commands, never for the operator itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError

from millrace.errors import StreamsError
from millrace.manifest.resource import GROUP, VERSION

__all__ = ["ClusterError", "KubectlApi", "ask"]

_PLURAL: Final = "streamsapps"
_FORBIDDEN: Final = 403
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_VIEW: Final = "the role `view` in the namespace"


class ClusterError(StreamsError):
    """The API server cannot be reached, or does not have what was requested.

    Args:
        message: What is wrong, and what to do.
        forbidden: Whether the user may not read what was requested.
    """

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


class KubectlApi:
    """The API server that kubectl would talk to.

    Args:
        context: of kubectl's configuration; its current one if not given.

    Raises:
        ClusterError: there is no configuration, or not this context.
    """

    def __init__(self, context: str | None = None) -> None:
        self.namespace = "default"
        """The namespace that kubectl would use."""
        try:
            try:
                config.load_kube_config(context=context)
                contexts, chosen = config.list_kube_config_contexts()
                if context is not None:
                    chosen = next(item for item in contexts if item["name"] == context)
                self.namespace = chosen["context"].get("namespace") or self.namespace
            except ConfigException:
                if context is not None:
                    raise
                config.load_incluster_config()
        except ConfigException as error:
            raise ClusterError(
                f"The cluster cannot be reached: {str(error).rstrip('.')}. Set KUBECONFIG, or choose a context with --context."
            ) from None
        self.core = client.CoreV1Api()
        self.apps = client.AppsV1Api()
        self.batch = client.BatchV1Api()
        self._custom = client.CustomObjectsApi()

    def streams_apps(self, namespace: str) -> list[str]:
        """Return the names of the applications in a namespace.

        Raises:
            ClusterError: they cannot be listed.
        """
        what = f"the StreamsApps in namespace {namespace}"
        found = ask(what, lambda: self._custom.list_namespaced_custom_object(GROUP, VERSION, namespace, _PLURAL))
        return sorted(str(item["metadata"]["name"]) for item in found["items"])

    def streams_app(self, namespace: str, name: str) -> dict[str, object]:
        """Return an application's resource.

        Raises:
            ClusterError: it does not exist or cannot be read.
        """
        what = f"StreamsApp {name} in namespace {namespace}"
        app: dict[str, object] = ask(
            what, lambda: self._custom.get_namespaced_custom_object(GROUP, VERSION, namespace, _PLURAL, name)
        )
        return app


def ask(what: str, request: Callable[[], Any], *, needs: str = _VIEW) -> Any:
    """Return what the API server answers.

    Args:
        what: what is read, for messages.
        request: asks for it.
        needs: which rights that takes.

    Raises:
        ClusterError: it refuses, or does not answer.
    """
    try:
        return request()
    except ApiException as error:
        raise ClusterError(_problem(what, error, needs), forbidden=error.status == _FORBIDDEN) from None
    except HTTPError as error:
        raise ClusterError(
            f"The API server does not answer: {error}. Check the cluster and kubectl's context."
        ) from None


def _problem(what: str, error: ApiException, needs: str) -> str:
    if error.status == _UNAUTHORIZED:
        return f"The API server does not accept your credentials: log in again, then retry reading {what}."
    if error.status == _FORBIDDEN:
        return f"You are not allowed to read {what}: ask for {needs}."
    if error.status == _NOT_FOUND:
        body = str(error.body or "")
        if f'"group":"{GROUP}"' in body or _PLURAL in body:
            return f"There is no {what}. `kubectl get streamsapps -A` lists the existing ones."
        return "The cluster does not know StreamsApps: install the operator, whose chart brings the CRDs (docs/install.md)."
    return f"Reading {what} failed: {error.status} {error.reason}"
