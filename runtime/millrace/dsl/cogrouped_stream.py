"""Placeholder."""
from typing import Any

CogroupedKStream: Any = None
