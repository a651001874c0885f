"""The errors that Penstock raises, in one hierarchy.

    try:
        result.wait_until_finish()
    except ChangeStreamError as error:   # any source
        ...

| branch | whose fault | what helps |
|---|---|---|
| `UsageError` | the caller's: an argument, a configuration, a pipeline that cannot run | correct what it names |
| `ServiceError` | an external system's: a source, a sink, a file system | do what the message says |
| `InvariantError` | Penstock's own: a rule that its code guarantees does not hold | report a bug |

`UsageError` is also a ValueError and the other two are RuntimeErrors, so callers that know only Python's own classes
catch them too. A message names the given value, the expected value and the fix. It never contains values of rows.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ChangeStreamError",
    "DecodeError",
    "InvariantError",
    "LineageError",
    "PenstockError",
    "PositionLostError",
    "ServiceError",
    "SetupError",
    "UnavailableError",
    "UsageError",
]


class PenstockError(Exception):
    """Base class of all errors that Penstock raises on purpose.

    `retryable` says whether the same work may succeed if it is tried again. The runner does not repeat an epoch
    that failed with an error that is not.
    """

    retryable: ClassVar[bool] = True

    @property
    def redacted(self) -> str:
        """The message without text from other libraries or from users' code, which may contain values of rows."""
        return str(self)


class UsageError(PenstockError, ValueError):
    """The caller passed something that cannot work. Nothing was started."""

    retryable = False


class ServiceError(PenstockError, RuntimeError):
    """An external system refused a request or behaved in an unexpected way."""


class InvariantError(PenstockError, RuntimeError):
    """A rule that Penstock's own code guarantees does not hold. This is a bug of Penstock."""


class ChangeStreamError(ServiceError):
    """A source cannot continue until the user does what the message says. No change was skipped."""


class SetupError(ChangeStreamError):
    """The change stream does not exist, is not supported, or the credentials may not read it."""

    retryable = False


class PositionLostError(ChangeStreamError):
    """The service no longer has the changes after the reader's position."""

    retryable = False


class UnavailableError(ChangeStreamError):
    """The service did not answer for `unavailable_seconds`."""


class DecodeError(ChangeStreamError):
    """The service sent a message that its documentation does not allow. No part of the record was emitted."""


class LineageError(ChangeStreamError):
    """The partitions of the stream contradict its documentation, or a claimed step does not fit the frontier."""
