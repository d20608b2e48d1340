"""Token endpoints on loopback: OAuth, Entra ID, and AWS's security token service."""

import base64
import json
import ssl
import tempfile
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOST = "127.0.0.1"
_STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIAFAKE</AccessKeyId><SecretAccessKey>fake</SecretAccessKey>
<SessionToken>session</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


def jwt(subject, lives_s=3600.0):
    """Return an unsigned JSON Web Token, which Kafka's unsecured validator accepts."""
    now = time.time()

    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now, 'exp': now + lives_s})}."


class IdentityProvider:
    """Answers and records requests for tokens.

    Args:
        tls: Certificate and key, to serve https.
    """

    def __init__(self, tls=None):
        self.requests = []
        self.secret = "s3cret-0b1946"
        self.lives_s = 3600.0
        self.status = 200
        self.headers = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = dict(urllib.parse.parse_qsl(body))
                provider.requests.append((self.path, dict(self.headers), form))
                status, text = provider.answer(self.headers, form)
                self.send_response(status)
                for name, value in provider.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            with tempfile.TemporaryDirectory() as folder:
                for name, text in zip(("crt", "key"), tls, strict=True):
                    Path(folder, name).write_text(text)
                context.load_cert_chain(Path(folder, "crt"), Path(folder, "key"))
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://{HOST}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, headers, form):
        """Return status and body."""
        if self.status != 200:
            return self.status, "not now"
        if form.get("Action") == "AssumeRoleWithWebIdentity":
            return 200, _STS
        login = base64.b64decode(headers.get("Authorization", "").removeprefix("Basic ")).decode()
        secret = login.partition(":")[2] or form.get("client_assertion")
        if secret != self.secret:
            return 401, json.dumps({"error": "invalid_client", "error_description": "Bad secret"})
        token = jwt(login.partition(":")[0] or form["client_id"], self.lives_s)
        return 200, json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": self.lives_s})

    def close(self):
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
