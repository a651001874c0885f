"""Optional packages: one error message that names the extra of pip that brings them. Pure.

with extra_packages("spanner"):
    from penstock.io.spanner.client import client_for
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from penstock.errors import UsageError


class MissingExtraError(UsageError):
    """An optional package is missing; the message names the extra that brings it."""


@contextmanager
def extra_packages(*extras: str) -> Iterator[None]:
    """Turn the ImportError of a missing package within the block into an error that names `extras`.

    Raises:
        MissingExtraError: a package is missing. A missing module of Penstock is not: that ImportError passes.
    """
    try:
        yield
    except ImportError as error:
        # An import of a module that does not exist in a namespace package that does ("from google.cloud import
        # bigtable") is a plain ImportError.
        module = error.name or ""
        if not module or module.partition(".")[0] == "penstock":
            raise
        raise _missing(module, extras) from None


def require_extra(extra: str, module: str) -> None:
    """Check that the package with `module` is installed, without an import of the module itself.

    Raises:
        MissingExtraError: it is not.
    """
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # a parent package is missing
        found = None
    if found is None:
        raise _missing(module, (extra,))


def install_command(*extras: str) -> str:
    """Return the command that installs extras. No package index has Penstock, so it is installed from a clone."""
    folders = " ./emulators" if {"emulators", "quickstart"} & set(extras) else ""
    return f"pip install '.[{','.join(extras)}]'{folders} in a clone of Penstock"


def _missing(module: str, extras: tuple[str, ...]) -> MissingExtraError:
    return MissingExtraError(
        f"the Python module {module} is missing: {install_command(*extras)}, on the driver and on all workers"
    )
