"""Work that runs to its end, whatever its client does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Unbroken:
    """Calls that change something: broken off, nobody would know whether what they forwarded was done."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._underway: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run `work` to its end even if the client goes away; then nobody hears of its error."""
        task = asyncio.ensure_future(work)
        self._underway.add(task)
        task.add_done_callback(self._settled)
        answer: Awaitable[Answer] = asyncio.shield(task)
        return await answer

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._underway.discard(task)
        if not task.cancelled():
            task.exception()
