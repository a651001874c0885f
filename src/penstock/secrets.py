"""References to values outside of a configuration. Pure but for the files and the secret managers.

``${env:NAME}`` names an environment variable, ``${file:/path}`` a file, and ``${vault:PATH#FIELD}`` and the other kinds
of `penstock.secret_managers` a secret of a secret manager.

A secret is given as a reference. The reference may be shown and stored; its value may not. It is read when the pipeline
starts. In other parameters a reference is replaced by its value when the configuration is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import ServiceError, UsageError
from penstock.secret_managers import MANAGERS, read_managed_secret

_MANAGED = re.compile(rf"\$\{{({'|'.join(MANAGERS)}):([^}}]+)\}}")
_REFERENCE = re.compile(rf"\$\{{(env|file|{'|'.join(MANAGERS)}):([^}}]+)\}}")


def is_reference(text: str) -> bool:
    """Return whether a text is a reference, and nothing else."""
    return _REFERENCE.fullmatch(text) is not None


def reference_parts(text: str) -> tuple[str, str] | None:
    """Return the kind of a reference, such as "env", and the name that follows it; None if it is no reference."""
    found = _REFERENCE.fullmatch(text)
    return (found[1], found[2]) if found else None


def is_local_reference(text: str) -> bool:
    """Return whether a text is a reference to an environment variable or to a file."""
    return is_reference(text) and not _MANAGED.search(text)


def has_reference(text: str) -> bool:
    """Return whether a text contains a reference, such as ``host=db password=${env:PASSWORD}``."""
    return _REFERENCE.search(text) is not None


def read_references(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with each reference replaced by its value. Values are not searched for references.

    Raises:
        UsageError: a variable, a file or a secret does not exist. The message shows no values.
        ServiceError: a secret manager does not answer.
    """
    return _REFERENCE.sub(lambda found: _value(found, environment), text)


def read_shown_references(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Do the same for a value that outputs show: no secret manager is asked.

    Raises:
        UsageError: a variable or a file does not exist, or a reference names a secret of a secret manager.
    """
    if found := _MANAGED.search(text):
        raise UsageError(
            f"{found[0]} names a secret, and outputs show this value: write ${{env:NAME}}, ${{file:/path}}, or the "
            "value itself"
        )
    return read_references(text, environment)


def with_stand_ins(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a text of the same form whose references are not needed: as it is if all can be read here.

    Otherwise a stand-in replaces them, which is also a valid connection string of libpq. No secret manager is asked.
    """
    try:
        read_shown_references(text, environment)
    except UsageError:
        return "dbname=secret" if is_reference(text) else _REFERENCE.sub("secret", text)
    return text


def read_secret(reference: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret that a reference names; see `read_references`.

    Raises:
        UsageError: the text is no reference, or what it names does not exist. The message shows no secret.
        ServiceError: a secret manager does not answer.
    """
    if not is_reference(reference):
        raise UsageError(
            "a secret is given as a reference, such as ${env:NAME}, ${file:/path} or ${vault:PATH#FIELD}, never as "
            "plain text"
        )
    return read_references(reference, environment)


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    reference, kind, name = found[0], found[1], found[2]
    if kind == "env":
        if not environment.get(name):
            raise UsageError(f"{reference}: the environment variable {name} is not set or empty")
        return environment[name]
    try:
        return _file_content(name) if kind == "file" else read_managed_secret(kind, name)
    except (UsageError, ServiceError) as error:
        raise type(error)(f"{reference} cannot be read: {error}") from None


def _file_content(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").removesuffix("\n")
    except OSError as error:
        raise UsageError(error.strerror) from None
    except UnicodeDecodeError:
        raise UsageError("it is not UTF-8 text") from None
