"""References to values outside of a configuration: ``${env:NAME}`` and ``${file:/path}``. Pure but for the files.

A secret is given as a reference. The reference may be shown and stored; its value may not. It is read when the pipeline
starts. In other parameters a reference is replaced by its value when the configuration is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import UsageError

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def is_reference(text: str) -> bool:
    """Return whether a text is a reference, and nothing else."""
    return _REFERENCE.fullmatch(text) is not None


def reference_parts(text: str) -> tuple[str, str] | None:
    """Return the kind of a reference ("env" or "file") and the name that follows it; None if it is no reference."""
    found = _REFERENCE.fullmatch(text)
    return (found[1], found[2]) if found else None


def has_reference(text: str) -> bool:
    """Return whether a text contains a reference, such as ``host=db password=${env:PASSWORD}``."""
    return _REFERENCE.search(text) is not None


def read_references(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with each reference replaced by its value. Values are not searched for references.

    Raises:
        UsageError: a variable or a file does not exist. The message shows no values.
    """
    return _REFERENCE.sub(lambda found: _value(found, environment), text)


def with_stand_ins(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a text of the same form whose references are not needed: as it is if all can be read.

    Otherwise a stand-in replaces them, which is also a valid connection string of libpq.
    """
    try:
        read_references(text, environment)
    except UsageError:
        return "dbname=secret" if is_reference(text) else _REFERENCE.sub("secret", text)
    return text


def read_secret(reference: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret: the value of an environment variable, or the content of a file without its last line break.

    Raises:
        UsageError: the text is no reference, or what it names does not exist. The message shows no secret.
    """
    if not is_reference(reference):
        raise UsageError("a secret is given as ${env:NAME} or ${file:/path}, never as plain text")
    return read_references(reference, environment)


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    reference, kind, name = found[0], found[1], found[2]
    if kind == "env":
        if not environment.get(name):
            raise UsageError(f"{reference}: the environment variable {name} is not set or empty")
        return environment[name]
    try:
        return Path(name).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{reference} cannot be read: {reason}") from None
