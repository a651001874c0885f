"""What a person asks for parked tables, in models of epochs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from penstock.parked import ParkedTable


class ParkedJob(ABC):
    """A job whose `record` is a dataclass with the tables that are parked."""

    record: Any

    @abstractmethod
    def correct_all(self) -> None:
        """Let the target take the changes of all tables."""

    @abstractmethod
    def epoch(self) -> None:
        """Publish, read new changes, and commit."""

    @abstractmethod
    def publish_again(self) -> Any:
        """Publish what the record names."""

    def resume(self, table: ParkedTable) -> None:
        self.replace_parked(table, replace(table, resuming=True))

    def replace_parked(self, table: ParkedTable, *by: ParkedTable) -> None:
        others = (each for each in self.record.parked if each.name != table.name)
        self.record = replace(self.record, parked=(*others, *by))

    def finish(self) -> None:
        """Correct all tables, and resume them until none is parked."""
        self.correct_all()
        for _ in range(500):
            for each in self.record.parked:
                self.resume(each)
            self.epoch()
            if not self.record.parked:
                break
        self.publish_again()
