"""The plugin's fixtures share one broker per session, also between xdist's workers, and importing it is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millrace.dev._process import is_running
from millrace.dev.jars import cache_directory

pytest_plugins = ("pytester",)


@pytest.fixture(autouse=True)
def shared_cache(monkeypatch):
    """Let inner sessions, which have their own home directory, use this machine's cache."""
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(cache_directory()))


CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def kafka_options():
    return {"config": {"num.partitions": "5"}}
"""
TESTS = """
import pathlib

import pytest
from confluent_kafka.admin import ConfigResource

@pytest.mark.parametrize("number", range(6))
def test_kafka(kafka, topic_factory, number):
    name = topic_factory("words", partitions=3)
    assert len(kafka.admin().list_topics(name, timeout=60).topics[name].partitions) == 3
    (pathlib.Path(__file__).parent / f"pid-{number}").write_text(f"{kafka.pids[0]}")

def test_options(kafka):
    admin = kafka.admin()
    [future] = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
    assert future.result()["num.partitions"].value == "5"
"""


@pytest.mark.broker
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_all_tests_share_one_broker_that_ends_with_the_session(pytester, options):
    """Every test of a session uses the same broker, with the project's own `kafka_options`, which is gone afterwards."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)

    result = pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", *options)

    result.assert_outcomes(passed=7)
    pids = {path.read_text() for path in pytester.path.glob("pid-*")}
    assert len(pids) == 1
    assert not is_running(int(pids.pop()), "")


def test_import_loads_no_client_library():
    """The plugin is imported in every pytest run, so it must not load Kafka clients or anything else that is slow."""
    program = (
        "import sys, pytest, millrace.dev.pytest_plugin\n"
        "print(*{'confluent_kafka', 'rich', 'pydantic', 'rocksdict', 'requests', 'jgo'} & sys.modules.keys())"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == ""
