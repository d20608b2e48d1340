"""A schema registry for tests, those of `examples` included: a local server with the API of subjects and versions."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest


class Registry:
    """Schemas by subject and version; ids are global, and equal schemas share one."""

    def __init__(self):
        self.schemas = []
        self.subjects = {}
        self.requests = Counter()
        self.login = None

    def answer(self, method, path, body):
        """Return status and document for one request."""
        self.requests[method, path] += 1
        match [unquote(part) for part in path.strip("/").split("/")], method:
            case (["subjects", subject, "versions"], "POST"):
                return 200, {**body, "id": self._register(subject, body), **self._version(subject, body)}
            case (["subjects", subject], "POST"):
                if body not in self.subjects.get(subject, []):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, {**body, "id": self.schemas.index(body) + 1, **self._version(subject, body)}
            case (["subjects", subject, "versions", "latest"], "GET"):
                if subject not in self.subjects:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                schema = self.subjects[subject][-1]
                return 200, {**schema, "id": self.schemas.index(schema) + 1, **self._version(subject, schema)}
            case (["schemas", "ids", number], "GET"):
                if int(number) > len(self.schemas):
                    return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
                return 200, self.schemas[int(number) - 1]
        return 404, {"error_code": 404, "message": f"no such resource: {method} {path}"}

    def _register(self, subject, schema):
        if schema not in self.schemas:
            self.schemas.append(schema)
        versions = self.subjects.setdefault(subject, [])
        if schema not in versions:
            versions.append(schema)
        return self.schemas.index(schema) + 1

    def _version(self, subject, schema):
        return {"subject": subject, "version": self.subjects[subject].index(schema) + 1}


@pytest.fixture
def registry():
    """Yield a registry, reachable through `registry.url` and `registry.client`."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, document = 401, {"error_code": 40101, "message": "Unauthorized"}
            login = self.headers.get("Authorization", "").removeprefix("Basic ")
            if registry.login in {None, base64.b64decode(login).decode()}:
                status, document = registry.answer(self.command, urlsplit(self.path).path, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815 (the standard library's names)

        def log_message(self, *_args):
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        registry.url = f"http://127.0.0.1:{server.server_port}"
        registry.client = SchemaRegistryClient({"url": registry.url})
        yield registry
        registry.client.close()
        server.shutdown()
        thread.join()
