"""Google credentials: how a sink gets them, and an error that says what to do if there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.errors import SetupError, UsageError

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@dataclass(frozen=True, slots=True)
class GoogleLogin:
    """How a worker logs in to a service of Google. It names credentials and contains none, so it can be pickled.

    - `file`: path of a JSON file with credentials, on the driver and on each worker: a key of a service account, or the
      configuration of a workload identity. None: application default credentials, which on Google Cloud belong to the
      service account or the workload identity that the machine runs as.
    - `impersonate`: the service account that these credentials impersonate; None: no other one. They need the role
      ``roles/iam.serviceAccountTokenCreator`` on it.
    """

    file: str | None = None
    impersonate: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("credentials_file", self.file), ("impersonate", self.impersonate)):
            if value is not None and not value:
                raise UsageError(f"{name} is empty: leave it out, or give it a value.")
        if self.impersonate is not None and "@" not in self.impersonate:
            raise UsageError(
                f"impersonate is the e-mail address of a service account, got {self.impersonate!r}: for example "
                "writer@my-project.iam.gserviceaccount.com."
            )

    @property
    def is_default(self) -> bool:
        """Whether these are the application default credentials."""
        return self.file is None and self.impersonate is None

    def load(self) -> Any:
        """Return google-auth credentials; None: the client finds the application default credentials.

        Raises:
            google.auth.exceptions.GoogleAuthError: there are none; no token is asked for yet.
        """
        import google.auth
        from google.auth import impersonated_credentials

        if self.is_default:
            return None
        if self.file is None:
            found, _ = google.auth.default(scopes=[_SCOPE])
        else:
            found = _credentials_in(self.file)
        if self.impersonate is None:
            return found
        return impersonated_credentials.Credentials(found, self.impersonate, [_SCOPE])


def _credentials_in(path: str) -> Any:
    """Return the credentials in a file. Other kinds of files can be named by GOOGLE_APPLICATION_CREDENTIALS."""
    from google.auth import identity_pool
    from google.auth.exceptions import DefaultCredentialsError
    from google.oauth2 import service_account

    # Not google-auth's function for all kinds, which is deprecated: some kinds run a program that the file names.
    known = {
        "service_account": service_account.Credentials.from_service_account_info,
        "external_account": identity_pool.Credentials.from_info,
    }
    try:
        with open(path, "rb") as file:
            facts = json.load(file)
        return known[facts["type"]](facts, scopes=[_SCOPE])
    except OSError as error:
        raise DefaultCredentialsError(f"{path} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError):
        raise DefaultCredentialsError(
            f"{path} is neither a key of a service account nor the configuration of a workload identity"
        ) from None


@contextmanager
def explained_credentials(emulator_variable: str) -> Iterator[None]:
    """Turn google-auth's errors within the block into a `SetupError`.

    A channel looks for credentials when it is created, before any request, so no gRPC status reports these errors.

    Raises:
        SetupError: there are no credentials, or they cannot be read.
    """
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except GoogleAuthError as error:
        raise SetupError(
            "no usable Google credentials. Run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to a key file, or pass credentials; for an emulator, set "
            f"{emulator_variable} to its host:port. google-auth said: {error}"
        ) from None
