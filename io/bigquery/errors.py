"""Maps errors of BigQuery to the outcome of a delivery. Pure.

Source: `google.cloud.bigquery.storage.v1.StorageError`, and BigQuery documentation, "Error messages".
"""

from __future__ import annotations

from penstock.compat import StrEnum
from penstock.errors import ServiceError
from penstock.io.staging.delivery import TargetUnavailableError


class BigQueryTargetError(ServiceError):
    """BigQuery refuses the sink's requests. The message names the fix."""

    retryable = False


class StreamEndedError(Exception):
    """The write stream takes no more rows: it was finalized, or BigQuery removed it."""


class OffsetExistsError(Exception):
    """The stream already has a row at the offset of the request. Nothing of the request was written."""


class RowsRefusedError(Exception):
    """Rows of a request are refused, and nothing of it was written. `reasons`: index in the request to reason."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(f"{len(reasons)} rows")
        self.reasons = reasons


class Code(StrEnum):
    """Names of gRPC status codes and of `StorageError` codes that have a meaning here."""

    ALREADY_EXISTS = "ALREADY_EXISTS"
    OFFSET_ALREADY_EXISTS = "OFFSET_ALREADY_EXISTS"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    STREAM_FINALIZED = "STREAM_FINALIZED"
    STREAM_NOT_FOUND = "STREAM_NOT_FOUND"
    INVALID_STREAM_STATE = "INVALID_STREAM_STATE"
    SCHEMA_MISMATCH_EXTRA_FIELDS = "SCHEMA_MISMATCH_EXTRA_FIELDS"


_ENDED = (Code.STREAM_FINALIZED, Code.STREAM_NOT_FOUND, Code.INVALID_STREAM_STATE)
_EXISTS = (Code.OFFSET_ALREADY_EXISTS, Code.ALREADY_EXISTS)
_GAP = (Code.OFFSET_OUT_OF_RANGE, Code.OUT_OF_RANGE)

_RETRYABLE = frozenset(
    (
        "ABORTED",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "INTERNAL",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "UNKNOWN",
        "KMS_SERVICE_ERROR",
        # A column was added to the table a moment ago, and the Write API does not know it yet.
        Code.SCHEMA_MISMATCH_EXTRA_FIELDS.value,
    )
)
_ADVICE = {
    "PERMISSION_DENIED": "the account lacks a right. It needs roles/bigquery.dataEditor on the dataset and "
    "roles/bigquery.jobUser on the project",
    "UNAUTHENTICATED": "BigQuery did not accept the credentials: run `gcloud auth application-default login`, or set "
    "GOOGLE_APPLICATION_CREDENTIALS",
    "NOT_FOUND": "the dataset or a table does not exist: create the dataset (bq mk --dataset project:dataset); tables "
    "are created with create_tables=True",
    "TABLE_NOT_FOUND": "a table was deleted while the pipeline runs: start the pipeline again, which creates it with "
    "create_tables=True",
    "CMEK_NOT_PROVIDED": "the table needs a customer-managed key: create the table yourself",
}


def classify_append(codes: tuple[str, ...], message: str, target: str, *, with_offset: bool) -> Exception:
    """Return the exception for an error of an append, from the names of its codes, the most specific first.

    `with_offset`: the request named an offset, so it was for a stream of the sink.
    """
    # Offsets first: their codes come together with a general status.
    if any(code in _EXISTS for code in codes):
        return OffsetExistsError(message)
    if any(code in _GAP for code in codes):
        # A gap cannot close: rows that the ledger has acknowledged are no longer in the stream.
        return BigQueryTargetError(
            f"{target}: a write stream has fewer rows than the sink's ledger says. The table penstock_ledger or the "
            "log was restored from an older copy. Restore both from the same moment; or start with a new checkpoint "
            f"folder and a time before the changes that are missing (BigQuery said: {message})"
        )
    # A stream that BigQuery has removed is reported by a status only, without a StorageError.
    if with_offset and (any(code in _ENDED for code in codes) or "NOT_FOUND" in codes):
        return StreamEndedError(message)
    if with_offset and "FAILED_PRECONDITION" in codes and "finalized" in message.lower():
        return StreamEndedError(message)
    return classify_error(codes, message, target)


def classify_error(codes: tuple[str, ...], message: str, target: str) -> ServiceError:
    """Return the exception for an error that does not concern a row."""
    # Later lines of a message are details of the request, which may show values.
    said = message.strip().partition("\n")[0]
    # An answer without any code is no answer of BigQuery.
    if not codes or any(code in _RETRYABLE for code in codes):
        return TargetUnavailableError(f"{target}: {'/'.join(codes)}: {said}")
    for code in codes:
        if code in _ADVICE:
            return BigQueryTargetError(f"{target}: {_ADVICE[code]} (BigQuery said {code}: {said})")
    return BigQueryTargetError(f"{target}: the request was refused (BigQuery said {'/'.join(codes)}: {said})")
