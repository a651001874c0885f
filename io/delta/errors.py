"""Maps errors of delta-rs to the outcome of a publication."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import ServiceError
from penstock.io.columnar.store_errors import advice_for, one_line
from penstock.io.staging.delivery import TargetUnavailableError

# delta-rs 1.6 has one class, DeltaError, for a store that does not answer and for mistakes in a request. Errors of the
# store have the text of the Rust crate object_store ("Generic S3 error"), "Generic DeltaTable error" alone is none.
_STORE_ERROR = re.compile(r"Generic (?!DeltaTable)\w+ error|error sending request", re.IGNORECASE)


class DeltaTargetError(ServiceError):
    """The storage refuses the sink's requests. The message names the fix."""

    retryable = False


def classify_error(text: str, uri: str, *, is_delta_error: bool) -> ServiceError | None:
    """Return the exception that an error of a store means; None if it is no error of a store."""
    # A person must act, so a repeat would only delay the message.
    if advice := advice_for(text):
        return DeltaTargetError(f"the storage of {uri}: {advice} (delta-rs said: {one_line(text)})")
    # Mistakes in a request are our own, so the caller raises the original error.
    if is_delta_error and not _STORE_ERROR.search(text):
        return None
    return TargetUnavailableError(f"the storage of {uri}: {one_line(text)}")


@contextmanager
def errors_of(uri: str) -> Iterator[None]:
    """Turn errors of delta-rs within the block into errors of the sink."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    # Raised as unavailable, so that the epoch is published again from the new snapshot.
    except CommitFailedError as error:
        raise TargetUnavailableError(f"another writer has committed to {uri}: {error}") from None
    except (DeltaError, OSError) as error:
        found = classify_error(str(error), uri, is_delta_error=isinstance(error, DeltaError))
        if found is None:
            raise
        raise found from None
