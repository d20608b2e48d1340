"""Logs of `millrace run`: for people or for collectors, with the level from the command line or from the manifest."""

from __future__ import annotations

import json
import sys
from datetime import datetime

import pytest
import yaml
from tests import forked

PROGRAM = '''\
import logging
import threading

log = logging.getLogger("shop")


def topology(builder):
    """Log at every level, in lines, from a thread, and with an error."""
    log.debug("at debug")
    logging.getLogger("millrace.shop").debug("ours at debug")
    log.info("at info with ünicode")
    log.warning("at warning\\nin two lines")
    try:
        raise ValueError("cause")
    except ValueError:
        log.exception("at error")
    thread = threading.Thread(target=log.warning, args=("of a thread %d", 7), name="worker")
    thread.start()
    thread.join()
    builder.stream("lines").to("counts")
'''


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the program with brokers that do not answer, and returns exit code and standard error."""
    (tmp_path / "shop.py").write_text(PROGRAM)

    def run(*options, logs=None):
        document = {
            "apiVersion": "streams.millrace.dev/v1alpha1",
            "kind": "StreamsApp",
            "metadata": {"name": "shop"},
            "spec": {
                "applicationId": "shop-v1",
                "image": "registry.example/shop:1",
                "app": {"entrypoint": "shop:topology"},
                # Nothing can listen on this port, so the program ends at once.
                "kafka": {"bootstrapServers": ["127.0.0.1:1"], "config": {"security.providers": "x"}},
                **({} if logs is None else {"observability": {"logs": logs}}),
            },
        }
        (tmp_path / "streamsapp.yaml").write_text(yaml.safe_dump(document))
        command = [sys.executable, "-m", "millrace.cli", "run", "-f", "streamsapp.yaml", "--state-dir", "state"]
        ran = forked.run([*command, *options], capture_output=True, text=True, cwd=tmp_path, timeout=120)
        return ran.returncode, ran.stderr

    return run


def records(text):
    """Return the JSON records of a log, one per line."""
    return [json.loads(line) for line in text.splitlines()]


def test_json_has_one_record_per_line(run):
    """Time, level, logger, message, thread and traceback are fields; the error that ends the instance is the last record."""
    code, text = run("--log-format", "json", "--bootstrap", "127.0.0.1:x")
    assert code == 1
    found = records(text)
    mine = {record["message"]: record for record in found if record["logger"] == "shop"}
    assert set(mine) == {"at info with ünicode", "at warning\nin two lines", "at error", "of a thread 7"}
    assert mine["at error"]["level"] == "ERROR"
    assert "ValueError: cause" in mine["at error"]["error"]
    assert mine["of a thread 7"]["thread"] == "worker"
    assert datetime.fromisoformat(mine["of a thread 7"]["time"]).utcoffset().total_seconds() == 0
    assert found[-1]["level"] == "ERROR"
    assert "(reason: BrokerUnreachable)" in found[-1]["message"]


@pytest.mark.parametrize(
    ("level", "logged"),
    [("debug", 4), ("INFO", 4), ("WARNING", 3), ("ERROR", 1)],
)
def test_level_holds_for_the_program_too(run, level, logged):
    """Records below the level are not written; libraries and the program itself log from INFO up."""
    _, text = run("--log-format", "json", "--log-level", level, "--bootstrap", "127.0.0.1:x")
    assert sum(record["logger"] == "shop" for record in records(text)) == logged
    assert ("ours at debug" in text) == (level == "debug")


def test_options_take_precedence_over_the_manifests_logging(run):
    """A pod logs as spec.observability.logs says, unless options differ."""
    _, text = run("--bootstrap", "127.0.0.1:x", logs={"level": "ERROR", "format": "json"})
    assert {record["level"] for record in records(text)} == {"ERROR"}
    _, text = run("--bootstrap", "127.0.0.1:x", "--log-format", "text", logs={"level": "ERROR", "format": "json"})
    assert "ERROR   shop: at error" in text
    assert "at warning" not in text


@pytest.mark.parametrize(
    ("option", "wrong", "choices"), [("--log-format", "xml", "JSON"), ("--log-level", "LOUD", "DEBUG")]
)
def test_wrong_choice_is_refused_with_the_valid_ones(run, option, wrong, choices):
    """Exit code 2, and the message names the option and its choices."""
    code, text = run(option, wrong)
    assert code == 2
    assert option in text
    assert choices in text.upper()


@pytest.mark.parametrize(
    ("options", "told"),
    [("verbose=False", False), ("verbose=True", True), ("verbose=False, quiet=False", True)],
    ids=["command", "command -v", "run"],
)
def test_kafka_clients_warn_only_where_there_is_a_log(options, told):
    """A command that prints what it does shows only errors of its clients, unless it is verbose; `run` logs warnings."""
    program = (
        "import logging\n"
        "from millrace.cli.logs import configure\n"
        "from millrace.kafka.clients import librdkafka_log\n"
        f"configure({options})\n"
        "librdkafka_log.warning('Coordinator load in progress: retrying')\n"
        "librdkafka_log.error('Connect failed')\n"
    )
    ran = forked.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0
    assert ("retrying" in ran.stderr) is told
    assert "Connect failed" in ran.stderr
