"""The functions that `providers.yaml` names: each makes a transform from its `config` in Beam YAML.

They take the arguments of Penstock's transforms that YAML can express. As in Beam's own YAML transforms,
`error_handling: {output: NAME}` sends what cannot be processed to the output NAME; here as `ErrorRow`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint

from penstock import transforms as events
from penstock.beam_yaml.rows import (
    ChangeRow,
    ErrorRow,
    RecordRow,
    change_row,
    error_row,
    event_of,
    record_row,
)
from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.transforms.element_transform import ElementTransform

ErrorHandling = Mapping[str, Any] | None


def read_from_spanner_change_stream(
    *,
    project: str,
    instance: str,
    database: str,
    change_stream: str,
    error_handling: ErrorHandling = None,
    **options: Any,
) -> beam.PTransform:
    """Read the changes of a Spanner change stream as `ChangeRow`s."""
    # Imported when it is used: a pipeline over one system does not need the clients of the others.
    from penstock.io.spanner import ReadFromSpannerChangeStream

    source = ReadFromSpannerChangeStream(
        project=project, instance=instance, database=database, change_stream=change_stream, **options
    )
    server = f"{project}/{instance}"
    return _Read(
        source, events.ToChangeEvents(server=server, database=database, stream=change_stream), error_handling
    )


def read_from_bigtable_change_stream(
    *, project: str, instance: str, table: str, error_handling: ErrorHandling = None, **options: Any
) -> beam.PTransform:
    """Read the changes of a Bigtable table as `ChangeRow`s."""
    from penstock.io.bigtable import ReadFromBigtableChangeStream

    source = ReadFromBigtableChangeStream(project=project, instance=instance, table=table, **options)
    return _Read(source, events.ToChangeEvents(server=f"{project}/{instance}", table=table), error_handling)


def read_from_postgres_change_stream(
    *, dsn: str, publication: str, error_handling: ErrorHandling = None, **options: Any
) -> beam.PTransform:
    """Read the changes of a publication of PostgreSQL as `ChangeRow`s."""
    from penstock.io.postgres import ReadFromPostgresChangeStream

    source = ReadFromPostgresChangeStream(dsn=dsn, publication=publication, **options)
    return _Read(source, events.ToChangeEvents(stream=publication), error_handling)


def read_from_ydb_changefeed(
    *,
    endpoint: str,
    database: str,
    table: str,
    changefeed: str,
    error_handling: ErrorHandling = None,
    **options: Any,
) -> beam.PTransform:
    """Read a changefeed of YDB as `ChangeRow`s."""
    from penstock.io.ydb import ReadFromYdbChangefeed

    source = ReadFromYdbChangefeed(
        endpoint=endpoint, database=database, table=table, changefeed=changefeed, **options
    )
    return _Read(source, events.ToChangeEvents(database=database), error_handling)


def filter_events(*, error_handling: ErrorHandling = None, **config: Any) -> beam.PTransform:
    """Keep the events that meet every condition: `FilterEvents`."""
    return _OnEvents(events.FilterEvents(**config), error_handling)


def select_columns(*, error_handling: ErrorHandling = None, **config: Any) -> beam.PTransform:
    """Keep or drop columns: `SelectColumns`."""
    return _OnEvents(events.SelectColumns(**config), error_handling)


def rename_columns(
    *, names: Mapping[str, str], table: Any = "*", error_handling: ErrorHandling = None
) -> beam.PTransform:
    """Rename columns: `RenameColumns`."""
    return _OnEvents(events.RenameColumns(names, table=table), error_handling)


def mask_columns(
    *,
    redact: Iterable[str] = (),
    truncate: Mapping[str, int] | None = None,
    hash: Iterable[str] = (),
    hash_key: str = "",
    table: Any = "*",
    error_handling: ErrorHandling = None,
) -> beam.PTransform:
    """Mask columns: `MaskColumns`.

    `redact` and `hash` name columns, `truncate` maps columns to a number of characters. `hash_key` is the secret of
    `hash`.

    Raises:
        UsageError: `hash` without `hash_key`.
    """
    # A text in YAML is one value, and here each column is one.
    hashed = tuple(hash)
    if hashed and not hash_key:
        raise UsageError(
            "MaskColumns: hash needs a hash_key, or anyone could compute the hashes of likely values"
        )
    masks = dict.fromkeys(redact, events.redacted())
    masks |= {column: events.truncated(length) for column, length in (truncate or {}).items()}
    masks |= {column: events.hashed(hash_key.encode()) for column in hashed}
    return _OnEvents(events.MaskColumns(masks, table=table), error_handling)


def order_by_key(**config: Any) -> beam.PTransform:
    """Put the events of each key into commit order: `OrderByKey`."""
    return _OnEvents(events.OrderByKey(**config), None)


def deduplicate(**config: Any) -> beam.PTransform:
    """Drop repeated deliveries: `Deduplicate`."""
    return _OnEvents(events.Deduplicate(**config), None)


def materialize_rows(**config: Any) -> beam.PTransform:
    """Complete the images of each key: `MaterializeRows`."""
    return _OnEvents(events.MaterializeRows(**config), None)


def flatten_after(
    *,
    columns: Mapping[str, str],
    metadata: Iterable[str] = ("op", "timestamp"),
    prefix: str = "change_",  # a field of a row in Beam must not start with an underscore
    deletes: str = "row",
    error_handling: ErrorHandling = None,
) -> beam.PTransform:
    """Turn events into rows of named and typed columns: `FlattenAfter`. Types are JSON schema's, and bytes.

    Raises:
        UsageError: a type does not exist.
    """
    for column, name in columns.items():
        if name not in _TYPES:
            raise UsageError(f"column {column} has the type {name!r}: use one of {', '.join(_TYPES)}")
    # Names of metadata columns are made here, because their types are declared with them.
    names = {each: f"{prefix}{each}" for each in metadata}
    shown = dict(columns) | {column: _METADATA.get(each, "string") for each, column in names.items()}
    flatten = events.FlattenAfter(metadata=names, deletes=deletes)  # type: ignore[arg-type]
    row_type = RowTypeConstraint.from_fields(
        [(column, _TYPES[name][0] | None) for column, name in shown.items()]
    )
    converters = {column: _TYPES[name][1] for column, name in shown.items()}
    return _OnEvents(flatten, error_handling, _TypedRow(converters), row_type)


def format_events(
    *,
    format: str,
    options: Mapping[str, Any] | None = None,
    system: str = "spanner",
    encoding: str = "json",
    schema_registry: str = "",
    error_handling: ErrorHandling = None,
) -> beam.PTransform:
    """Format events as `RecordRow`s. `options` are the format's; `encoding` is json, avro or protobuf.

    Raises:
        UsageError: an unknown format, option or encoding, or an encoding without `schema_registry`.
    """
    made: Any
    if encoding == "json":
        from penstock.transforms.formats.catalog import make_format

        made = make_format(system, format, {format: options or {}}, {})
    else:
        made = _binary_format(format, options or {}, encoding, schema_registry)
    return _OnEvents(events.FormatEvents(made), error_handling, record_row, RecordRow)


def write_to_json_lines(
    *, output: str, table: str = "", shards: int = 1, roll_seconds: float = 10, roll_bytes: int = 64 << 20
) -> beam.PTransform:
    """Write rows as lines of JSON: records of a format as they are, other rows as objects.

    `table` is the folder; records of a format need none and go to the folder of their topic.
    """
    return _WriteLines(output, table, shards, roll_seconds, roll_bytes)


class _Read(beam.PTransform):  # type: ignore[misc, unused-ignore]
    def __init__(self, source: Any, convert: events.ToChangeEvents, handling: ErrorHandling) -> None:
        super().__init__()
        self._source, self._convert, self._handling = source, convert, handling

    def expand(self, pbegin: Any) -> Any:
        if not self._handling:
            return _as_rows(pbegin | self._source | self._convert, change_row, ChangeRow)
        records, undecodable = pbegin | self._source.with_exception_handling()
        good, bad = records | self._convert.with_exception_handling()
        return _with_errors(_as_rows(good, change_row, ChangeRow), [undecodable, bad], self._handling)


class _OnEvents(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Applies a transform over events to the events in rows."""

    def __init__(
        self,
        transform: Any,
        handling: ErrorHandling,
        to_row: Callable[[Any], Any] = change_row,
        row_type: Any = ChangeRow,
    ) -> None:
        super().__init__()
        self._transform, self._handling, self._to_row, self._row_type = transform, handling, to_row, row_type

    def expand(self, rows: Any) -> Any:
        found = rows | "ToEvents" >> beam.Map(event_of).with_output_types(ChangeEvent)
        if not self._handling:
            return _as_rows(found | self._transform, self._to_row, self._row_type)
        if not isinstance(self._transform, ElementTransform):
            raise UsageError(f"{type(self._transform).__name__} has no error_handling: leave it out")
        good, bad = found | self._transform.with_exception_handling()
        return _with_errors(_as_rows(good, self._to_row, self._row_type), [bad], self._handling)


