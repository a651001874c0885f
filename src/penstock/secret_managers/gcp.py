"""Secrets of Google Cloud's Secret Manager, through google-cloud-secret-manager.

Source: Secret Manager documentation, "projects.secrets.versions.access" and "Regional secrets".
"""

from __future__ import annotations

import re
from typing import Any

from google.api_core import exceptions, retry
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud.secretmanager import SecretManagerServiceClient

from penstock.errors import ServiceError, UsageError

_NAME = re.compile(r"projects/[^/]+/(?:locations/([^/]+)/)?secrets/[^/]+(/versions/[^/]+)?")
_TIMEOUT_SECONDS = 30.0
_DOWN = (exceptions.ServerError, exceptions.TooManyRequests, exceptions.RetryError, TransportError)


def content(name: str) -> str:
    """Return the content of a version of a secret; of the latest one if the name has no version.

    Raises:
        UsageError: the name has another form, or there is no such secret, no credentials or no permission.
        ServiceError: the service does not answer.
    """
    parts = _NAME.fullmatch(name)
    if not parts:
        raise UsageError(
            "the name is no projects/PROJECT/secrets/NAME or projects/PROJECT/secrets/NAME/versions/VERSION"
        )
    version = name if parts[2] else f"{name}/versions/latest"
    try:
        return _read(version, parts[1]).decode()
    except (exceptions.GoogleAPICallError, exceptions.RetryError, GoogleAuthError) as error:
        raise _refused(version, error) from None
    except UnicodeDecodeError:
        raise UsageError("it is not UTF-8 text") from None


def _read(version: str, location: str | None) -> bytes:
    # The client's own retry takes a minute, whatever the time limit of a request.
    unavailable = retry.if_exception_type(exceptions.ServiceUnavailable, exceptions.TooManyRequests)
    again = retry.Retry(predicate=unavailable, timeout=_TIMEOUT_SECONDS)
    with _client(location) as client:
        answer = client.access_secret_version(name=version, retry=again, timeout=_TIMEOUT_SECONDS)
    data: bytes = answer.payload.data
    return data


def _client(location: str | None) -> Any:
    """Return a client; regional secrets have an endpoint of their region."""
    endpoint = {"api_endpoint": f"secretmanager.{location}.rep.googleapis.com"} if location else None
    return SecretManagerServiceClient(client_options=endpoint)


def _refused(version: str, error: Exception) -> Exception:
    match error:
        case exceptions.NotFound():
            return UsageError(f"Secret Manager has no {version}: check project, name and version")
        case exceptions.PermissionDenied():
            return UsageError(
                "no permission: grant roles/secretmanager.secretAccessor on the secret, and enable the API"
            )
        case exceptions.FailedPrecondition():
            return UsageError(f"{version} is disabled or destroyed: enable it, or name another version")
        case _ if isinstance(error, _DOWN):
            return ServiceError(f"Secret Manager does not answer ({type(error).__name__})")
        case exceptions.Unauthenticated() | GoogleAuthError():
            return UsageError(
                f"there are no valid credentials ({type(error).__name__}): run gcloud auth application-default "
                "login, or set GOOGLE_APPLICATION_CREDENTIALS"
            )
    return UsageError(f"Secret Manager refuses the request ({type(error).__name__})")
