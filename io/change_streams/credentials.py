"""Application default credentials that are missing or unusable, as an error that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import SetupError


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