class _WriteLines(beam.PTransform):  # type: ignore[misc, unused-ignore]
    def __init__(self, output: str, table: str, shards: int, roll_seconds: float, roll_bytes: int) -> None:
        super().__init__()
        self._output, self._table = output, table
        self._options: dict[str, Any] = {
            "shards": shards,
            "roll_seconds": roll_seconds,
            "roll_bytes": roll_bytes,
        }

    def expand(self, rows: Any) -> Any:
        from penstock.io.files import WriteToJsonLines
        from penstock.transforms.formats.lines import Line

        lines = rows | "ToLines" >> beam.FlatMap(_Lines(self._table)).with_output_types(Line)
        key = None if self._options["shards"] == 1 else _line_key
        return lines | WriteToJsonLines(
            self._output, table=_line_table, key=key, format=_line_text, **self._options
        )


class _Lines:
    """Turns a row into a line."""

    def __init__(self, table: str) -> None:
        self._table = table

    def __call__(self, row: Any) -> list[Any]:
        import msgspec

        from penstock.transforms.formats.lines import Line

        fields = row._asdict()
        if fields.keys() == set(RecordRow._fields):
            if fields["value"] is None:
                return []
            return [Line(self._table or fields["topic"], fields["key"] or b"", fields["value"])]
        if not self._table:
            raise UsageError("WriteToJsonLines needs table= for rows that are not records of a format")
        return [Line(self._table, b"", msgspec.json.encode(fields))]


