"""Shared by the command lines of our servers: options, signals, and how they end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import click

from penstock.emulators.server_process import READY, EmulatorStartError

_WATCH_SECONDS = 0.5
"""Time between two looks at the parent process."""


def port_option(default: int) -> Callable[[Any], Any]:
    """Return the option `--port` of a server that can choose a free port."""
    help = "Port on loopback; 0 is a free one."
    return click.option(
        "--port", type=click.IntRange(0, 65535), default=default, show_default=True, help=help
    )


def parent_option() -> Callable[[Any], Any]:
    """Return the hidden option `--parent`, with which a program that starts the server ties it to its own end."""
    return click.option(
        "--parent", type=int, hidden=True, help="End when this process is no longer the parent."
    )


async def announced(start: Callable[[int], Awaitable[int]], port: int) -> None:
    """Start a server on `port` and print the address that it listens on.

    Raises:
        EmulatorStartError: another process uses the port.
    """
    try:
        bound = await start(port)
    except RuntimeError:  # grpc.aio raises no narrower class for a port in use (grpcio 1.85)
        raise EmulatorStartError(f"port {port} is in use; pass another, or --port 0") from None
    print(f"{READY}localhost:{bound}", flush=True)


def ended_by_signal() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def until_the_end(ended: asyncio.Event, parent: int | None) -> None:
    """Return when `ended` is set, or when `parent`, the process that started this one, has ended."""
    while not ended.is_set():
        if parent and os.getppid() != parent:
            return
        # In Python 3.10 this error of asyncio is not the built-in TimeoutError.
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ended.wait(), _WATCH_SECONDS if parent else None)
