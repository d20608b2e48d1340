"""The `millrace` command: run, plan, describe, reset and develop applications.

Commands import what they need when they run, so that `millrace --help` and completion respond immediately.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and end it with the command's exit code."""
    from millrace.cli.app import app

    app(prog_name="millrace")
