"""Calls that run to their end after the client has disconnected or cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Unbroken:
    """Calls that change data. If one was cancelled, the front would not know whether the backend has applied it."""

    def __init__(self) -> None:
        """No call runs."""
        self._underway: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run `work` to its end even if the client disconnects; its error is dropped then."""
        task = asyncio.ensure_future(work)
        self._underway.add(task)
        task.add_done_callback(self._settled)
        # `shield`: the cancellation of the call does not reach the task.
        answer: Awaitable[Answer] = asyncio.shield(task)
        return await answer

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._underway.discard(task)
        if not task.cancelled():
            # Read, so that asyncio does not warn about an error that no one awaits.
            task.exception()
