"""The options that pipelines offer between source and sink: a format, filters, columns and masks. Pure.

`EventOptions` is the one description of these parameters. Build functions take them through
`penstock.pipelines.parameters.takes`, and templates take names, defaults and help texts from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import UsageError
from penstock.options import Argument, arguments_of
from penstock.transforms.formats.catalog import Options, formats_of, make_format
from penstock.transforms.formats.formatted import Format
from penstock.transforms.formats.lines import LineContent

NATIVE = "native"
RECORD_FORMAT = "debezium"
"""The default format of records in queues."""

# A Bigtable change stream has one table, no tags, and no full rows.
# A YDB changefeed has one table and no tags.
# PostgreSQL's transactions have no tags either.
# Debezium has transaction metadata for PostgreSQL, and not for Spanner.
# A row of Bigtable has no declared columns, and a changefeed of YDB has records of its own for DDL.
# YDB scans its tables itself, so there are no notifications.
# The source of Spanner filters by `mod_types` and `exclude_transaction_tags` itself.
_NOT_FOR = {
    "spanner": ("operations", "without_tags", "transaction_metadata"),
    "bigtable": ("without_tags", "materialize_rows", "transaction_metadata", "schema_events"),
    "postgres": ("without_tags",),
    "ydb": ("without_tags", "transaction_metadata", "schema_events", "notification_log"),
}

GIVEN = {
    "spanner": {"server": "database", "changefeed": "change_stream"},
    "bigtable": {"server": "instance", "changefeed": "table", "instance": "instance"},
    "postgres": {"server": "slot", "changefeed": "publication"},
    "ydb": {"server": "changefeed", "changefeed": "changefeed"},
}
"""Options of formats whose default is a name of the change stream, a parameter of the pipeline."""

SECRETS = frozenset({"mask_key", "registry_login"})


@dataclass(frozen=True, kw_only=True)
class EventOptions:
    """The choices of a user about the events of a pipeline. All but `format`, `notification_log`, `dead_letters` and
    `max_dead_letters` need a format other than native.

    A column is ``Email``, in every table that has it, or ``Orders.Email``; in Bigtable it is ``family:qualifier``.

    Args:
        format: Format of the lines. native: the records as the source sent them.
        lines: Content of a line. values: the value of the record; messages: an object with its topic, key, value,
            headers and timestamp, also for tombstones.
        operations: Operation that is written (CREATE, UPDATE, DELETE, READ); repeat for more. Default: all.
        without_tags: Transaction tag whose changes are left out; repeat for more.
        where: Condition that a row must meet, such as ``State == 'open' and Amount > 100``. Columns have the values
            after the change, of a DELETE those before it.
        only_columns: Column that is written; repeat for more. Key columns are always written. Default: all.
        without_columns: Column that is left out; repeat for more.
        rename_columns: New name of a column.
        mask_columns: How the values of a column are hidden: hash, redact, or truncate:N for the first N characters.
        mask_key: Secret key of the masks hash, at least 16 bytes, as a reference, such as ${env:NAME}.
        materialize_rows: Whether to complete the rows of each change from earlier changes, for formats that need whole
            rows. The state of the pipeline then has one row for each key.
        barrier_seconds: Interval, in seconds, of barriers (`resolved` records) in each shard; format ydb only. 0
            means none.
        transaction_metadata: Whether each transaction has Debezium's records BEGIN and END, in the table `transaction`,
            and each record its place in it; format debezium only. In queues BEGIN and END go to the topic of the
            table. The pipeline keeps each transaction as a whole until the watermark has passed it.
        schema_events: Whether a record tells when the columns of a table have changed, before the first change that has
            them, in every shard; formats change_feed and envelope. Spanner needs a value capture type with whole rows.
        notification_log: Folder or URL for JSON Lines files with notifications of snapshots: which began, ended or
            failed, and how many rows were read. Exactly once, like the output. Default: none.
        dead_letters: Folder for changes that cannot be decoded, converted or formatted. Without it, such a change stops
            the pipeline. Its files contain values of rows.
        max_dead_letters: Number of dead letters at which the pipeline stops, counted since its checkpoint was created;
            without it there is no limit.
    """

    format: str = NATIVE
    lines: LineContent = "values"
    operations: Sequence[str] = ()
    without_tags: Sequence[str] = ()
    where: str | None = None
    only_columns: Sequence[str] = ()
    without_columns: Sequence[str] = ()
    rename_columns: Mapping[str, str] = field(default_factory=dict)
    mask_columns: Mapping[str, str] = field(default_factory=dict)
    mask_key: str | None = None
    materialize_rows: bool = False
    barrier_seconds: float = 0
    transaction_metadata: bool = False
    schema_events: bool = False
    notification_log: str | None = None
    dead_letters: str | None = None
    max_dead_letters: int | None = None
    format_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # These two are no parameters, and their modules import Beam.
    replay: Any = None  # a `Replay`: set by `penstock dead-letters replay`
    preview: Any = None  # a `Preview`: set by `penstock run --limit --print`

    def __post_init__(self) -> None:
        limit = self.max_dead_letters
        if limit is not None and self.dead_letters is None:
            raise UsageError(
                "max_dead_letters needs dead_letters, the folder that keeps the letters below the limit. Without the "
                "folder the first change that cannot be processed stops the pipeline"
            )
        if limit is not None and limit < 1:
            raise UsageError(f"max_dead_letters must be 1 or more, got {limit!r}")

    @classmethod
    def of(cls, system: str, given: Mapping[str, Any]) -> EventOptions:
        """Return the options that a build function got as keyword arguments: options of formats by format.

        Raises:
            UsageError: an option has no effect, because the format is native.
        """
        formats = {name: given[name] for name in formats_of(system) if given.get(name)}
        own = {name: value for name, value in given.items() if name in cls.__dataclass_fields__}
        made = cls(format_options=formats, **own)
        default = cls(
            format=made.format,
            notification_log=made.notification_log,
            dead_letters=made.dead_letters,
            max_dead_letters=made.max_dead_letters,
        )
        others = [*formats, *(name for name in own if own[name] != getattr(default, name))]
        if made.format == NATIVE and others:
            raise UsageError(
                f"{', '.join(others)}: native lines are written as the source sent them; choose a format, such as "
                "format=debezium"
            )
        return made

    def make_format(self, system: str, stream: Any) -> Format:
        """Return the format of the changes of a change stream, whose names are defaults of its options."""
        given = {option: getattr(stream, name) for option, name in GIVEN[system].items()}
        return make_format(system, self.format, self.format_options, given)

    def chosen_masks(self) -> list[tuple[str, str, str, int]]:
        """Return (table pattern, column, kind of mask, length) of each masked column.

        Raises:
            UsageError: a mask that does not exist, or no key for the mask hash.
        """
        return [
            (*table_and_column(column), *self._mask(column, text))
            for column, text in self.mask_columns.items()
        ]

    def _mask(self, column: str, text: str) -> tuple[str, int]:
        kind, colon, length = text.partition(":")
        if kind == "truncate" and length.isdecimal():
            return kind, int(length)
        if colon or kind not in ("hash", "redact"):
            raise UsageError(f"mask {text!r} of {column} does not exist: use hash, redact or truncate:N")
        if kind == "hash" and not self.mask_key:
            raise UsageError(
                "the mask hash needs a secret key: set mask_key to a reference, such as ${env:NAME}"
            )
        return kind, 0


def table_and_column(reference: str) -> tuple[str, str]:
    """Return (table pattern, column) of ``Email``, ``Orders.Email``, ``sales.Orders.Email`` or ``family:qualifier``."""
    if ":" in reference:  # a qualifier of Bigtable may contain points
        return "*", reference
    table, _, column = reference.rpartition(".")
    return table or "*", column


def by_table(references: Iterable[str]) -> dict[str, list[str]]:
    """Return columns by table pattern."""
    tables: dict[str, list[str]] = {}
    for reference in references:
        table, column = table_and_column(reference)
        tables.setdefault(table, []).append(column)
    return tables


def choices_for_sinks(system: str) -> dict[str, Argument]:
    """Return the arguments of `EventOptions` that fit a source and do not concern a format."""
    about_formats = {"format", "lines", "barrier_seconds", "transaction_metadata", "schema_events"}
    about_formats |= formats_of(system).keys()
    return {name: each for name, each in event_arguments(system).items() if name not in about_formats}


def choices_for_records(system: str) -> dict[str, Argument]:
    """Return the arguments of `EventOptions` for a sink whose records have a format: there is no native format."""
    about_files = ("lines", "barrier_seconds")
    found = {name: each for name, each in event_arguments(system).items() if name not in about_files}
    found["format"] = replace(
        found["format"],
        default=RECORD_FORMAT,
        choices=tuple(formats_of(system)),
        help="Format of the records.",
    )
    return found


def event_arguments(system: str) -> dict[str, Argument]:
    """Return the arguments of `EventOptions` that fit a source, and one for the options of each of its formats."""
    left_out = ("format_options", "replay", "preview", *_NOT_FOR.get(system, ()))
    own = {name: each for name, each in arguments_of(EventOptions).items() if name not in left_out}
    formats = formats_of(system)
    own["format"] = replace(own["format"], choices=(NATIVE, *formats))
    for name, entry in formats.items():
        if not entry.options(system):
            continue
        own[name] = Argument(name, Options, {}, (), f"Options of format {name}: {entry.summary}.")
    return own
