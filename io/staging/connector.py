"""`Connector`: opens and checks the connection to a target, so that a target is values and nothing else. Pure.

    connector = Connector(
        KafkaTarget("broker:9092", …),
        sender_name="penstock.io.kafka.sender:KafkaSender",
        preview_name="penstock.io.kafka.preview:written_records",
        extra="kafka",
    )
    connector.open(skip_refused=False).send(delivery, events)

Imports of a sink run one way: `write` imports `target`, `sender` imports `target`, and only `preview` imports `sender`.
So the program that builds a pipeline loads no client of the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from penstock.event.model import ChangeEvent
from penstock.extras import extra_packages
from penstock.io.staging.delivery import Sender, Target
from penstock.io.staging.preview import Written
from penstock.tables import TableSelection


@dataclass(frozen=True, slots=True)
class Connector:
    """The values of a target, and the names of what works with them. A pipeline pickles it.

    Args:
        target: the values. A repr of the connector shows what their repr shows.
        sender_name: ``module:name`` of a class or function (target, skip_refused) that returns a `Sender`.
        preview_name: ``module:name`` of a function (event, target) that returns what the target would get for it.
        extra: the extra of pip with the packages that both modules import.
        marks_complete: whether the target is to say until when it is complete. The sender then has a method
            `mark_complete` (`MarkingSender`).
        mark_seconds: time, in seconds, between two marks, at least; None: the usual one.
        tables_name: ``module:name`` of a class (target, selection, skip_refused, repeat) that returns a
            `penstock.io.staging.table_parking.ParkingTarget`, so that tables can be parked; "": there is none.
    """

    target: Target
    sender_name: str
    preview_name: str
    extra: str
    marks_complete: bool = False
    mark_seconds: float | None = None
    tables_name: str = ""

    @property
    def name(self) -> str:
        """The target in messages, without secrets."""
        return self.target.name

    def check(self) -> None:
        """Check before the start that the target answers and that rights suffice; create the ledger if it is missing.

        Raises:
            MissingExtraError: a package is missing.
            ServiceError: it does not, and how to correct it.
        """
        sender = self.open(skip_refused=False)
        try:
            # The check opens what the pipeline will open, so an error shows before the start.
            sender.check()
        finally:
            sender.close()

    def open(self, *, skip_refused: bool) -> Sender:
        """Return a new connection.

        With `skip_refused` a sender leaves out rows that the target refuses, and reports them in `Sent`. Without it the
        first refused row raises `RefusalError`.
        """
        sender: Sender = self._load(self.sender_name)(self.target, skip_refused)
        return sender

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return what the target would get for one event; see `penstock.io.staging.preview`.

        Raises:
            ValueError: the target cannot hold a value, or cannot express the event.
        """
        written: list[Written] = self._load(self.preview_name)(event, self.target)
        return written

    def tables(self, selection: TableSelection, *, skip_refused: bool, repeat: Callable[[Any], Any]) -> Any:
        """Return what sends each table alone; see `tables_name`. `repeat` repeats work while the target is silent."""
        make = self._load(self.tables_name)
        return make(self.target, selection, skip_refused=skip_refused, repeat=repeat)

    def _load(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        # The extra in the message of an ImportError is the one that the user must install.
        with extra_packages(self.extra):
            return getattr(import_module(module), attribute)
