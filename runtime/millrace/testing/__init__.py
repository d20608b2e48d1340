"""The engine hosted in a test."""
