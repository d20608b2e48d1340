"""The images that the tests run, built on this machine."""
