"""Joins of two tables by a foreign key (placeholder)."""
from typing import Any


def foreign_key_join(*args: Any, **options: Any) -> Any:
    """Not here yet."""
    raise NotImplementedError
