"""Secrets that a configuration names instead of containing them: ``${env:NAME}`` and ``${file:/path}``. Pure.

A reference may be shown and stored; its value may not. It is read when the pipeline starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import UsageError

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def is_reference(text: str) -> bool:
    """Return whether a text is a reference to a secret, and nothing else."""
    return _REFERENCE.fullmatch(text) is not None


def reference_parts(text: str) -> tuple[str, str] | None:
    """Return the kind of a reference ("env" or "file") and the name that follows it; None if it is no reference."""
    found = _REFERENCE.fullmatch(text)
    return (found[1], found[2]) if found else None


def read_secret(reference: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret: the value of an environment variable, or the content of a file without its last line break.

    Raises:
        UsageError: the text is no reference, or what it names does not exist. The message shows no secret.
    """
    found = _REFERENCE.fullmatch(reference)
    if not found:
        raise UsageError("a secret is given as ${env:NAME} or ${file:/path}, never as plain text")
    kind, name = found.groups()
    if kind == "env":
        if not environment.get(name):
            raise UsageError(f"{reference}: the environment variable {name} is not set or empty")
        return environment[name]
    try:
        return Path(name).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{reference} cannot be read: {reason}") from None
