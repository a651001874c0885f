"""Until when a target is complete, as its marks say: what `penstock wait --target` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from penstock.errors import PenstockError, UsageError

KINDS = ("files", "delta", "iceberg")


class TargetError(PenstockError):
    """A target cannot be read."""


def marks_of(kind: str, target: str, catalog: str | None) -> Callable[[], Mapping[str, datetime]]:
    """Return a function that reads the marks of a target by job: a folder or URL, or the name of an Iceberg table.

    The function raises:
        MissingExtraError: the packages of the kind are not installed.
        PenstockError: there is no such table, or it cannot be read.
    """
    if catalog is not None and kind != "iceberg":
        raise UsageError("--catalog is only for --target iceberg")
    if kind == "files":
        from penstock.io.files import complete_until

        return lambda: complete_until(target)
    if kind == "delta":
        return lambda: _delta_marks(target)
    return lambda: _iceberg_marks(target, catalog or "default")


def _delta_marks(uri: str) -> Mapping[str, datetime]:
    from penstock.io.delta import complete_until

    try:
        return complete_until(uri)
    except PenstockError:
        raise
    # deltalake has errors of its own, and passes those of the object store as others.
    except Exception as error:
        raise TargetError(f"the Delta table {uri} cannot be read: {error}") from error


def _iceberg_marks(table: str, catalog: str) -> Mapping[str, datetime]:
    from penstock.io.iceberg import complete_until

    try:
        return complete_until(table, catalog=catalog)
    except PenstockError:
        raise
    # The errors of pyiceberg, of its catalogues and of their clients have no common class.
    except Exception as error:
        raise TargetError(
            f"the Iceberg table {table} of the catalogue {catalog} cannot be read: {error}"
        ) from error
