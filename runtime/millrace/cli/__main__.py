"""`python -m millrace.cli` is `millrace`."""

from millrace.cli import main

if __name__ == "__main__":
    main()
