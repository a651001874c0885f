"""`FormatEvents`: applies a format to events in a pipeline."""

from __future__ import annotations

from penstock.transforms.element_transform import ElementTransform
from penstock.transforms.formats.formatted import Format, FormattedRecord


class FormatEvents(ElementTransform):
    """Turns events into `FormattedRecord`s, in the order of their events.

        records = events | FormatEvents(DebeziumFormat("shop"))

    An event that the format cannot express raises a ValueError that names the reason and shows no value. With
    `with_exception_handling` such events go to a second output.
    """

    def __init__(self, format: Format) -> None:
        super().__init__(format, FormattedRecord)
