"""Many applications in one cluster at the same time, each with its own pods, including broken ones."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from e2e.support.application import Application
from e2e.support.word_count import Words

MANY = 50
SMALL = {"resources": {"requests": {"cpu": "10m", "memory": "256Mi"}}}
"""Pods small enough that fifty fit on the node."""

BROKEN = {
    "no-image": ({"image": "localhost/nobody-built-this:1"}, "Stalled", "True", "nobody-built-this"),
    "no-brokers": ({"kafka": {"bootstrapServers": ["127.0.0.1:1"]}}, "BrokersReachable", "False", "127.0.0.1:1"),
    "no-entrypoint": ({"app": {"entrypoint": "nothing.here:topology"}}, "Stalled", "True", "nothing"),
    "no-topic": ({"app": {"config": {"input": "no-such-topic"}}}, "TopicsReady", "False", "no-such-topic"),
    "no-secret": (
        {"kafka": {"auth": {"type": "plain", "secretRef": {"name": "nobody-made-this"}}}},
        "BrokersReachable",
        "False",
        "nobody-made-this",
    ),
}
"""What is wrong, the condition that reports it, and a word from its message."""


@pytest.mark.disturbs
@pytest.mark.thorough
def test_broken_resources_do_not_block_fifty_good_ones(word_count: Callable[..., Application], kafka) -> None:
    """Fifty applications run, count exactly, and change; each broken one says what is wrong with it."""
    prefix = f"many-{secrets.token_hex(3)}"
    broken: dict[str, Application] = {}
    good: list[tuple[Application, Words]] = []
    for number in range(MANY):
        words = Words(kafka.bootstrap_servers, f"{prefix}-{number}", partitions=1)
        good.append((word_count(words, name=f"good-{number}", replicas=1, podTemplate=SMALL), words))
    for name, (changes, _, _, _) in BROKEN.items():
        broken[name] = word_count(good[0][1], name=name, replicas=1)
        broken[name].apply(**changes)
    for app, _ in good:
        app.apply()
    for app, words in good:
        app.wait_ready()
        words.write()
    for _, words in good:
        words.wait_exact()
    for name, (_, kind, status, text) in BROKEN.items():
        broken[name].wait(
            f"{name}: {kind} told",
            lambda app=broken[name], kind=kind, status=status, text=text: (
                app.condition(kind).get("status") == status and text in app.condition(kind)["message"]
            ),
        )
        assert broken[name].pods() == []
    app, words = good[MANY // 2]
    app.apply(restartNonce=1)
    app.wait_ready()
    words.write()
    words.wait_exact()
