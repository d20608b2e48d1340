"""The `millrace` command: run, plan, describe, reset and develop applications.

Commands import what they need when they run, so that `millrace --help` and completion respond immediately.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and end it with the command's exit code."""
    try:
        from millrace.cli.app import app
    except KeyboardInterrupt:  # while it is imported; commands handle it themselves
        raise SystemExit(130) from None
    app(prog_name="millrace")
