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


TESTS = """
import pathlib

import pytest

@pytest.mark.parametrize("number", range(6))
def test_kafka(kafka, topic_factory, number):
    name = topic_factory("words", partitions=3)
    assert len(kafka.admin().list_topics(name, timeout=60).topics[name].partitions) == 3
    (pathlib.Path(__file__).parent / f"pid-{number}").write_text(f"{kafka.pids[0]}")
"""


@pytest.mark.broker
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_all_tests_share_one_broker_that_ends_with_the_session(pytester, options):
    """Every test of a session uses the same broker, which is gone afterwards."""
    pytester.makepyfile(TESTS)

    result = pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", *options)

    result.assert_outcomes(passed=6)
    pids = {path.read_text() for path in pytester.path.glob("pid-*")}
    assert len(pids) == 1
    assert not is_running(int(pids.pop()), "")


@pytest.mark.broker
def test_options_of_the_shared_broker_can_be_overridden(pytester):
    """A project's own `kafka_options` fixture configures the session's broker."""
    pytester.makeconftest(
        "import pytest\n@pytest.fixture(scope='session')\ndef kafka_options(): return {'config': {'num.partitions': '5'}}"
    )
    pytester.makepyfile(
        "from confluent_kafka.admin import ConfigResource\n"
        "def test_it(kafka):\n"
        "    resource = ConfigResource(ConfigResource.Type.BROKER, '1')\n"
        "    admin = kafka.admin()\n"
        "    [future] = admin.describe_configs([resource]).values()\n"
        "    assert future.result()['num.partitions'].value == '5'\n"
    )

    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_import_loads_no_client_library():
    """The plugin is imported in every pytest run, so it must not load Kafka clients or anything else that is slow."""
    program = (
        "import sys, pytest, millrace.dev.pytest_plugin\n"
        "print(*{'confluent_kafka', 'rich', 'pydantic', 'rocksdict', 'requests', 'jgo'} & sys.modules.keys())"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == ""
