"""What every sink under test has: a running target, the pipeline that writes to it, and what the target must have then.

The kill campaigns (`tests/integration/sinks`) and the conformance tests (`tests/conformance/sinks`) use this interface.
In a campaign the sinks run in other processes, which are killed. In a conformance test they run in this process, and
`TargetUnderTest.network` carries their requests.

    target = Sql(folder, hooks, network)
    target.start()                              # once for a server
    target.create("first")                      # once for a test
    refused = target.write(events, **target.options())
    assert target.faults(Truth(end)) == []
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, cast

import apache_beam as beam
import pytest

from penstock.event import ChangeEvent
from penstock.io.staging.connector import Connector
from penstock.io.staging.delivery import Delivery, EventBatch, MarkingSender, Sender, Sent
from penstock.io.staging.send_after_commit import SendAfterCommit
from penstock_emulators.emulator import Emulator
from penstock_emulators.oracle.kill import Moment
from tests.support.sinks.network import Network
from tests.support.sinks.source import WRITERS, Truth, number_at

Options = dict[str, Any]
Refused = dict[str, beam.PCollection[Any]]


class TargetUnderTest:
    """A running target. `folder` is its own folder; `hooks` is where its `write` may create files."""

    outage: ClassVar[str] = ""
    """What `take_down` does; "" if there is nothing that can be down."""
    error_outputs: ClassVar[tuple[str, ...]]
    """The names of the error outputs that `write` returns."""
    marked: ClassVar[str] = ""
    """The output whose target says until when it is complete (`complete`), and has what is `applied`; "": none."""
    waits: ClassVar[bool] = False
    """Whether `log` waits for transactions of processes that were killed."""
    has_ledger: ClassVar[bool] = True
    """Whether the target notices that a copy of a checkpoint writes to it."""

    def __init__(self, folder: Path, hooks: Path, network: Network | None = None) -> None:
        self.folder, self.hooks = folder, hooks
        self.network = network
        """What carries the sink's requests; None in a campaign, whose sinks run in other processes."""
        folder.mkdir()

    def start(self) -> None:
        """Start the server."""

    def create(self, place: str) -> None:
        """Create what the sink expects, in a new place of the server: a database, a topic, a folder."""

    def options(self) -> Options:
        """The arguments of `write` for the place that was created last, as JSON."""
        raise NotImplementedError

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        """Apply the sink; return its error outputs by name, or nothing without error outputs.

        `roll_seconds` may be among the options.
        """
        raise NotImplementedError

    def publishing(self) -> Moment | None:
        """A moment in the middle of a publication of this sink; None: shortly after a commit."""
        return None

    def take_down(self) -> None:
        """Make the target unavailable."""

    def bring_back(self) -> None:
        """End what `take_down` began."""

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        """Let `network` carry the requests of a sink, and shorten its waits, while the patch holds."""

    def wait_for_held(self, patch: pytest.MonkeyPatch) -> None:
        """Let the sink wait as long as a request is held, as a paused process would."""

    def lose_patience(self, patch: pytest.MonkeyPatch) -> None:
        """Let the sink give up a request without an answer soon, because its process has ended for the test."""

    def shrink_requests(self, patch: pytest.MonkeyPatch) -> None:
        """Let an epoch of a few rows need several transactions or requests, if the target has a limit."""

    def complete(self) -> dict[str, datetime]:
        """Return by job until when the target is complete, as it says itself."""
        raise NotImplementedError

    def applied(self) -> dict[str, set[int]]:
        """Return by writer the numbers of the statements whose changes are in the target, or were there before."""
        numbers: dict[str, set[int]] = {writer: set() for writer in WRITERS}
        for owner, _, time in self.log():
            numbers.get(owner, set()).add(number_at(time))
        return numbers

    def log(self) -> list[tuple[str, int, int]]:
        """Return the log of the target: (owner, slot, time of the event in ns), in the order of a consumer."""
        raise NotImplementedError

    def faults(self, truth: Truth) -> list[str]:
        """Compare with the source; return one sentence for each fault."""
        raise NotImplementedError

    def figures(self) -> dict[str, Any]:
        """Figures for the evidence, after `faults`."""
        return {}

    def stop(self) -> None:
        """End the server."""


class EmulatedTarget(TargetUnderTest):
    """A target that is an emulator, which keeps its data in memory: it is down when it does not answer."""

    outage = "the emulator hangs"
    _emulator: Emulator

    def options(self) -> Options:
        host: str = self._emulator.host  # type: ignore[attr-defined]
        return {"emulator_host": host, "hooks": str(self.hooks)}

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        assert self.network is not None
        self.network.channels(patch)

    def take_down(self) -> None:
        os.killpg(self._emulator.process_group, signal.SIGSTOP)

    def bring_back(self) -> None:
        os.killpg(self._emulator.process_group, signal.SIGCONT)

    def stop(self) -> None:
        self._emulator.stop()


@dataclass(frozen=True, slots=True)
class ShowSending:
    """The connector of a sink. It creates the file HOOKS/`label`-WRITER-EPOCH when it begins to send a batch."""

    connector: Connector
    hooks: str
    label: str

    @property
    def name(self) -> str:
        return self.connector.name

    @property
    def marks_complete(self) -> bool:
        return self.connector.marks_complete

    @property
    def mark_seconds(self) -> float | None:
        return self.connector.mark_seconds

    def check(self) -> None:
        self.connector.check()

    def open(self, *, skip_refused: bool) -> Sender:
        return _ShowingSender(self.connector.open(skip_refused=skip_refused), self)


@dataclass(frozen=True, slots=True)
class _ShowingSender:
    sender: Sender
    shows: ShowSending

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        Path(self.shows.hooks, f"{self.shows.label}-{delivery.shard}-{delivery.epoch}").touch()
        return self.sender.send(delivery, events)

    def mark_complete(self, job: str, sink: str, record: int, until_us: int) -> None:
        cast(MarkingSender, self.sender).mark_complete(job, sink, record, until_us)

    def close(self) -> None:
        self.sender.close()


def show_sending(sink: SendAfterCommit, hooks: str, label: str) -> SendAfterCommit:
    """Return the sink, which shows in the hooks when it sends."""
    # No sink has an argument for this: only a test wants to know when a batch is on its way.
    sink._connector = ShowSending(sink._connector, hooks, label)
    return sink


def carry_calls(
    network: Network | None,
    patch: pytest.MonkeyPatch,
    owner: Any,
    names: Iterable[str],
    failure: Callable[[], BaseException],
) -> None:
    """Let the network carry the calls of functions of `owner`, a class or a module, while the patch holds."""
    assert network is not None

    def carried(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            return network.request(lambda: function(*arguments, **options), failure)

        return call

    for name in names:
        patch.setattr(owner, name, carried(getattr(owner, name)))


def apply(
    events: beam.PCollection[ChangeEvent], label: str, sink: Any, error_output: bool
) -> dict[str, beam.PCollection[Any]]:
    """Apply a sink; return its error output by the name `label`, if it has one."""
    if not error_output:
        _ = events | f"To {label}" >> sink
        return {}
    return {label: (events | f"To {label}" >> sink.with_exception_handling())[1]}
