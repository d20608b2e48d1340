"""The images the tests run, built on this machine."""
