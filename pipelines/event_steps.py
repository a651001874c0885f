"""The transforms that `EventOptions` ask for between source and format, in their order."""

from __future__ import annotations

from functools import partial

import apache_beam as beam

from penstock.errors import UsageError
from penstock.pipelines.event_options import EventOptions, by_table, table_and_column
from penstock.secrets import read_secret
from penstock.transforms import (
    FilterEvents,
    Mask,
    MaskColumns,
    MaterializeRows,
    RenameColumns,
    SelectColumns,
    hashed,
    redacted,
    truncated,
)
from penstock.transforms.columns import checked_key
from penstock.transforms.expression import RowExpression

Steps = list[tuple[str, beam.PTransform]]
"""Labels and transforms."""


def row_steps(options: EventOptions) -> Steps:
    """Return the step that completes rows, if that is wanted. It needs all changes of a row, so it is the first."""
    return [("MaterializeRows", MaterializeRows())] if options.materialize_rows else []


def column_steps(options: EventOptions) -> Steps:
    """Return the steps that filter changes, and choose, mask and rename columns, which keep their names until then.

    Raises:
        UsageError: a choice is malformed.
    """
    steps: Steps = []
    if options.operations or options.without_tags or options.where:
        where = RowExpression(options.where) if options.where else None
        chosen = FilterEvents(ops=options.operations or None, without_tags=options.without_tags, where=where)
        steps.append(("FilterChanges", chosen))
    only = by_table(options.only_columns)
    if "*" in only and len(only) > 1:
        raise UsageError("only_columns: write every column with its table, or none of them")
    steps += [
        (f"OnlyColumns({table})", SelectColumns(only=each, table=table)) for table, each in only.items()
    ]
    for table, each in by_table(options.without_columns).items():
        steps.append((f"WithoutColumns({table})", SelectColumns(without=each, table=table)))
    masks: dict[str, dict[str, Mask]] = {}
    for table, column, kind, length in options.chosen_masks():
        masks.setdefault(table, {})[column] = _mask(kind, length, options.mask_key)
    steps += [(f"MaskColumns({table})", MaskColumns(each, table=table)) for table, each in masks.items()]
    names: dict[str, dict[str, str]] = {}
    for reference, new in options.rename_columns.items():
        table, column = table_and_column(reference)
        names.setdefault(table, {})[column] = new
    return [*steps, *((f"RenameColumns({t})", RenameColumns(each, table=t)) for t, each in names.items())]


def secret_key(reference: str) -> bytes:
    """Return the key of hashes that a reference names.

    Raises:
        UsageError: there is no such secret, or it is too short.
    """
    return checked_key(read_secret(reference).encode())


def _mask(kind: str, length: int, key: str | None) -> Mask:
    match kind:
        case "hash":
            return hashed(partial(secret_key, key or ""))
        case "truncate":
            return truncated(length)
    return redacted()
