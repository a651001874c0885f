"""Errors of staged sinks."""

from penstock.errors import ServiceError


class OutputError(ServiceError):
    """The output refused a request. The message tells what was refused, where, and what to do."""


class OutputTakenError(OutputError):
    """Another checkpoint writes to the output. This driver has deleted and published nothing since it found out."""

    retryable = False
