"""Errors and delays at chosen moments, for tests of what clients do about them."""

from __future__ import annotations

from dataclasses import dataclass, field

CHANGE_QUERY = "ChangeStreamQuery"
"""The method of a fault of change stream queries; others are named as their RPC: Commit, StreamingRead."""


@dataclass(slots=True)
class Fault:
    """One fault.

    It concerns calls of `method`. A change stream query must also have this `stream`, this `token` ("" is the query
    without a token) and the number `query`, counted from 1 for each token. None is any.

    After `after_rows` rows of the answer (0: before the first) the call waits `stall_seconds`, by the service's
    clock, and then fails with `code` and `message`; with an empty code it continues. With `mid_row`, which
    needs a code, the next row is begun and broken off. It happens `times` times.
    """

    method: str = CHANGE_QUERY
    code: str = "UNAVAILABLE"
    message: str = "a fault that a test asked for"
    stream: str | None = None
    token: str | None = None
    query: int | None = None
    after_rows: int = 0
    stall_seconds: float = 0.0
    mid_row: bool = False
    times: int = 1

    def concerns(self, stream: str, token: str, query: int) -> bool:
        """Return whether the fault concerns a change stream query."""
        return (
            self.times > 0
            and self.method == CHANGE_QUERY
            and self.stream in (None, stream)
            and self.token in (None, token)
            and self.query in (None, query)
        )


@dataclass(slots=True)
class Faults:
    """The faults that are still to happen."""

    pending: list[Fault] = field(default_factory=list)

    def of_query(self, stream: str, token: str, query: int) -> list[Fault]:
        """Return the faults of a change stream query, the first to happen first."""
        found = [each for each in self.pending if each.concerns(stream, token, query)]
        # Sorted by rows: the query meets them in this order.
        return sorted(found, key=lambda fault: fault.after_rows)

    def of_call(self, method: str) -> Fault | None:
        """Return the fault of a call of another kind, and count it as happened."""
        for fault in self.pending:
            if fault.method == method and fault.times > 0:
                self.happened(fault)
                return fault
        return None

    def happened(self, fault: Fault) -> None:
        """Count a fault as happened."""
        fault.times -= 1
        # It is absent if the faults were cleared meanwhile.
        if fault.times <= 0 and fault in self.pending:
            self.pending.remove(fault)
