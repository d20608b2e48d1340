"""`millrace init`: what it creates works, and nothing is overwritten."""

from __future__ import annotations

import sys

import pytest
from tests import forked


def run(folder, *command, cold=""):
    """Run Python in a folder."""
    return forked.run([sys.executable, *command], cold=cold, capture_output=True, text=True, cwd=folder, timeout=240)


def millrace(folder, *arguments):
    """Run a command as a user would."""
    return run(folder, "-m", "millrace.cli", *arguments)


def test_what_is_created_works(tmp_path):
    """The test passes, the manifest is valid, and the code is as a linter wants it."""
    result = millrace(tmp_path, "init", "Order Totals")
    assert result.returncode == 0, result.stderr
    assert "Created Order Totals/order_totals.py\n" in result.stdout
    assert "Run its test with `cd 'Order Totals' && pytest`" in result.stdout
    folder = tmp_path / "Order Totals"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == [
        "README.md", "order_totals.py", "pyproject.toml", "streamsapp.yaml", "tests/test_order_totals.py",
    ]  # fmt: skip
    tested = run(folder, "-m", "pytest", "-p", "no:cacheprovider", "-q", cold="pytest rewrites what it imports")
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout
    planned = millrace(folder, "plan", "-f", "streamsapp.yaml")
    assert planned.returncode == 0, planned.stderr
    assert "order-totals-v1-by-word-repartition" in planned.stdout
    assert run(folder, "-m", "ruff", "check", "--isolated", ".").returncode == 0
    assert run(folder, "-m", "ruff", "format", "--isolated", "--check", "--line-length", "120", ".").returncode == 0


def test_nothing_is_overwritten(tmp_path):
    """If one of the files exists, none is created; the error names it."""
    (tmp_path / "README.md").write_text("mine")
    result = millrace(tmp_path, "init", "--name", "shop")
    assert result.returncode == 2
    assert f"Error: Nothing was created, because {tmp_path} already has README.md" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "mine"


@pytest.mark.parametrize("name", ["Shop", "1st", "a_b", "", "class", "-a", "a" * 60])
def test_name_must_fit_kubernetes_and_python(tmp_path, name):
    """The error says what a name may be."""
    result = millrace(tmp_path, "init", f"--name={name}")
    assert result.returncode == 2
    assert f"Error: `{name}` cannot be the application's name" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["json", "millrace", "pytest", "sys"])
def test_name_must_not_hide_a_module(tmp_path, name):
    """A program with the name of a module of Python or of a package would not be found, or what it imports would not."""
    result = millrace(tmp_path, "init", name)
    assert result.returncode == 2
    assert f"Error: `{name}` cannot be the application's name, as there already is a module `{name}`" in result.stderr
    assert not list(tmp_path.iterdir())


def test_name_of_what_is_there_already(tmp_path):
    """A second run says that the files exist, not that their module does."""
    assert millrace(tmp_path, "init", "--name", "shop").returncode == 0
    assert "Nothing was created, because" in millrace(tmp_path, "init", "--name", "shop").stderr


def test_folder_that_cannot_be_created(tmp_path):
    """The error has the path and the reason."""
    (tmp_path / "file").write_text("")
    result = millrace(tmp_path, "init", "file/shop")
    assert result.returncode == 2
    assert "Error: Cannot create " in result.stderr
    assert "Not a directory" in result.stderr
    assert "Traceback" not in result.stderr
