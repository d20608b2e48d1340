"""Asks pods for their `/status`, the runtime's own HTTP endpoint.

A pod that does not answer is left out: it may be starting, restoring or gone, which its state in the API shows. A pod runs
its user's code, so nothing that it does may delay the operator: all pods of an application are asked at once within one
deadline, however slowly they answer; answers larger than any real one are cut off; and pods that are late repeatedly are
asked less often. An address may belong to another pod by now: an answer that names another pod is ignored.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import aiohttp

from millrace.instance_status import StreamsStatus, parse_status
from millrace_operator.children.naming import COMPONENT_LABEL, HTTP_PORT
from millrace_operator.model import Object, labels_of

_CONNECT_SECONDS: Final = 1.0
_DEADLINE_SECONDS: Final = 3.0
_LARGEST_ANSWER: Final = 4 << 20
_LARGEST_ANSWERS: Final = 32 << 20
"""For all pods of an application together."""
_MOST_AT_ONCE: Final = 64
_LATE_SECONDS: Final = 5.0
"""How long a pod that was late twice in a row is not asked; doubled with every further time."""
_LONGEST_LATE_SECONDS: Final = 60.0
_MOST_LATE: Final = 10_000


class InstanceStatusClient:
    """Talks to pods; safe to use from several threads.

    Args:
        port: The port of the runtime's endpoints.
        clock: Seconds that only go forward.
    """

    def __init__(self, port: int = HTTP_PORT, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._clock = clock
        self._lock = threading.Lock()
        self._late: dict[str, tuple[int, float]] = {}
        """By pod uid: how many times in a row it has missed the deadline, and until when it is not asked."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="instances", daemon=True)
        self._thread.start()

    def ask(self, pods: Iterable[Object]) -> dict[str, StreamsStatus]:
        """Return what the pods report about themselves, by name; those that do not answer are left out."""
        asked = {str(pod["metadata"]["name"]): pod for pod in pods if self._is_due(pod)}
        if not asked:
            return {}
        addresses = {name: str(pod["status"]["podIP"]) for name, pod in asked.items()}
        answers = asyncio.run_coroutine_threadsafe(self._get_all(addresses), self._loop).result()
        for name, pod in asked.items():
            self._note(pod, late=name not in answers)
        found = {name: _status_in(asked[name], data) for name, data in answers.items()}
        return {name: item for name, item in found.items() if item is not None}

    def close(self) -> None:
        """Stop the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _get_all(self, addresses: Mapping[str, str]) -> dict[str, bytes]:
        """Return the pods' answers within the deadline, by name, without missing and unreadable ones."""
        answers: dict[str, bytes] = {}
        room = _LARGEST_ANSWERS
        turns = asyncio.Semaphore(_MOST_AT_ONCE)
        timeout = aiohttp.ClientTimeout(total=_DEADLINE_SECONDS, sock_connect=_CONNECT_SECONDS)

        async def get(name: str, address: str) -> None:
            nonlocal room
            data = b""
            async with turns:
                try:
                    async with http.get(self._url(address, "status"), allow_redirects=False) as response:
                        async for part in response.content.iter_any():
                            data, room = data + part, room - len(part)
                            if len(data) > _LARGEST_ANSWER or room < 0:
                                return
                except TimeoutError:
                    return
                except (aiohttp.ClientError, OSError, ValueError):
                    data = b""
            answers[name] = data if data and response.status == 200 else b""

        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=timeout,
        ) as http:
            tasks = [asyncio.create_task(get(name, address)) for name, address in addresses.items()]
            _, late = await asyncio.wait(tasks, timeout=_DEADLINE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return answers

    def _is_due(self, pod: Object) -> bool:
        """Return whether to ask a pod: it runs the application, and has not just been late."""
        status = pod.get("status") or {}
        runs = labels_of(pod).get(COMPONENT_LABEL) == "runtime" and status.get("phase") == "Running"
        _, not_before = self._late.get(_uid(pod), (0, float("-inf")))
        return runs and bool(status.get("podIP")) and self._clock() >= not_before

    def _note(self, pod: Object, *, late: bool) -> None:
        with self._lock:
            before, _ = self._late.pop(_uid(pod), (0, 0.0))
            if not late:
                return
            if len(self._late) >= _MOST_LATE:
                self._late.clear()
            times = before + 1
            pause = min(_LATE_SECONDS * 2.0 ** min(times - 2, 10), _LONGEST_LATE_SECONDS) if times > 1 else 0.0
            self._late[_uid(pod)] = times, self._clock() + pause

    def _url(self, address: str, path: str) -> str:
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{self._port}/{path}"


def _uid(pod: Object) -> str:
    return str(pod["metadata"].get("uid", ""))


def _status_in(pod: Object, data: bytes) -> StreamsStatus | None:
    """Return what a pod's answer says; None if it is unusable or comes from another pod."""
    try:
        status = parse_status(json.loads(data))
    except (ValueError, RecursionError):
        return None
    return None if status.pod_uid not in {"", _uid(pod)} else status
