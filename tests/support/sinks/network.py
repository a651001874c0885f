"""The way from a sink to its service, for tests that lose requests: it counts them, drops them, or holds them.

    network = Network()
    port = network.before(5432)     # a proxy for a client that speaks to a port
    network.channels(monkeypatch)   # every channel of gRPC
    network.request(work, failure)  # a call of a client in this process
    network.plan = lost(7)          # what happens to the requests from now on

A proxy sees bytes, so one request of a client may count as several there. A test draws the number of the request that
it disturbs, so the exact count does not matter.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Any, TypeVar

import grpc
import pytest

_Result = TypeVar("_Result")
_PATIENCE_SECONDS = 60.0


class Fate(Enum):
    """What happens to a request."""

    PASS = auto()
    REQUEST_LOST = auto()
    ANSWER_LOST = auto()
    """The service has done what the request asked for, and the client does not learn of it."""


Plan = Callable[[int], Fate]
"""The fate of a request, from its number since the plan began. A plan may block: then the request is held."""


class ProcessKilled(BaseException):
    """The end of the process in which a sink runs, in a test whose sink runs in this process."""


def passing(number: int) -> Fate:
    return Fate.PASS


def lost(first: int, count: int = 1, fate: Fate = Fate.REQUEST_LOST) -> Plan:
    """Return the plan that loses `count` requests, or their answers."""
    return lambda number: fate if first <= number < first + count else Fate.PASS


class Held:
    """The plan that holds one request until `release`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._held, self._released = threading.Event(), threading.Event()
        self.until_released = True
        """Whether nobody has waited so long for the one who holds the request that it was let go."""

    def __call__(self, number: int) -> Fate:
        if number == self._number:
            self._held.set()
            self.until_released = self._released.wait(_PATIENCE_SECONDS)
        return Fate.PASS

    def wait(self) -> bool:
        """Wait until the request is held; False if it did not come."""
        return self._held.wait(_PATIENCE_SECONDS)

    def release(self) -> None:
        self._released.set()


class Network:
    """Carries requests to one service. The default plan lets all of them pass."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plan: Plan = passing
        self._kills = False
        self._proxies: list[_Proxy] = []
        self.requests = 0
        """How many requests came since the plan began."""

    @property
    def plan(self) -> Plan:
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._begin(plan, kills=False)

    def kill_at(self, number: int, fate: Fate) -> None:
        """End the sink's process at a request, before or after the service has done it.

        A client in this process gets `ProcessKilled`. A client behind a proxy gets no answer any more, to any request.
        """

        def killed(asked: int) -> Fate:
            if asked < number:
                return Fate.PASS
            return fate if asked == number else Fate.REQUEST_LOST

        self._begin(killed, kills=True)

    def recover(self) -> None:
        """Let all requests pass from now on."""
        self._begin(passing, kills=False)

    def _begin(self, plan: Plan, *, kills: bool) -> None:
        with self._lock:
            self._plan, self._kills, self.requests = plan, kills, 0

    def fate(self) -> Fate:
        """Return the fate of the next request, perhaps much later."""
        with self._lock:
            number, plan = self.requests, self._plan
            self.requests += 1
        # Outside of the lock: other requests pass while this one is held.
        return plan(number)

    def request(self, work: Callable[[], _Result], failure: Callable[[], BaseException]) -> _Result:
        """Do the work of a request in this process; raise `failure()` in place of an answer."""
        fate = self.fate()
        if fate is Fate.PASS:
            return work()
        if fate is Fate.ANSWER_LOST:
            work()
        raise ProcessKilled if self._kills else failure()

    def before(self, port: int = 0) -> _Proxy:
        """Return a proxy to a port of loopback; the port may be set later."""
        self._proxies.append(_Proxy(self, port))
        return self._proxies[-1]

    def channels(self, patch: pytest.MonkeyPatch) -> None:
        """Carry the calls of all channels of gRPC that are opened while the patch holds."""
        opened = grpc.insecure_channel

        def insecure_channel(*arguments: Any, **options: Any) -> grpc.Channel:
            return grpc.intercept_channel(opened(*arguments, **options), _Interceptor(self))

        patch.setattr(grpc, "insecure_channel", insecure_channel)

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()


class ChannelUnavailable(grpc.RpcError):
    """The error of gRPC for a call without an answer."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "lost by the test"

    def trailing_metadata(self) -> tuple[()]:
        return ()

    initial_metadata = trailing_metadata

    def result(self, timeout: float | None = None) -> Any:
        """Raise the error: gRPC takes an error that an interceptor raises for a finished call."""
        raise self


class _Interceptor(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    def __init__(self, network: Network) -> None:
        self._network = network

    def intercept_unary_unary(self, call: Any, details: Any, request: Any) -> Any:
        def answered() -> Any:
            answer = call(details, request)
            answer.code()  # waits for the answer: a lost one is lost after its effect
            return answer

        return self._network.request(answered, ChannelUnavailable)

    def intercept_unary_stream(self, call: Any, details: Any, request: Any) -> Any:
        return self._network.request(lambda: call(details, request), ChannelUnavailable)


class _Proxy:
    """Passes connections of `port` to `target`. A lost request or answer ends its connection."""

    def __init__(self, network: Network, target: int) -> None:
        self._network, self.target = network, target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="test-proxy", daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for connection in list(self._open):
            _end(connection)

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # A connection counts as a request, so that a service that is down refuses it.
        if self._network.fate() is not Fate.PASS:
            _end(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            _end(client)
            return
        self._open |= {client, server}
        muted, answered = threading.Event(), threading.Event()
        threading.Thread(
            target=self._answer, args=(server, client, muted, answered), name="test-proxy", daemon=True
        ).start()
        with suppress(OSError):
            while data := client.recv(1 << 16):
                fate = self._network.fate()
                if fate is Fate.REQUEST_LOST:
                    break
                if fate is Fate.ANSWER_LOST:
                    muted.set()
                answered.clear()
                server.sendall(data)
                if fate is Fate.ANSWER_LOST:
                    answered.wait(1.0)
                    break
        self._open -= {client, server}
        _end(client)
        _end(server)

    def _answer(
        self, server: socket.socket, client: socket.socket, muted: threading.Event, answered: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if not muted.is_set():
                    client.sendall(data)
                answered.set()
        answered.set()
        _end(client)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
