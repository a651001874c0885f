"""Errors of staged sinks."""

from penstock.errors import ServiceError


class OutputError(ServiceError):
    """The output refused a request. The message tells what was refused, where, and what to do."""
