"""One exception for everything that the service answers with a gRPC status other than OK."""

from __future__ import annotations


class ServiceError(Exception):
    """An answer that is an error: `code` is the name of a gRPC status code, the text its message.

    Texts follow the messages of the service where they are known, because clients match on them.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> ServiceError:
    """Return an INVALID_ARGUMENT."""
    return ServiceError("INVALID_ARGUMENT", message)


def not_found(message: str) -> ServiceError:
    """Return a NOT_FOUND."""
    return ServiceError("NOT_FOUND", message)


def out_of_range(message: str) -> ServiceError:
    """Return an OUT_OF_RANGE."""
    return ServiceError("OUT_OF_RANGE", message)


def unimplemented(message: str) -> ServiceError:
    """Return an UNIMPLEMENTED: the service knows this, the simulation does not."""
    return ServiceError("UNIMPLEMENTED", f"{message} The simulated service does not support this.")


def failed(message: str) -> ServiceError:
    """Return a FAILED_PRECONDITION."""
    return ServiceError("FAILED_PRECONDITION", message)
