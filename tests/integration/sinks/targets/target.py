"""What each target of the kill campaigns has: the base classes, and the files that tell when a sink sends."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam

from penstock.emulators.emulator import Emulator
from penstock.event import ChangeEvent
from penstock.io.staging.delivery import Delivery, EventBatch, Sender, Sent, Target
from penstock.io.staging.send_after_commit import SendAfterCommit
from tests.integration.sinks.source import Truth
from tests.oracle.kill import Moment

Options = dict[str, Any]
Refused = dict[str, beam.PCollection[Any]]


class TargetUnderTest:
    """A running target. `folder` is its own folder; `hooks` is where its `write` may create files."""

    outage: ClassVar[str] = ""
    """What `take_down` does; "" if there is nothing that can be down."""

    def __init__(self, folder: Path, hooks: Path) -> None:
        self.folder, self.hooks = folder, hooks
        folder.mkdir()

    def start(self) -> None:
        """Start the server and create what the sink expects."""

    def options(self) -> Options:
        """The arguments of `write`, as JSON."""
        return {}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        """Apply the sink; return its error outputs by name."""
        raise NotImplementedError

    def publishing(self) -> Moment | None:
        """A moment in the middle of a publication of this sink; None: shortly after a commit."""
        return None

    def take_down(self) -> None:
        """Make the target unavailable."""

    def bring_back(self) -> None:
        """End what `take_down` began."""

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

    def take_down(self) -> None:
        os.killpg(self._emulator.process_group, signal.SIGSTOP)

    def bring_back(self) -> None:
        os.killpg(self._emulator.process_group, signal.SIGCONT)

    def stop(self) -> None:
        self._emulator.stop()


@dataclass(frozen=True, slots=True)
class ShowSending:
    """The target of a sink. It creates the file HOOKS/`label`-WRITER-EPOCH when it begins to send a batch."""

    target: Target
    hooks: str
    label: str

    @property
    def name(self) -> str:
        return self.target.name

    def check(self) -> None:
        self.target.check()

    def open(self, *, skip_refused: bool) -> Sender:
        return _ShowingSender(self.target.open(skip_refused=skip_refused), self)


@dataclass(frozen=True, slots=True)
class _ShowingSender:
    sender: Sender
    shows: ShowSending

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        Path(self.shows.hooks, f"{self.shows.label}-{delivery.shard}-{delivery.epoch}").touch()
        return self.sender.send(delivery, events)

    def close(self) -> None:
        self.sender.close()


def show_sending(sink: SendAfterCommit, hooks: str, label: str) -> SendAfterCommit:
    """Return the sink, which shows in the hooks when it sends, and has an output of refused events."""
    # No sink has an argument for this: only a test wants to know when a batch is on its way.
    sink._target = ShowSending(sink._target, hooks, label)
    return sink.with_exception_handling()
