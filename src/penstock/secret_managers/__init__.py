"""Secrets of secret managers, such as ``${vault:secret/data/shop#password}``. Pure but for its modules.

    read_managed_secret("vault", "secret/data/shop#password")

Each module asks one manager through the vendor's library, and is imported when it is used. Credentials, region and
address come from the places that the library knows.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from penstock.errors import UsageError
from penstock.extras import extra_packages

__all__ = ["MANAGERS", "SecretManager", "read_managed_secret"]

KEPT_SECONDS = 60.0
"""The content of a secret is kept for this time, so that references to its fields show one version of it.

Credentials that a manager makes for each request belong together too. A start reads its references within this time.
"""

_LOGGERS = ("azure", "botocore", "google", "hvac", "urllib3")


@dataclass(frozen=True, slots=True)
class SecretManager:
    """One secret manager: the module that asks it, the extra that the module needs, and a reference as an example.

    `has_fields`: a secret always is a set of fields, so a reference names one.
    """

    module: str
    extra: str
    example: str
    has_fields: bool = False


MANAGERS = {
    "aws-secret": SecretManager("aws", "aws-secrets", "${aws-secret:shop/database#password}"),
    "gcp-secret": SecretManager("gcp", "gcp-secrets", "${gcp-secret:projects/shop/secrets/password}"),
    "azure-secret": SecretManager(
        "azure", "azure-secrets", "${azure-secret:https://shop.vault.azure.net/secrets/password}"
    ),
    "vault": SecretManager("vault", "vault", "${vault:secret/data/shop#password}", has_fields=True),
}
"""The secret managers by the kind of their references."""

_kept: dict[tuple[str, str], tuple[float, str]] = {}


def read_managed_secret(kind: str, name: str) -> str:
    """Return a secret without its last line break, or the field after ``#`` of a secret that is a JSON object.

    Raises:
        MissingExtraError: the manager's library is not installed.
        UsageError: there is no such secret or field, or no permission. The message shows no content of a secret.
        ServiceError: the manager does not answer.
    """
    path, has_field, field = name.partition("#")
    if MANAGERS[kind].has_fields and not field:
        raise UsageError(f"name a field of it, as in {MANAGERS[kind].example}")
    content = _content(kind, path)
    return _field(content, field) if has_field else content.removesuffix("\n")


def _content(kind: str, path: str) -> str:
    now = time.monotonic()
    at, content = _kept.get((kind, path), (now - KEPT_SECONDS, ""))
    if now - at >= KEPT_SECONDS:
        manager = MANAGERS[kind]
        with extra_packages(manager.extra), _without_debug_logs():
            content = import_module(f"{__name__}.{manager.module}").content(path)
        _kept[kind, path] = now, content
    return content


def _field(content: str, field: str) -> str:
    try:
        fields = json.loads(content)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise UsageError(f"it is no JSON object, so it has no field {field}: leave out #{field}")
    value = fields.get(field)
    if value is None or isinstance(value, (dict, list)):
        raise UsageError(f"it has no field {field} with a text: name another one after #")
    return value if isinstance(value, str) else json.dumps(value)


@contextmanager
def _without_debug_logs() -> Iterator[None]:
    """Keep answers out of logs: at the level DEBUG botocore logs them with the secret."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(max(logger.getEffectiveLevel(), logging.WARNING))
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
