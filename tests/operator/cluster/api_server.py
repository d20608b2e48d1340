"""A small API server over HTTP with objects by path, versions, uids, and the kinds of patch that the operator sends."""

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from millrace_operator.cluster.kinds import CHILDREN, POD_MONITORS, RESOURCES, SPARK_APPLICATIONS

_PLURALS = {kind.plural for kind in (*CHILDREN, *RESOURCES, *SPARK_APPLICATIONS, POD_MONITORS)}


class ApiServer:
    """Serves until it is closed; `objects` holds its objects by path, and `asked` its requests."""

    def __init__(self):
        self.objects = {}
        self.asked = []
        self.failures = []
        """Error answers (status, reason) for the next requests."""
        self.refused = {}
        """Error answers (status, message) to the creation of objects, by path."""
        self.meanwhile = {}
        """What happens before the next request to a path is answered."""
        self.forbidden = set()
        """Paths that the operator has no right to read."""
        self.logs = {}
        """Logs by path; a number is the status of an error answer instead."""
        self._versions = itertools.count(1)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self):
                length = int(self.headers.get("Content-Length") or 0)
                text = self.rfile.read(length)
                status, answer = server._answer(
                    self.command, self.path, json.loads(text) if text else None, self.headers.get("Content-Type", "")
                )
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - the base class's names

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def client(self):
        configuration = client.Configuration(host=self.url)
        configuration.retries = False
        return client.ApiClient(configuration)

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def put(self, path, obj):
        """Store an object as if somebody had created or changed it."""
        known = self.objects.get(path, {"metadata": {"uid": f"uid-{next(self._versions)}"}})
        metadata = {"uid": known["metadata"]["uid"], **obj["metadata"], "resourceVersion": str(next(self._versions))}
        self.objects[path] = {**obj, "metadata": metadata}
        return self.objects[path]

    def _answer(self, method, url, body, content_type):
        split = urlsplit(url)
        path, query = split.path, {name: values[0] for name, values in parse_qs(split.query).items()}
        self.asked.append((method, path, query, body))
        self.meanwhile.pop(path, lambda: None)()
        if self.failures:
            status, reason = self.failures.pop(0)
            return status, {"kind": "Status", "reason": reason, "message": f"{reason}, as the test wants it"}
        if path in self.logs:
            pod = self.objects.get(path.removesuffix("/log"), {})
            if "container" not in query and len(pod.get("status", {}).get("containerStatuses", ())) > 1:
                return 400, {"reason": "BadRequest", "message": "a container name must be specified"}
            log = self.logs[path]
            if not isinstance(log, str):
                return log, {"reason": "Unavailable"}
            tail = "".join(log.splitlines(keepends=True)[-int(query.get("tailLines", 0)) :]).encode()
            return 200, tail[: int(query.get("limitBytes", len(tail)))]
        status_of = path.removesuffix("/status")
        match method:
            case "GET" if path in self.forbidden:
                return 403, {"reason": "Forbidden", "message": "cannot read it"}
            case "GET" if path in self.objects:
                return 200, self.objects[path]
            case "GET" if path.rpartition("/")[2] in _PLURALS:
                return 200, self._list(path, query)
            case "POST":
                made = f"{path}/{body['metadata']['name']}"
                if made in self.refused:
                    status, message = self.refused[made]
                    return status, {"reason": "Refused", "message": message}
                return (409, {"reason": "AlreadyExists"}) if made in self.objects else (201, self.put(made, body))
            case "PATCH" if "apply" in content_type:
                return self._apply(path, body)
            case "PATCH" | "PUT" | "DELETE" if status_of in self.objects:
                return self._change(method, status_of, body)
        return 404, {"reason": "NotFound", "message": f"{path} not found"}

    def _list(self, path, query):
        wanted = [part.split("=", 1) for part in query.get("labelSelector", "").split(",") if "=" in part]
        found = sorted(
            name
            for name, item in self.objects.items()
            if name.startswith(f"{path}/")
            and all((item["metadata"].get("labels") or {}).get(label) == value for label, value in wanted)
        )
        begin, size = int(query.get("continue", 0)), int(query.get("limit", 500))
        more = {"continue": str(begin + size)} if begin + size < len(found) else {}
        items = [self.objects[name] for name in found[begin : begin + size]]
        return {"metadata": {"resourceVersion": str(next(self._versions)), **more}, "items": items}

    def _apply(self, path, body):
        known, uid = self.objects.get(path), body["metadata"].get("uid")
        if uid is not None and known is None:
            return 409, {"reason": "Conflict", "message": "uid mismatch: no existing object was found"}
        if uid is not None and known["metadata"]["uid"] != uid:
            return 422, {"reason": "Invalid", "message": "metadata.uid: field is immutable"}
        return 200, self.put(path, body)

    def _change(self, method, path, body):
        known = self.objects[path]["metadata"]
        wanted = body.get("preconditions") or body.get("metadata") or {}
        if any(name in wanted and wanted[name] != known[name] for name in ("uid", "resourceVersion")):
            return 409, {"reason": "Conflict", "message": "the object is another one"}
        if method == "DELETE":
            del self.objects[path]
            return 200, {"kind": "Status", "status": "Success"}
        changed = _merged(self.objects[path], body) if method == "PATCH" else body
        return 200, self.put(path, changed)


def _merged(old, patch):
    merged = dict(old)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = _merged(merged.get(name) or {}, value)
        else:
            merged[name] = value
    return merged
