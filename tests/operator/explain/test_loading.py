"""What `millrace explain` reads from an API server (here, canned answers), and what it says when access is denied."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from tests.operator.explain.test_explanation import RECORDED
from typer.testing import CliRunner

from millrace.cli.app import app

GROUP = "/apis/streams.millrace.dev/v1alpha1/namespaces/shop/streamsapps"
LISTS = {
    "/apis/apps/v1/namespaces/shop/statefulsets": "stateful_set",
    "/api/v1/namespaces/shop/pods": "pods",
    "/api/v1/namespaces/shop/persistentvolumeclaims": "claims",
    "/apis/batch/v1/namespaces/shop/jobs": "jobs",
    "/api/v1/namespaces/shop/events": "events",
}


class Api:
    """An API server with one application; answers can be replaced by path."""

    def __init__(self) -> None:
        facts = yaml.safe_load((RECORDED / "out-of-memory.yaml").read_text())
        facts["stateful_set"] = [facts["stateful_set"]]
        self.answers: dict[str, tuple[int, Any]] = {
            GROUP: (200, {"items": [facts["app"]]}),
            f"{GROUP}/out-of-memory": (200, facts["app"]),
            **{path: (200, {"items": facts[key]}) for path, key in LISTS.items()},
        }
        self.asked: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append(self.path)
                code, body = api.answers.get(self.path.partition("?")[0], (404, "404 page not found"))
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def api(tmp_path, monkeypatch):
    """An API server that the kubectl configuration points to, with the namespace `shop`."""
    api = Api()
    threading.Thread(target=api.server.serve_forever, daemon=True).start()
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{api.server.server_port}"}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "shop"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    yield api
    api.server.shutdown()
    api.server.server_close()


def run(*arguments: str):
    """Run `millrace explain`."""
    return CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "200"})


def test_application_is_explained(api):
    """The application, its children by label and their events are read from kubectl's current namespace."""
    result = run("out-of-memory")
    assert result.exit_code == 0, result.output
    assert "shop/out-of-memory is not processing" in result.output
    assert "its limit of 64Mi" in result.output
    assert f"{GROUP}/out-of-memory" in api.asked
    selector = "labelSelector=streams.millrace.dev/app=out-of-memory"
    asked = [unquote(path) for path in api.asked]
    assert all(any(path in each and selector in each for each in asked) for path in [*LISTS][:-1])


def test_without_a_name_all_are_explained(api):
    """Every application in the namespace is explained; JSON is a list of them."""
    result = run("--json")
    assert result.exit_code == 0, result.output
    (explanation,) = json.loads(result.stdout)
    assert (explanation["namespace"], explanation["name"]) == ("shop", "out-of-memory")
    assert explanation["findings"][0]["severity"] == "blocking"


def test_no_application_is_no_error(api):
    """For an empty namespace the answer says that it is empty."""
    api.answers[GROUP] = (200, {"items": []})
    result = run()
    assert result.exit_code == 0
    assert "There are no StreamsApps in namespace shop" in result.output


def test_what_may_not_be_listed_is_left_out(api):
    """A missing right costs only the facts it covers, and the answer says so."""
    api.answers["/api/v1/namespaces/shop/events"] = (403, {"message": "forbidden"})
    result = run("out-of-memory")
    assert result.exit_code == 0, result.output
    assert "its limit of 64Mi" in result.output
    assert "You are not allowed to list events" in result.output


MISSING = {"details": {"name": "nope", "group": "streams.millrace.dev", "kind": "streamsapps"}, "code": 404}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, MISSING), "There is no StreamsApp nope in namespace shop"),
        ((404, "404 page not found"), "install the operator"),
        ((403, {}), "You are not allowed to read StreamsApp nope"),
        ((401, {}), "does not accept your credentials: log in again"),
        ((500, {}), "Reading StreamsApp nope in namespace shop failed: 500"),
    ],
)
def test_application_that_cannot_be_read(api, answer, message):
    """The error says what could not be read and what to do, on one line and without a traceback."""
    api.answers[f"{GROUP}/nope"] = answer
    result = run("nope")
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())


def test_server_that_does_not_answer(api):
    """An unreachable cluster is distinguished from a missing application."""
    api.server.shutdown()
    api.server.server_close()
    result = run("out-of-memory")
    assert result.exit_code == 1
    assert "The API server does not answer" in " ".join(result.stderr.split())


def test_unknown_context(api):
    """The error names the context that kubectl's configuration does not have."""
    result = run("--context", "elsewhere")
    assert result.exit_code == 1
    assert "elsewhere" in result.stderr
    assert "--context" in result.stderr


def test_operator_extra_is_not_installed(api, monkeypatch):
    """Without the kubernetes package the command says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "kubernetes", None)
    monkeypatch.delitem(__import__("sys").modules, "millrace_operator.cluster.kubectl", raising=False)
    result = run("out-of-memory")
    assert result.exit_code == 2
    assert "pip install 'millrace-streams[operator]'" in " ".join(result.stderr.split())
