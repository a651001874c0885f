"""The control service: commands for tests that the API of Spanner does not have.

One method, ``/penstock.simulated_spanner.Control/Call``. A request is a JSON object with the name of a command
and its arguments; the answer is a JSON value. `control.Control` is the client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

from penstock_emulators.simulated_spanner.churn import ChurnLimits
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.errors import ServiceError, invalid
from penstock_emulators.simulated_spanner.fault import Fault
from penstock_emulators.simulated_spanner.history import play
from penstock_emulators.simulated_spanner.key_ranges import KeyRanges
from penstock_emulators.simulated_spanner.service import Service
from penstock_emulators.simulated_spanner.timestamp import SECOND


class ControlService:
    """The commands, by name. Moments are nanoseconds since 1970."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._commands: dict[str, Callable[..., Any]] = {
            "partitions": self._partitions,
            "change_ranges": self._change_ranges,
            "churn": self._churn,
            "add_fault": self._add_fault,
            "clear_faults": self._clear_faults,
            "clock": self._clock,
            "shape": self._shape,
            "stats": self._stats,
            "play": self._play,
            "retention": self._retention,
        }

    async def call(self, request: bytes) -> bytes:
        """Run one command."""
        arguments: dict[str, Any] = json.loads(request)
        command = self._commands.get(arguments.pop("command", ""))
        if command is None:
            raise invalid(f"There is no such command; there are {', '.join(self._commands)}.")
        try:
            answer = command(**arguments)
        except (TypeError, ValueError, KeyError) as error:
            raise invalid(f"{type(error).__name__}: {error}") from None
        # Those who wait run before the answer is sent: a test that asks next sees what they did.
        await asyncio.sleep(0)
        return json.dumps(answer).encode()

    def _ranges(self, database: str, stream: str, placement: str) -> tuple[Database, KeyRanges]:
        found = self._service.database(database)
        if stream not in found.streams:
            raise ServiceError("NOT_FOUND", f"Change Stream not found: {stream}")
        return found, found.streams[stream].functions[placement]

    def _partitions(self, database: str, stream: str, placement: str = "") -> Any:
        _, ranges = self._ranges(database, stream, placement)
        live = set(ranges.live())
        return [
            {
                "token": each.token,
                "start": each.start,
                "end": each.end,
                "parents": list(each.parents),
                "live": each.token in live,
                "records": len(each.records),
            }
            for each in ranges.partitions.values()
        ]

    def _change_ranges(
        self,
        database: str,
        stream: str,
        action: str,
        tokens: list[str],
        placement: str = "",
        to: str | None = None,
        ways: int = 2,
    ) -> Any:
        found, ranges = self._ranges(database, stream, placement)
        now = self._service.clock.now()
        timestamp, touched = found.change_ranges(ranges, action, tuple(tokens), now, to=to, ways=ways)
        self._service.wake(touched)
        return {"timestamp": timestamp, "live": ranges.live()}

    def _churn(self, period_seconds: float, seed: int = 0, least: int = 1, most: int = 8) -> Any:
        self._service.start_churn(period_seconds, seed, ChurnLimits(least, most))

    def _add_fault(self, **fields: Any) -> Any:
        self._service.faults.pending.append(Fault(**fields))
        self._service.wake_all()

    def _clear_faults(self) -> Any:
        self._service.faults.pending.clear()

    def _clock(
        self,
        advance_seconds: float = 0,
        offset_seconds: float | None = None,
        speed: float | None = None,
    ) -> Any:
        clock = self._service.clock
        if speed is not None:
            clock.set_speed(speed)
        if offset_seconds is not None:
            clock.set_offset(int(offset_seconds * SECOND))
        clock.advance(int(advance_seconds * SECOND))
        self._service.wake_all()
        return clock.now()

    def _shape(self, **fields: int) -> Any:
        self._service.shape = dataclasses.replace(self._service.shape, **fields)

    def _stats(self) -> Any:
        return dict(self._service.stats)

    def _play(
        self,
        database: str,
        seed: int,
        steps: int,
        keys: int = 20,
        least: int = 1,
        most: int = 8,
        churn_share: float = 0.3,
    ) -> Any:
        found = self._service.database(database)
        start = max(self._service.clock.now(), found.last)
        commits = play(
            found,
            self._service.clock,
            random.Random(seed),
            steps=steps,
            keys=keys,
            limits=ChurnLimits(least, most),
            churn_share=churn_share,
        )
        self._service.wake_all()
        return {"commits": commits, "start": start, "end": max(self._service.clock.now(), found.last)}

    def _retention(self, database: str, stream: str, seconds: float) -> Any:
        """Override the retention of a stream: the service's shortest is a day."""
        self._service.database(database).streams[stream].retention_override = int(seconds * SECOND)
        self._service.database(database).forget(self._service.clock.now())
        self._service.wake_all()
