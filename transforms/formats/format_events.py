"""`FormatEvents`: applies a format to events in a pipeline."""

from __future__ import annotations

from typing import Any

from penstock.transforms.element_transform import ElementTransform
from penstock.transforms.formats.formatted import Format, FormattedRecord


class FormatEvents(ElementTransform):
    """Turns events into `FormattedRecord`s, in the order of their events.

        records = events | FormatEvents(DebeziumFormat("shop"))

    An event that the format cannot express raises a ValueError that names the reason and shows no value. With
    `with_exception_handling` such events go to a second output.
    """

    def __init__(self, format: Format) -> None:
        self._format = format
        super().__init__(format, FormattedRecord)

    def display_data(self) -> dict[str, Any]:
        # The class only: options of a format may hold the address of a schema registry with a password.
        return {"format": type(self._format).__name__}
