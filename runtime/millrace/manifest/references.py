"""References to other objects, always of the resource's own namespace.

A Secret is named, never copied: pods get it as a directory of files, so that a change of it arrives without a restart.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from millrace.manifest.fields import ObjectName, text
from millrace.manifest.model import ManifestModel, Rule

SECRET_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"  # noqa: S105 (no secret, but what the name of one looks like)

SecretKey = Annotated[
    str,
    *text(SECRET_KEY_PATTERN, "must be a key of a Secret: letters, digits, `-`, `_` and `.`", least=1, most=253),
]


class LocalReference(ManifestModel):
    """An object of the same namespace."""

    name: ObjectName
    """Its name."""


class SecretReference(ManifestModel):
    """A Secret of the same namespace."""

    name: ObjectName
    """The Secret's name."""
    keys: Annotated[dict[str, SecretKey], Field(max_length=16)] = Field(default_factory=dict)
    """Where the Secret names its keys otherwise: the name that is expected, and the Secret's own."""

    def key(self, expected: str) -> str:
        """Return the Secret's own name of a key.

        >>> SecretReference(name="user", keys={"tls.crt": "user.crt"}).key("tls.crt")
        'user.crt'
        """
        return self.keys.get(expected, expected)


def of_keys(*expected: str) -> Rule:
    """Return what makes a `SecretReference` one to a Secret with certain keys."""
    names = ", ".join(f"'{key}'" for key in expected)
    listed = ", ".join(f"`{key}`" for key in expected)
    return Rule(
        lambda reference: set(reference.keys) <= set(expected),
        f"!has(self.keys) || self.keys.all(key, key in [{names}])",
        f"keys may rename only the keys that are expected here: {listed}",
    )
