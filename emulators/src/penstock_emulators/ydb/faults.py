"""Failures that a test asks for: the next calls of a method, or a read session after some messages. Pure."""

from __future__ import annotations

from dataclasses import dataclass


class StatusError(Exception):
    """Ends a call with a status of YDB, such as UNAVAILABLE, or of gRPC, such as grpc:UNAVAILABLE."""

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(message or f"the test asked for {status}")
        self.status = status


@dataclass(slots=True)
class Fault:
    """Calls of `method` end with `status`, `times` times.

    Of StreamRead: a session fails when it has sent `after_messages` messages. `partition`: only sessions that read it.
    `delay_seconds`: the call is delayed, and fails only if there is a status too.
    """

    method: str
    status: str = ""
    times: int = 1
    after_messages: int = 0
    partition: int | None = None
    delay_seconds: float = 0


class Faults:
    """The faults that were asked for and have not happened yet."""

    def __init__(self) -> None:
        self.planned: list[Fault] = []

    def take(
        self, method: str, *, messages: int = 0, partitions: frozenset[int] = frozenset()
    ) -> Fault | None:
        """Return the fault that happens now, and count it."""
        for fault in self.planned:
            if fault.method != method or messages < fault.after_messages:
                continue
            if fault.partition is not None and fault.partition not in partitions:
                continue
            fault.times -= 1
            if fault.times <= 0:
                self.planned.remove(fault)
            return fault
        return None
