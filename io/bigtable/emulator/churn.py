"""Random layout changes at a steady pace: one table after the other, from a seed."""

from __future__ import annotations

import asyncio
import random
from itertools import count

from penstock.io.bigtable.emulator.layout import random_change
from penstock.io.bigtable.emulator.tables import Tables


class Churn:
    """The task that changes layouts; `set` starts it, changes its pace, or stops it."""

    def __init__(self, tables: Tables) -> None:
        """Nothing changes yet."""
        self._tables = tables
        self._task: asyncio.Task[None] | None = None

    def set(self, seconds: float, seed: int, table: str = "") -> None:
        """Change the layout of `table`, or of every table in turn, every `seconds`; 0 stops.

        Boundaries are drawn from the keys of recent records, so the same seed gives the same changes only
        for the same writes.
        """
        if seconds < 0:
            raise ValueError(f"a change every {seconds} s; pass 0 to stop, or more")
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.ensure_future(self._run(seconds, seed, table)) if seconds else None

    async def _run(self, seconds: float, seed: int, table: str) -> None:
        rng = random.Random(seed)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for turn in count(1):
            await asyncio.sleep(begun + turn * seconds - loop.time())
            self._change(turn, rng, table)

    def _change(self, turn: int, rng: random.Random, name: str) -> None:
        tables = [table for table in self._tables.all_streaming() if name in ("", table.name)]
        if not tables:
            return
        stream = tables[turn % len(tables)].stream
        assert stream is not None
        stream.relay(random_change(stream.layout, rng, stream.sampled_keys(rng)))
