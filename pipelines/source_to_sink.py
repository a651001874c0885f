"""Any source to any sink of `penstock.pipelines.sinks`: one definition for all pairs.

    penstock run spanner-to-delta --set project=… --set uri=/data/lake/{table} --checkpoint-dir …
    python -m penstock.pipelines.source_to_sink spanner-to-delta --project=… --uri=… --checkpoint_dir=…

`spanner_to_delta` and its like are attributes of this module. Their arguments are the source's, the choices
about events, and the sink's. A queue gets records in a format, so its pipelines also have the choices that
concern formats.

Order, repeats, watermark and state: see the sink. Materialized rows keep more state.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import apache_beam as beam

from penstock.errors import UsageError
from penstock.pipelines.event_lines import CheckedWrite, FormatCheck, ToEvents, readable, write_letters
from penstock.pipelines.event_options import (
    RECORD_FORMAT,
    EventOptions,
    choices_for_records,
    choices_for_sinks,
)
from penstock.pipelines.program import run_program
from penstock.pipelines.sinks import SINKS, SinkKind
from penstock.pipelines.sources import SOURCES
from penstock.pipelines.transaction_metadata import (
    WithTransactionMetadata,
    metadata_format,
    refuse_schema_in_topic,
    refuse_snapshots,
)
from penstock.secrets import read_references
from penstock.tables import TableSelection
from penstock.transforms.formats.debezium import DebeziumFormat

WRITE = "Write"
"""The step of the sink."""


@functools.cache
def build_function(source: str, sink: str) -> Callable[..., Any]:
    """Return the build function of a source and a sink. Required arguments come first in its signature."""
    kind, read = SINKS[sink], SOURCES[source]
    of_source = read.parameters()
    of_events = choices_for_records(source) if kind.has_format else choices_for_sinks(source)
    of_sink = kind.arguments()
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *of_source.values(),
        *(
            inspect.Parameter(each.name, keyword, default=each.default, annotation=each.type)
            for each in (*of_events.values(), *of_sink.values())
            if each.name not in of_source
        ),
    ]
    ordered = sorted(parameters, key=lambda each: each.default is not inspect.Parameter.empty)
    pipeline_parameter = inspect.Parameter("pipeline", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    seen = inspect.Signature([pipeline_parameter, *ordered])

    def build(pipeline: beam.Pipeline, *, replay: Any = None, preview: Any = None, **given: Any) -> Any:
        seen.bind(pipeline, **given)  # raises TypeError for an argument that is unknown or missing
        _check_mode(source, kind, given)
        chosen = {name: given[name] for name in of_events if name in given and name not in of_source}
        transform = read.build_function().source(**{name: given[name] for name in of_source if name in given})
        if not kind.has_format:
            options = EventOptions(**chosen, replay=replay, preview=preview)
            transform, options = read.filtering_after_rows(transform, options)
            sink = _sink(kind, given).selecting(_selected_tables(given))
            needs_keys = kind.needs_keys(given.get("mode"))
            return _apply(pipeline, source, transform, options, sink, needs_keys=needs_keys)
        options = EventOptions.of(source, {"format": RECORD_FORMAT, **chosen})
        options = replace(options, replay=replay, preview=preview)
        transform, options = read.filtering_after_rows(transform, options)
        format_ = options.make_format(source, transform.stream)
        metadata = metadata_format(options, format_)
        if metadata is not None:
            refuse_snapshots(options, transform)
            refuse_schema_in_topic(given.get("topic"))
        sink = _sink(kind, given, format=format_)
        if metadata is None:  # whose records belong to no table of the source
            sink = sink.selecting(_selected_tables(given))
        check = FormatCheck(
            options,
            format_,
            source,
            getattr(transform, "capture_type", str),
            getattr(transform, "source_tables", None),
        )
        return _apply(pipeline, source, transform, options, sink, check, metadata)

    build.__name__ = f"{source}_to_{sink}"
    build.__doc__ = f"{read.title} to {kind.title}: the pipeline of the template `{source}-to-{sink}`."
    build.__signature__ = seen  # type: ignore[attr-defined]
    return build


def _sink(kind: SinkKind, given: dict[str, Any], **more: Any) -> Any:
    arguments = {name: given[kind.parameter(name)] for name in kind.names if kind.parameter(name) in given}
    for name in kind.secrets & arguments.keys():
        value = arguments[name]
        if isinstance(value, Mapping):
            arguments[name] = {each: read_references(text) for each, text in value.items()}
        else:
            arguments[name] = read_references(value)
    return kind.load()(**arguments, **more)


def _selected_tables(given: Mapping[str, Any]) -> TableSelection:
    """Return the filters by table. Source and steps apply them, and the sink too: to what it has staged before."""
    return TableSelection(tuple(given.get("tables") or ()), tuple(given.get("without_tables") or ()))


def _check_mode(source: str, kind: SinkKind, given: dict[str, Any]) -> None:
    """Refuse before the start what every event of Bigtable would be refused for."""
    if source == "bigtable" and "mode" in kind.names and given.get("mode") != "log":
        raise UsageError(
            "changes of Bigtable have cells and not rows, so there is no current row to maintain: set mode=log, "
            "which writes every change"
        )


def _apply(
    pipeline: beam.Pipeline,
    system: str,
    source: Any,
    options: EventOptions,
    sink: Any,
    check: FormatCheck | None = None,
    metadata: DebeziumFormat | None = None,
    needs_keys: bool = False,
) -> Any:
    records = pipeline | "ReadChangeStream" >> readable(source, options)
    tables = getattr(source, "source_tables", None)
    to_events = ToEvents(options, system, source.stream, tables, needs_keys=needs_keys)
    events, letters = to_events.events(records)
    if metadata is not None:
        events |= "TransactionMetadata" >> WithTransactionMetadata(metadata)
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


def __getattr__(name: str) -> Callable[..., Any]:
    source, between, sink = name.partition("_to_")
    if between and source in SOURCES and sink in SINKS:
        return build_function(source, sink)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    return run_program(build_function(source, sink), rest)


if __name__ == "__main__":
    # As a script this module is `__main__`, which no worker can import, so the importable module runs.
    from penstock.pipelines import source_to_sink

    sys.exit(source_to_sink.main(sys.argv[1:]))
