"""The `millrace` command: runs, plans, pictures and develops applications.

Commands import what they run when they run, so that `millrace --help` and completion answer at once.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process; ends it with the command's exit code."""
    from millrace.cli.app import app

    app(prog_name="millrace")
