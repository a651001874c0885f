"""Random layout changes at a fixed interval, of one table after the other, from a seed."""

from __future__ import annotations

import asyncio
import random
from itertools import count

from penstock_emulators.bigtable.layout import random_change
from penstock_emulators.bigtable.table import ChangeStream
from penstock_emulators.bigtable.tables import Tables


class Churn:
    """The task that changes layouts; `set` starts it, changes its pace, or stops it."""

    def __init__(self, tables: Tables) -> None:
        """Nothing changes yet."""
        self._tables = tables
        self._task: asyncio.Task[None] | None = None
        self._uneven_us = 0

    def set(self, seconds: float, seed: int, table: str = "") -> None:
        """Change the layout of `table`, or of every table in turn, every `seconds`; 0 stops.

        Each stream notices a change with a delay of up to `seconds`, as with the servers of a cluster. So the next
        change may come before the last parent of a merge has closed. Boundaries are drawn
        from the keys of recent records, so the same seed gives the same changes only for the same writes.
        """
        if seconds < 0:
            raise ValueError(f"a change every {seconds} s; pass 0 to stop, or more")
        if self._task is not None:
            self._task.cancel()
        self._uneven_us = int(seconds * 1e6)
        # Streams that wait for the end of their partition under the old pace must not wait longer.
        for stream in self._streams(""):
            stream.close_unevenly(0, 0)
        self._task = asyncio.ensure_future(self._run(seconds, seed, table)) if seconds else None

    async def _run(self, seconds: float, seed: int, table: str) -> None:
        rng = random.Random(seed)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for turn in count(1):
            # Counted from the start, so that a late turn does not delay all later ones.
            await asyncio.sleep(begun + turn * seconds - loop.time())
            self._change(turn, rng, table)

    def _change(self, turn: int, rng: random.Random, name: str) -> None:
        streams = self._streams(name)
        if streams:
            stream = streams[turn % len(streams)]
            stream.close_unevenly(self._uneven_us, rng.randrange(1 << 32))
            stream.relay(random_change(stream.layout, rng, stream.sampled_keys(rng)))

    def _streams(self, name: str) -> list[ChangeStream]:
        return [
            table.stream
            for table in self._tables.all_streaming()
            if table.stream is not None and name in ("", table.name)
        ]
