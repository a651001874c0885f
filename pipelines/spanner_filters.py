"""Filters of Spanner's source in pipelines that complete rows. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.event import Op
from penstock.io.spanner.events import OPS
from penstock.io.spanner.filter import Selection
from penstock.pipelines.event_options import EventOptions


def filtering_after_rows(source: Any, events: EventOptions) -> tuple[Any, EventOptions]:
    """Move the filters `mod_types` and `exclude_transaction_tags` from the source to the step after `MaterializeRows`.

    That step completes a row from all of its earlier changes, also from those that are not written.
    """
    selection = source.selection
    operations = [OPS[mod_type].value for mod_type in sorted(selection.mod_types)]
    if operations:
        operations.append(Op.READ.value)  # mod_types does not concern the rows of a snapshot
    later = replace(events, operations=operations, without_tags=sorted(selection.excluded_tags))
    return source.with_selection(Selection(selection.tables)), later
