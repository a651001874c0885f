"""Every pipeline: any source of `SOURCES` to any sink of `SINKS`.

    penstock run spanner-to-delta --set project=… --set uri=/data/lake/{table} --checkpoint-dir …
    python -m penstock.pipelines.source_to_sink spanner-to-delta --project=… --uri=… --checkpoint_dir=…

A pipeline has the parameters of its source, the choices about events, and the parameters of its sink. Queues get
records in a format, so their pipelines also have the choices that concern formats; so do files, whose lines are native
without a format.

Order, repeats and watermark: see the transform of the sink. It also says which state
grows; materialized rows and barriers keep more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import apache_beam as beam

from penstock.errors import UsageError
from penstock.io.columnar.write_checked import WriteCheckedRows
from penstock.io.files.options import FileOptions
from penstock.io.staging.send_after_commit import SendAfterCommit
from penstock.options import Options
from penstock.pipelines.event_lines import (
    CheckedWrite,
    EventLines,
    FormatCheck,
    NativeLines,
    ToEvents,
    WriteLines,
    readable,
    schema_event_shards,
    with_lineage_log,
    write_letters,
)
from penstock.pipelines.event_options import NATIVE, RECORD_FORMAT, EventOptions
from penstock.pipelines.parameters import parameters_of
from penstock.pipelines.program import run_program
from penstock.pipelines.sinks import SINKS, SinkKind
from penstock.pipelines.sources import SOURCES, SourceKind
from penstock.pipelines.transaction_metadata import (
    WithTransactionMetadata,
    metadata_format,
    refuse_schema_in_topic,
    refuse_snapshots,
)
from penstock.secrets import read_references
from penstock.tables import TableSelection
from penstock.transforms import AddSchemaEvents
from penstock.transforms.element_transform import Whole
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_queue import LogQueueRecords

WRITE = "Write"
"""The step of the sink."""


def build(
    pipeline: beam.Pipeline,
    source: str,
    sink: str,
    choices: Mapping[str, Any],
    *,
    replay: Any = None,
    preview: Any = None,
) -> Any:
    """Apply the pipeline of the template `SOURCE-to-SINK` to `pipeline`; return what its sink returns.

    Args:
        pipeline: the pipeline of Beam.
        source: the name of a source, such as ``spanner``.
        sink: the name of a sink, such as ``delta``.
        choices: values of the parameters, by their names. Times are RFC 3339 in UTC.
        replay: dead letters that enter again in place of the source; see `penstock.pipelines.replay`.
        preview: shows what the sink would write; see `penstock.pipelines.preview`.

    Raises:
        TypeError: a parameter is unknown or missing.
        UsageError: a value is malformed or out of range; the message names the parameter.
    """
    read, write = SOURCES[source], SINKS[sink]
    of_source, of_events, of_sink = parameters_of(source, sink).divided(choices)
    _check_mode(source, write, of_sink)
    transform = read.transform()(**_without_references(of_source))
    if write.takes == "events":
        options = EventOptions(**of_events)
    elif write.takes == "records":
        options = EventOptions.of(source, {"format": RECORD_FORMAT, **of_events})
    else:
        options = EventOptions.of(source, of_events)
    options = replace(options, replay=replay, preview=preview)
    if read.filter_rows is not None and options.materialize_rows:
        transform, options = read.filter_rows(transform, options)
    refuse_snapshots(options, transform)
    if write.takes == "lines":
        return _write_lines(pipeline, source, transform, options, of_sink)
    if write.takes == "records":
        return _write_records(
            pipeline, source, transform, options, write, of_sink, TableSelection.of(choices)
        )
    # Source and steps apply the filters by table, and the sink too: to what it has staged before.
    target = _target(write, of_sink).selecting(TableSelection.of(choices))
    # A sink of tables. Other names of columns are known with the first events only.
    reads = getattr(transform, "tables_read", None)
    if isinstance(target, WriteCheckedRows) and reads is not None and not options.rename_columns:
        target = target.reading(reads)
    needs_keys = write.needs_keys(of_sink.get("mode"))
    return _write_events(pipeline, source, transform, options, target, needs_keys=needs_keys)


def endpoints(source: str, sink: str, choices: Mapping[str, Any]) -> tuple[Any, ToEvents, Any]:
    """Return the transform of the source, the conversion to events and the transform of the sink; see `build`.

    For a sink of lines the options of its files are in place of the transform. Nothing is applied to a pipeline.
    """
    kind = SINKS[sink]
    of_source, of_events, of_sink = parameters_of(source, sink).divided(choices)
    transform = SOURCES[source].transform()(**_without_references(of_source))
    if kind.takes == "lines":
        options = EventOptions.of(source, of_events)
        files, _ = _file_options(SOURCES[source], of_sink)
        return transform, ToEvents(options, source, transform.stream), files
    options = EventOptions(**of_events)
    return transform, ToEvents(options, source, transform.stream), _target(kind, of_sink)


def _file_options(kind: SourceKind, given: Mapping[str, Any]) -> tuple[FileOptions, Options]:
    """Return the options of files of lines, and those for native lines of a source."""
    names = FileOptions.__dataclass_fields__
    files = FileOptions(**{name: value for name, value in given.items() if name in names})
    return files, kind.file_options(**{name: value for name, value in given.items() if name not in names})


def _target(kind: SinkKind, given: Mapping[str, Any], **more: Any) -> Any:
    """Return the transform of a sink. References to secrets are read."""
    names = {kind.parameter(name): name for name in kind.arguments()}
    arguments = {names[parameter]: value for parameter, value in given.items()}
    secrets = {name: arguments[name] for name in kind.secrets & arguments.keys()}
    return kind.transform()(**{**arguments, **_without_references(secrets)}, **more)


def _without_references(value: Any) -> Any:
    """Return a value, or a mapping of values, with what references to secrets stand for."""
    if isinstance(value, Mapping):
        return {name: _without_references(each) for name, each in value.items()}
    return read_references(value) if isinstance(value, str) else value


def _asked(transform: Any) -> tuple[Any, Any]:
    """Return the functions that ask a source for its capture type and its tables; Bigtable has neither."""
    return getattr(transform, "capture_type", str), getattr(transform, "source_tables", None)


def _check_mode(source: str, kind: SinkKind, given: Mapping[str, Any]) -> None:
    """Refuse before the start what every event of Bigtable would be refused for."""
    if source == "bigtable" and kind.is_replica and given.get("mode") != "log":
        raise UsageError(
            "changes of Bigtable have cells and not rows, so there is no current row to maintain: set mode=log, "
            "which writes every change"
        )
    if source == "bigtable" and given.get("layout") == "table":
        raise UsageError(
            "changes of Bigtable have cells and not rows, so a change feed cannot show them: leave layout=table out"
        )


def _write_lines(
    pipeline: beam.Pipeline, system: str, source: Any, options: EventOptions, given: Mapping[str, Any]
) -> Any:
    """Apply source, conversion to lines, and files; return the published files."""
    kind = SOURCES[system]
    files, native = _file_options(kind, given)
    own = dict(vars(native))
    lineage_log = own.pop("lineage_log", None)
    to_lines: beam.PTransform
    if options.format == NATIVE:
        own |= {name: getattr(source.stream, name) for name in kind.line_names}
        to_lines = NativeLines(options, partial(kind.lines, **own) if own else kind.lines)
    elif chosen := [name for name, value in own.items() if value != getattr(kind.file_options, name)]:
        raise UsageError(f"{', '.join(chosen)}: for native lines only. Leave it out, or leave out format")
    else:
        capture, tables = _asked(source)
        to_lines = EventLines(options, system, source.stream, capture, files.shards, tables)
    records = pipeline | "ReadChangeStream" >> readable(with_lineage_log(source, lineage_log), options)
    write = WriteLines(options, files)
    return records | "ToLines" >> to_lines | "WriteFiles" >> write


def _write_records(
    pipeline: beam.Pipeline,
    system: str,
    source: Any,
    options: EventOptions,
    kind: SinkKind,
    given: Mapping[str, Any],
    selection: TableSelection,
) -> Any:
    """Apply source, conversion to events, and a sink whose records have a format; return what the sink returns."""
    format = options.make_format(system, source.stream)
    metadata = metadata_format(options, format)
    sink = _target(kind, given, format=format)
    if metadata is None:
        sink = sink.selecting(selection)
    else:  # whose records belong to no table of the source
        refuse_schema_in_topic(given.get("topic"))
    check = FormatCheck(options, format, system, *_asked(source))
    shards = schema_event_shards(options, format, sink.queue.shards)
    return _write_events(pipeline, system, source, options, sink, check, metadata, schema_shards=shards)


def _write_events(
    pipeline: beam.Pipeline,
    system: str,
    source: Any,
    options: EventOptions,
    sink: Any,
    check: FormatCheck | None = None,
    metadata: DebeziumFormat | None = None,
    needs_keys: bool = False,
    schema_shards: int = 0,
) -> Any:
    """Apply source, conversion to events, and a sink of events or records; return what the sink returns.

    `schema_shards`: see `schema_event_shards`.
    """
    records = pipeline | "ReadChangeStream" >> readable(source, options)
    _, tables = _asked(source)
    # Placed events are formatted in another way.
    whole = _without_events(system, source.stream, sink, options) if metadata is None else None
    to_events = ToEvents(options, system, source.stream, tables, needs_keys=needs_keys, whole=whole)
    events, letters = to_events.events(records)
    if metadata is not None:
        events |= "TransactionMetadata" >> WithTransactionMetadata(metadata)
    if schema_shards:
        events |= "SchemaEvents" >> AddSchemaEvents(shards=schema_shards)
    if options.replay is not None:
        events = options.replay.into(events, WRITE)
    write = sink if options.dead_letters is None else sink.with_exception_handling()
    if options.preview is not None:
        format = None if check is None else check.format
        write = options.preview.write(sink, format, refuses=options.dead_letters is not None)
    if check is not None:
        write = CheckedWrite(write, check)
    if options.preview is not None:
        write_letters(letters, options)
        return events | WRITE >> write
    if options.dead_letters is None:
        return events | WRITE >> write
    written, refused = events | WRITE >> write
    write_letters([*letters, refused | "DeadLetters(Write)" >> to_events.dead_letters(WRITE)], options)
    return written


def _without_events(system: str, stream: Any, sink: Any, options: EventOptions) -> Whole | None:
    """Return what makes the staged records of a sink from the records of a source: the same, in less time."""
    if system != "postgres":
        return None
    names = {"database": stream.database, "stream": stream.publication}
    if isinstance(sink, WriteCheckedRows) and sink.rows is not None and sink.rows.rows_bucket is not None:
        from penstock.io.postgres.arrow_runs import LogRows  # needs pyarrow, which the sink has asked for

        return LogRows(sink.rows.rows_bucket, whole=sink.rows.whole, **names)
    if isinstance(sink, SendAfterCommit):
        queue = sink.queue
        if queue is not None and isinstance(queue.format, DebeziumFormat):
            refuses = options.dead_letters is not None
            return LogQueueRecords(
                queue.format, shards=queue.shards, target=queue.name, refuses=refuses, **names
            )
    return None


def main(arguments: list[str]) -> int:
    """Run the pipeline that the first argument names, such as ``spanner-to-delta``; the others are its flags."""
    name, *rest = arguments or ["--help"]
    source, _, sink = name.partition("-to-")
    if source not in SOURCES or sink not in SINKS:
        names = ", ".join(f"{each}-to-SINK" for each in SOURCES)
        print(
            f"usage: source_to_sink NAME [flags]; NAME is {names}; SINK is {', '.join(SINKS)}",
            file=sys.stderr,
        )
        return 2

    def apply(pipeline: beam.Pipeline, **choices: Any) -> None:
        build(pipeline, source, sink, choices)

    return run_program(apply, rest, parameters_of(source, sink).every)


if __name__ == "__main__":
    # As a script this module is `__main__`, which no worker can import, so the importable module runs.
    from penstock.pipelines import source_to_sink

    sys.exit(source_to_sink.main(sys.argv[1:]))
