"""Spark's processes use the installed PySpark, unless another Spark runs them."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from millrace.backfill.installed_pyspark import prefer_installed_pyspark

HOME = Path(pyspark.__file__).parent


@pytest.mark.parametrize("linked", [False, True])
def test_the_zip_files_of_the_same_pyspark_are_left_out(monkeypatch, tmp_path, linked):
    """Others stay, whatever they are called."""
    home = HOME
    if linked:  # as in the image
        home = tmp_path / "spark"
        home.symlink_to(HOME)
    zipped = sorted(map(str, (home / "python" / "lib").glob("*.zip")))
    assert len(zipped) == 2
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [*zipped, "pyspark_helpers.zip", *before])
    monkeypatch.setenv("SPARK_HOME", str(home))
    prefer_installed_pyspark()
    assert sys.path == ["pyspark_helpers.zip", *before]


@pytest.mark.parametrize("home", [None, "another"])
def test_the_zip_files_of_another_spark_stay(monkeypatch, tmp_path, home):
    """Its Java may not understand the installed PySpark."""
    zipped = str(tmp_path / "another" / "python" / "lib" / "pyspark.zip")
    Path(zipped).parent.mkdir(parents=True)
    Path(zipped).touch()
    before = [zipped, *sys.path]
    monkeypatch.setattr(sys, "path", list(before))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("SPARK_HOME", str(tmp_path / home))
    prefer_installed_pyspark()
    assert sys.path == before
