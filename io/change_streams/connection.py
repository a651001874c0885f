"""The address and credentials with which a worker reaches a service: the part that is the same for all sources.

A connection belongs to the running program. It may change between a stop and a resume (another endpoint or
credentials), so it is never in a checkpoint.
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Self

from penstock.errors import UsageError
from penstock.io.change_streams.options import GoogleOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address and the credentials. Compared by its arguments, so that clients can be cached.

    `credentials` None means application default credentials on the worker. A credentials object must be picklable.
    Credentials cannot be compared, so `identity` is a random id that stands for them, also in pickled copies.
    """

    emulator_host: str | None = None
    api_endpoint: str | None = None
    credentials: Any = field(default=None, compare=False, repr=False)
    identity: str = ""

    @classmethod
    def from_arguments(
        cls, emulator_variable: str, *, emulator_host: str | None, api_endpoint: str | None, **options: Any
    ) -> Self:
        """Return the connection that a transform's arguments describe.

        Without a host and an endpoint, an emulator is taken from the environment variable of this process: the one
        that builds the pipeline, because workers may have another environment.

        Raises:
            UsageError: the emulator's address is not ``host:port``; otherwise see `with_credentials`.
        """
        emulator = emulator_host or (None if api_endpoint else os.environ.get(emulator_variable))
        if emulator:
            check_address(f"emulator_host (or {emulator_variable})", emulator)
        return cls.with_credentials(emulator_host=emulator, api_endpoint=api_endpoint, **options)

    @classmethod
    def of_options(cls, emulator_variable: str, options: GoogleOptions, **more: Any) -> Self:
        """Return the connection of a transform with these options; see `from_arguments`."""
        return cls.from_arguments(
            emulator_variable,
            credentials=options.credentials,
            emulator_host=options.emulator_host,
            api_endpoint=options.api_endpoint,
            **more,
        )

    @classmethod
    def with_credentials(cls, credentials: Any, **options: Any) -> Self:
        """Return a connection that compares equal to its own copies only, when credentials are given.

        Raises:
            UsageError: `credentials` has another type, such as the name of a key file; or both an emulator and
                an endpoint are given.
        """
        if credentials is not None and not hasattr(credentials, "refresh"):
            raise UsageError(
                f"credentials must be a google.auth credentials object, not a {type(credentials).__name__}: make "
                "one with service_account.Credentials.from_service_account_file(…) of google.oauth2"
            )
        if options.get("emulator_host") and options.get("api_endpoint"):
            raise UsageError("emulator_host and api_endpoint are both given: pass one of them")
        return cls(
            credentials=credentials, identity="" if credentials is None else uuid.uuid4().hex, **options
        )


_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+):(\d{1,5})")


def check_address(name: str, value: str) -> None:
    """Check that `value` is ``host:port``.

    gRPC would take a scheme for a part of the host's name, and without a port it would connect to 443. Both look like
    an outage, so the reader would retry.

    Raises:
        UsageError: it is not; the message calls the value `name`.
    """
    parts = _ADDRESS.fullmatch(value)
    if not parts or not 0 < int(parts[2]) < 65536:
        raise UsageError(f"{name} must be host:port without a scheme, such as localhost:9010, not {value!r}")
