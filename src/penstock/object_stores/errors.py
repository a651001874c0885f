"""Errors of object stores. Their messages never contain text of the store or of the library, see `client`."""

from __future__ import annotations

from penstock.errors import ServiceError


class StoreError(OSError, ServiceError):
    """An object store failed. It is an OSError too, so it is handled like an error of a local disk."""


class StoreUnavailableError(StoreError):
    """The store did not answer, or answered that it is overloaded, for `unavailable_seconds`.

    After a request that changes something, it is unknown whether the change was made.
    """


class StoreRefusedError(StoreError):
    """The store refused a request: credentials, rights, a missing bucket, a wrong region. Nothing was changed."""