def _line_table(line: Any) -> str:
    return str(line.table)


def _line_key(line: Any) -> Any:
    return line.key


def _line_text(line: Any) -> Any:
    return line.line


class _TypedRow:
    """Turns the dictionary of `FlattenAfter` into a row with all its fields: a column that is absent is None."""

    def __init__(self, converters: Mapping[str, Callable[[Any], Any]]) -> None:
        self._converters = dict(converters)

    def __call__(self, columns: Mapping[str, Any]) -> beam.Row:
        return beam.Row(
            **{
                name: None if columns.get(name) is None else convert(columns[name])
                for name, convert in self._converters.items()
            }
        )


_TYPES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "string": (str, str),
    "integer": (int, int),
    "number": (float, float),
    "boolean": (bool, bool),
    "bytes": (bytes, bytes),
}
_METADATA = {"timestamp": "integer", "order": "integer", "index": "integer", "deleted": "boolean"}


def _binary_format(format: str, options: Mapping[str, Any], encoding: str, url: str) -> Any:
    from penstock.transforms.formats.avro import AvroConverter
    from penstock.transforms.formats.protobuf import ProtobufConverter
    from penstock.transforms.formats.schema_registry import SchemaRegistry

    converters: dict[str, Any] = {"avro": AvroConverter, "protobuf": ProtobufConverter}
    if format != "debezium" or encoding not in converters or not url:
        raise UsageError(
            f"encoding {encoding!r} of format {format}: use json, or avro or protobuf with format debezium and a "
            "schema_registry"
        )
    converter = converters[encoding](SchemaRegistry(url))
    return events.DebeziumFormat(**{"server": "penstock", **options}, converter=converter)


def _as_rows(elements: Any, to_row: Callable[[Any], Any], row_type: Any) -> Any:
    return elements | "ToRows" >> beam.Map(to_row).with_output_types(row_type)


def _with_errors(good: Any, failures: list[Any], handling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs as Beam YAML wants them: by name, errors under the name that the user chose."""
    letters = [
        each | f"DeadLetters{place}" >> events.DeadLetters(with_text=True)
        for place, each in enumerate(failures)
    ]
    errors = tuple(letters) | beam.Flatten() | "ToErrors" >> beam.Map(error_row).with_output_types(ErrorRow)
    return {"good": good, handling["output"]: errors}
