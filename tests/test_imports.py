"""Packages of plain data and pure functions load neither RocksDB nor a Kafka client."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"rocksdict", "confluent_kafka", "kafka"}:
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, Blocked())
for package in sys.argv[1:]:
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(getattr(found, "__path__", ()), found.__name__ + "."):
        importlib.import_module(module.name)
"""
PACKAGES = [
    "millrace.plan",
    "millrace.manifest",
    "millrace.assignment",
    "millrace_operator.model",
    "millrace_operator.reconcile",
    "millrace_operator.children",
    "millrace_operator.resets",
]


def test_pure_packages_import_without_engines_and_clients():
    """Every module of these packages imports where rocksdict, confluent_kafka and kafka cannot be imported."""
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM, *PACKAGES]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
