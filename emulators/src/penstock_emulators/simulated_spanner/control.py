"""The client of the control service.

    with Control("localhost:9010") as control:
        live = [each for each in control.partitions(path, "Changes") if each["live"]]
        control.split(path, "Changes", live[0]["token"])
        control.add_fault(code="UNAVAILABLE", token=live[0]["token"], after_rows=3)

`path` is the full name of a database, ``projects/…/instances/…/databases/…``. Moments are nanoseconds since
1970, by the clock of the service.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

import grpc
from typing_extensions import Self

_SECONDS = 300.0
_METHOD = "/penstock.simulated_spanner.Control/Call"


class ControlError(RuntimeError):
    """The service refused a command; the message is its own."""


class Control:
    """Commands to a running simulation. Safe for threads; `close` it, or use it as a context manager."""

    def __init__(self, host: str) -> None:
        """Connect to `host`, ``localhost:port``."""
        self._channel = grpc.insecure_channel(host)
        self._call = self._channel.unary_unary(_METHOD)

    def partitions(self, database: str, stream: str, placement: str = "") -> list[dict[str, Any]]:
        """Return all partitions of a function, past and present, with token, start, end, parents and live."""
        found: list[dict[str, Any]] = self._run(
            "partitions", database=database, stream=stream, placement=placement
        )
        return found

    def live(self, database: str, stream: str, placement: str = "") -> list[str]:
        """Return the tokens of the partitions that live now."""
        return [each["token"] for each in self.partitions(database, stream, placement) if each["live"]]

    def split(self, database: str, stream: str, token: str, *, ways: int = 2, placement: str = "") -> int:
        """Split a partition; returns the moment."""
        return self._change(database, stream, "split", [token], ways=ways, placement=placement)

    def merge(self, database: str, stream: str, *tokens: str, placement: str = "") -> int:
        """Merge partitions, which must be neighbours in the mode IMMUTABLE_KEY_RANGE."""
        return self._change(database, stream, "merge", list(tokens), placement=placement)

    def move(
        self, database: str, stream: str, token: str, *, to: str | None = None, placement: str = ""
    ) -> int:
        """Replace a partition by a new one; in the mode MUTABLE_KEY_RANGE, `to` takes half of its widest range."""
        return self._change(database, stream, "move", [token], to=to, placement=placement)

    def churn(self, period_seconds: float, *, seed: int = 0, least: int = 1, most: int = 8) -> None:
        """Change partitions at random every `period_seconds` by the service's clock; 0 stops it."""
        self._run("churn", period_seconds=period_seconds, seed=seed, least=least, most=most)

    def play(self, database: str, seed: int, steps: int, **options: Any) -> dict[str, int]:
        """Play a seeded history (see `history.play`); returns its commits, start and end.

        Options are keys, least, most and churn_share. Use a service whose clock stands still.
        """
        found: dict[str, int] = self._run("play", database=database, seed=seed, steps=steps, **options)
        return found

    def add_fault(self, **fields: Any) -> None:
        """Add a fault; `fields` are the fields of `fault.Fault`."""
        self._run("add_fault", **fields)

    def clear_faults(self) -> None:
        """Forget the faults that have not happened."""
        self._run("clear_faults")

    def clock(
        self,
        *,
        advance_seconds: float = 0,
        offset_seconds: float | None = None,
        speed: float | None = None,
    ) -> int:
        """Move the service's clock, set it off, or change its speed (0 stands still); returns the moment."""
        moment: int = self._run(
            "clock", advance_seconds=advance_seconds, offset_seconds=offset_seconds, speed=speed
        )
        return moment

    def shape(self, **fields: int) -> None:
        """Cut answers into other messages; the fields are chunk_bytes, rows_per_message and resume_every."""
        self._run("shape", **fields)

    def retention(self, database: str, stream: str, seconds: float) -> None:
        """Override how long a stream keeps records: its option cannot be below a day."""
        self._run("retention", database=database, stream=stream, seconds=seconds)

    def stats(self) -> dict[str, int]:
        """Return counters: commits, change_queries, faults, and churn by kind."""
        found: dict[str, int] = self._run("stats")
        return found

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _change(self, database: str, stream: str, action: str, tokens: list[str], **options: Any) -> int:
        answer = self._run(
            "change_ranges", database=database, stream=stream, action=action, tokens=tokens, **options
        )
        moment: int = answer["timestamp"]
        return moment

    def _run(self, command: str, **arguments: Any) -> Any:
        request = json.dumps({"command": command, **arguments}).encode()
        try:
            return json.loads(self._call(request, timeout=_SECONDS, wait_for_ready=True))
        except grpc.RpcError as error:
            raise ControlError(f"{command}: {error.details()}") from None
