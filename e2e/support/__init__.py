"""Shared by the end-to-end tests: an application as its user sees it, and words to count."""
