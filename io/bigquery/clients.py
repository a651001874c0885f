"""Clients of BigQuery, with the credentials that the user chose or without any (an emulator)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import requests
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import BigQueryWriteClient
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport

from penstock.io.bigquery.errors import BigQueryTargetError, classify_error
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.staging.delivery import TargetUnavailableError

_CREDENTIALS = (
    "no usable Google credentials. Run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS to "
    "a file with credentials, or pass credentials_file=. With impersonate= they need the role "
    "roles/iam.serviceAccountTokenCreator on that service account. For an emulator pass endpoint= and write_endpoint="
)


def rest_client(target: BigQueryTarget) -> bigquery.Client:
    """Return a client of tables and queries."""
    if target.endpoint is None:
        return bigquery.Client(project=target.project, credentials=target.login.load())
    # An emulator has no TLS and no accounts.
    options = ClientOptions(api_endpoint=target.endpoint)
    return bigquery.Client(project=target.project, credentials=AnonymousCredentials(), client_options=options)


def write_client(target: BigQueryTarget) -> BigQueryWriteClient:
    """Return a client of the Storage Write API."""
    if target.write_endpoint is None:
        return BigQueryWriteClient(credentials=target.login.load())
    channel = grpc.insecure_channel(target.write_endpoint)
    return BigQueryWriteClient(transport=BigQueryWriteGrpcTransport(channel=channel))


@contextmanager
def classified_errors(target: str) -> Iterator[None]:
    """Turn errors of Google's clients within the block into errors of the sink."""
    try:
        yield
    except GoogleAuthError as error:
        raise BigQueryTargetError(f"{target}: {_CREDENTIALS}. google-auth said: {error}") from None
    except exceptions.RetryError as error:
        raise TargetUnavailableError(f"{target}: {error}") from error
    except exceptions.GoogleAPICallError as error:
        raise classify_error(codes_of(error), error.message, target) from error
    # `requests` is below the REST client, whose own retries are switched off (see `warehouse`).
    except requests.exceptions.RequestException as error:
        raise TargetUnavailableError(f"{target}: {error}") from error


_BY_HTTP = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def codes_of(error: exceptions.GoogleAPICallError) -> tuple[str, ...]:
    """Return the names of the codes of an error, of gRPC or REST."""
    # gRPC's status is the more exact one: several statuses share one code of HTTP.
    status: Any = error.grpc_status_code
    if status is not None:
        return (str(status.name),)
    reasons = {each.get("reason") for each in error.errors if isinstance(each, dict)}
    # Quotas are 403 in REST, as missing rights are.
    if reasons & {"rateLimitExceeded", "quotaExceeded", "backendError", "jobRateLimitExceeded"}:
        return ("RESOURCE_EXHAUSTED",)
    # A code that is not listed counts as UNKNOWN, which is retried: it may be a proxy's.
    return (_BY_HTTP.get(error.code or 0, "UNKNOWN"),)
