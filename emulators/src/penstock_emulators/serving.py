"""How a command runs a service: options, signals, the address that it prints, and its errors."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import click

from penstock.errors import ServiceError
from penstock.extras import MissingExtraError, extra_packages
from penstock_emulators.server_process import READY, EmulatorStartError


class Server(Protocol):
    """A gRPC server on loopback."""

    async def start(self, port: int) -> int:
        """Listen on `port` (0: a free one) and return the port."""

    async def stop(self) -> None:
        """Break off all calls and stop listening."""


def server_options(default_port: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that adds `--port`."""
    return click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=default_port,
        show_default=True,
        help="Port on loopback; 0 is a free one.",
    )


def run(service: Coroutine[Any, Any, None], *extras: str) -> None:
    """Run a service to its end. An error becomes one line; `extras` bring the packages that the service needs."""
    try:
        with extra_packages(*extras):
            asyncio.run(service)
    except ServiceError as error:
        raise click.ClickException(str(error)) from None
    except MissingExtraError as error:
        raise _MissingPackageError(str(error)) from None


class _MissingPackageError(click.ClickException):
    exit_code = 2


async def serve(server: Server, port: int, ended: asyncio.Event) -> None:
    """Start a server, print its address, and stop the server when `ended` is set.

    Raises:
        EmulatorStartError: another process uses the port.
    """
    try:
        bound = await server.start(port)
    except RuntimeError:  # grpc.aio raises no narrower class for a port in use (grpcio 1.85)
        raise EmulatorStartError(f"port {port} is in use; pass another, or --port 0") from None
    print(f"{READY}localhost:{bound}", flush=True)
    _freeze_garbage()
    await ended.wait()
    await server.stop()


def _freeze_garbage() -> None:
    """Keep the collector away from the loaded modules."""
    # A service's log grows by millions of live objects: frequent collections would walk over them and find nothing.
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def ended_by_signal() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended
