"""Placeholder."""
from typing import Any


def join(*a: Any, **k: Any) -> Any: raise NotImplementedError
