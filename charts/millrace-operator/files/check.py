"""`helm test` runs this in the operator's image: is the API served, may the operator read it, and is the operator ready?"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
GROUP = "/apis/streams.millrace.dev/v1alpha1"
PATIENCE_S = 60
"""How long connections may be refused: right after an installation not every node can route to the Service yet."""


def get(url: str, **headers: str) -> bytes:
    """Return the body of a successful response; an error, or no response for too long, ends the check."""
    context = ssl.create_default_context(cafile=ACCOUNT / "ca.crt") if url.startswith("https") else None
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (both addresses come from the cluster)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            sys.exit(f"{url} answers {error.code}: {error.read().decode(errors='replace')}")
        except OSError as error:
            if time.monotonic() >= deadline:
                sys.exit(f"{url} does not answer: {error}")
        time.sleep(1)


def main() -> None:
    """Print one line for each check; the first failure ends the pod with an error."""
    authorization = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    kinds = {resource["kind"] for resource in json.loads(get(API + GROUP, **authorization))["resources"]}
    for kind in ("StreamsApp", "StreamsReset", "StreamsBackfill"):
        if kind not in kinds:
            sys.exit(f"The API server does not serve {kind}: are the CRDs of this version installed?")
        print(f"served: {kind}")
    for namespace in filter(None, os.environ["NAMESPACES"].split(",")):
        get(f"{API}{GROUP}/namespaces/{namespace}/streamsapps?limit=1", **authorization)
        print(f"readable: StreamsApps in {namespace}")
    if not os.environ["NAMESPACES"]:
        get(f"{API}{GROUP}/streamsapps?limit=1", **authorization)
        print("readable: StreamsApps in every namespace")
    get(os.environ["OPERATOR"] + "/readyz")
    print("ready: the operator")


if __name__ == "__main__":
    main()
