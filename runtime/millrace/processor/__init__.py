"""The Processor API."""
