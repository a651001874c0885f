"""Striped locks over rows: one task at a time holds the stripe of a row. For one event loop.

A write is forwarded and logged under its rows' stripes, so that the log has the order in which the table
applied the changes of each row. A set of stripes is one integer with a bit for each, so that a bulk write takes
all of its rows at once, and no two writes can wait for each other.

A write to a table without a change stream takes a lane instead, and waits for no other write. A change of the table
takes every row and every lane.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from zlib import crc32

STRIPES = 512
LANES = 512
EVERY_ROW = (1 << STRIPES) - 1
EVERYTHING = (1 << STRIPES + LANES) - 1


def stripes_of(keys: Iterable[bytes]) -> int:
    """Return the stripes of the rows with these keys."""
    stripes = 0
    # Two rows may share a stripe: they wait for each other without need, which is rare.
    for key in keys:
        stripes |= 1 << crc32(key) % STRIPES
    return stripes


def lane(number: int) -> int:
    """Return the lane of this number. Lanes are used in turn, so it is free unless all lanes are in use."""
    return 1 << STRIPES + number % LANES


class RowLocks:
    """The stripes that are held, and the waiting tasks. Tasks whose stripes overlap are served in order of arrival."""

    def __init__(self) -> None:
        """Nothing is held."""
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def holding(self, stripes: int) -> AsyncIterator[None]:
        """Hold `stripes` for a block."""
        await self._take(stripes)
        try:
            yield
        finally:
            self._held &= ~stripes
            self._hand_on()

    async def _take(self, stripes: int) -> None:
        # Waiting tasks count as holders: without that, many small writes would starve a bulk write.
        wanted = self._held
        for others, _ in self._waiting:
            wanted |= others
        if not stripes & wanted:
            self._held |= stripes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((stripes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self._give_up(stripes, turn)
            raise

    def _give_up(self, stripes: int, turn: asyncio.Future[None]) -> None:
        if (
            turn.done() and not turn.cancelled()
        ):  # the stripes were given to this task before it was cancelled
            self._held &= ~stripes
        else:
            # It was still in the queue, so it holds nothing.
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
        self._hand_on()

    def _hand_on(self) -> None:
        """Give stripes to each waiting task that needs no stripe of an earlier one."""
        # Invariant: `ahead` has the stripes of all earlier tasks, held or waited for, so overlapping tasks never
        # overtake.
        ahead = self._held
        still: deque[tuple[int, asyncio.Future[None]]] = deque()
        for stripes, turn in self._waiting:
            if stripes & ahead:
                still.append((stripes, turn))
            elif not turn.cancelled():
                self._held |= stripes
                turn.set_result(None)
            ahead |= stripes
        self._waiting = still
