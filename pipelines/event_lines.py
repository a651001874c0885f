"""`EventLines`: the records of a source as lines in a format, with the choices of `EventOptions`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import apache_beam as beam

from penstock.datasets import Dataset
from penstock.errors import SeveralProblemsError, UsageError
from penstock.event.model import ChangeEvent, Source
from penstock.event.replica import encode_version
from penstock.event.schema_events import WHOLE_CAPTURES
from penstock.io.files import WriteToJsonLines
from penstock.io.files.names import stable_hash
from penstock.io.files.options import FileOptions
from penstock.io.staging.dead_letter_limit import StopAtLimit
from penstock.io.staging.folder_datasets import folder_dataset
from penstock.io.staging.names import folder_name
from penstock.pipelines.choices_check import (
    Findings,
    check_choices,
    has_choices,
    nan_warnings,
    partial_warnings,
)
from penstock.pipelines.dead_letter_files import WriteDeadLetters
from penstock.pipelines.event_options import EventOptions
from penstock.pipelines.event_steps import column_steps, row_steps, secret_key
from penstock.pipelines.replay import NoRecords
from penstock.pipelines.transaction_metadata import WithTransactionMetadata, metadata_format
from penstock.transforms import (
    AddSchemaEvents,
    Barriers,
    DeadLetters,
    ShardByKey,
    ShardRecord,
    ToChangeEvents,
)
from penstock.transforms.dead_letters import DeadLetter
from penstock.transforms.element_transform import ElementTransform, Whole
from penstock.transforms.formats import debezium_log, debezium_mods
from penstock.transforms.formats.capture import MODES, check_capture
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_log import LogRecordFormat
from penstock.transforms.formats.debezium_mods import ModRecordFormat
from penstock.transforms.formats.formatted import Format
from penstock.transforms.formats.lines import Line, RecordLines, line_runs


class ToEvents:
    """Converts the records of a source to events, and filters and masks them.

    Args:
        options: the user's choices.
        system: spanner, bigtable, postgres or ydb.
        stream: the change stream that is read.
        tables: a function that returns the tables of the source; None: they are not known. It is called before the
            start, and only if a choice names tables or columns, or with `needs_keys`.
        needs_keys: the sink maintains one row for each primary key.
        whole: makes the staged records of the sink from batches of records, where no step needs events.
    """

    def __init__(
        self,
        options: EventOptions,
        system: str,
        stream: Any,
        tables: Callable[[], Any] | None = None,
        *,
        needs_keys: bool = False,
        whole: Whole | None = None,
    ) -> None:
        self._options, self._replay = options, options.replay
        self._steps = [*row_steps(options), *column_steps(options)]
        check = None
        if tables is not None and (needs_keys or has_choices(options)) and options.replay is None:
            check = partial(_choices_of, options, tables, stream, needs_keys)
        self._convert = _CheckedConversion(
            check,
            **names_of_stream(stream),
            table=getattr(stream, "table", ""),
            whole=None if self._steps or options.replay or options.preview else whole,
        )

    @property
    def has_steps(self) -> bool:
        """Whether events are filtered, masked or changed."""
        return bool(self._steps)

    def events(self, records: Any) -> tuple[Any, list[Any]]:
        """Return the events of a `readable` source, and the dead letters so far."""
        records, letters = _divided(records)
        events = self.apply(letters, records, "ToChangeEvents", self._convert)
        for name, transform in self._steps:
            events = self.apply(letters, events, name, transform)
        return events, letters

    def of_record(self, record: Any) -> list[tuple[ChangeEvent, ChangeEvent | None]]:
        """Return the events of a record with whole rows: each before and after the steps; None: it is filtered out."""
        steps = [each for _, each in self._steps if isinstance(each, ElementTransform)]

        def stepped(event: ChangeEvent) -> ChangeEvent | None:
            events = [event]
            for step in steps:
                events = [out for each in events for out in step.outputs(each)]
            return events[0] if events else None

        return [(event, stepped(event)) for event in self._convert.outputs(record)]

    def apply(self, letters: list[Any], events: Any, name: str, transform: Any) -> Any:
        """Apply a step. Elements that it cannot process are added to the dead letters, if the pipeline writes them.

        In a replay, the letters that this step refused enter before it.
        """
        if self._replay is not None:
            events = self._replay.into(events, name)
        if self._options.dead_letters is None or not isinstance(transform, ElementTransform):
            return events | name >> transform
        done, failed = events | name >> transform.with_exception_handling()
        letters.append(failed | f"DeadLetters({name})" >> self.dead_letters(name))
        return done

    def dead_letters(self, name: str) -> DeadLetters:
        """Return the transform of the failures of a step to dead letters."""
        attempt = 1 if self._replay is None else self._replay.attempt
        return DeadLetters(with_text=True, step=name, attempt=attempt)


def names_of_stream(stream: Any) -> dict[str, str]:
    """Return the names in the source of events that records do not have; see `ToChangeEvents`."""
    return {
        "server": f"{stream.project}/{stream.instance}" if hasattr(stream, "project") else "",
        "database": getattr(stream, "database", ""),
        "stream": getattr(stream, "change_stream", getattr(stream, "publication", "")),
    }


class _CheckedConversion(ToChangeEvents):
    """`ToChangeEvents` with a check of the choices about its events."""

    def __init__(self, check: Callable[[], Findings] | None, *, whole: Whole | None, **names: str) -> None:
        super().__init__(**names)
        self._check, self._whole = check, whole

    def check_start(self) -> None:
        """Check that the tables and columns exist that the choices name.

        Not when a pipeline resumes: then a table that was dropped only has a warning.

        Raises:
            UsageError: some do not; the message names them all.
        """
        if self._check is not None and (problems := self._check().problems):
            raise SeveralProblemsError.of([UsageError(problem) for problem in problems])

    def setup_warnings(self) -> list[str]:
        """Return warnings about names of the choices that match nothing."""
        if self._check is None:
            return []
        problems, warnings = self._check()
        return [*problems, *warnings]


def _choices_of(options: EventOptions, tables: Callable[[], Any], stream: Any, needs_keys: bool) -> Findings:
    return check_choices(options, tables(), stream.short_name, needs_keys=needs_keys)


class FormatCheck:
    """Whether a source satisfies a format. `tables`: see `ToEvents`; the other arguments: see `EventLines`.

    Raises:
        UsageError: no setting of the system satisfies the format (Bigtable).
    """

    def __init__(
        self,
        options: EventOptions,
        format_: Format,
        system: str,
        capture: Callable[[], str],
        tables: Callable[[], Any] | None = None,
    ) -> None:
        self._options, self.format, self._capture, self._tables = options, format_, capture, tables
        self._system = system
        if system == "bigtable":  # nothing has to be asked for
            self._check_capture()

    def check(self) -> None:
        """Check before the start that the source satisfies the format, and that secrets and registry can be read.

        Raises:
            UsageError: it cannot; the message names the capture types that can, or the missing secret.
            SchemaRegistryError: the schema registry does not answer, or denies access.
        """
        if self._options.replay is None:  # a replay does not read the source
            self._check_capture()
        if check := getattr(self.format, "check", None):
            check()
        if any(kind == "hash" for _, _, kind, _ in self._options.chosen_masks()):
            secret_key(self._options.mask_key or "")

    def setup_warnings(self) -> list[str]:
        """Return warnings about columns that the format may refuse, and about schemas that change with each record."""
        options, tables = self._options, self._tables
        if options.replay is not None:
            return []
        warnings = []
        if tables is not None and getattr(self.format, "refuses_nan", False):
            warnings += nan_warnings(options, tables())
        has_schema = getattr(self.format, "has_schema", False)
        if self._system == "spanner" and has_schema and not options.materialize_rows:
            warnings += partial_warnings(options, self._capture())
        return warnings

    def _check_capture(self) -> None:
        mode = getattr(self.format, "required_mode", None)
        if self._options.schema_events and self._system == "spanner":
            _check_whole_rows(self._capture())
        if mode and not self._options.materialize_rows:
            try:
                check_capture(mode, self._capture(), modes=getattr(self.format, "modes", MODES))
            except UsageError as error:
                remedy = "; or set materialize_rows=true" if self._capture() else ""
                raise UsageError(f"format {self._options.format}: {error}{remedy}") from None


def _check_whole_rows(capture: str) -> None:
    # Without an answer the capture type is not known: the start goes on, as with `check_capture`.
    if capture and capture not in WHOLE_CAPTURES:
        raise UsageError(
            f"schema_events: records of the capture type {capture} have only the columns that their mutation wrote, so "
            "they do not tell when the columns of a table change. Set value_capture_type of the change stream to "
            f"{' or '.join(WHOLE_CAPTURES)}, or leave schema_events out"
        )


def schema_event_shards(options: EventOptions, format_: Format, shards: int) -> int:
    """Return the shards that get SCHEMA events; 0: there are none. Dead letters that are replayed get none.

    Raises:
        UsageError: they are wanted, and the format has no records for them.
    """
    if not options.schema_events or options.replay is not None:
        return 0
    if not getattr(format_, "has_schema_events", False):
        raise UsageError(
            f"schema_events: format {options.format} has no record for a change of columns. Set format=change_feed, or "
            "format=envelope in JSON; records with schemas tell their columns themselves"
        )
    return shards


class CheckedWrite(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """A sink whose records have a format, with the check of the format before the start."""

    def __init__(self, write: beam.PTransform, check: FormatCheck) -> None:
        super().__init__()
        self._write, self._check = write, check

    def check(self) -> None:
        """See `FormatCheck.check`."""
        self._check.check()

    def setup_warnings(self) -> list[str]:
        """See `FormatCheck.setup_warnings`."""
        return self._check.setup_warnings()

    def expand(self, events: Any) -> Any:
        """Return the outputs of the sink."""
        return events | self._write


class EventLines(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Converts, filters, masks and formats the records of a source; emits `Line`s.

    The source decides order, repeats, watermark and state, unless rows are materialized or barriers added: see
    `MaterializeRows` and `Barriers`. With `dead_letters` it also writes what cannot be decoded, converted or formatted.

    Args:
        options: the user's choices.
        system: spanner, bigtable, postgres or ydb.
        stream: the change stream that is read.
        capture: a function that returns the capture type of the source; it is called before the start, and only if
            the format depends on it.
        shards: number of shards of the sink, for barriers.
        tables: see `ToEvents`.

    Raises:
        UsageError: a choice is malformed, or the source cannot satisfy it.
    """

    def __init__(
        self,
        options: EventOptions,
        system: str,
        stream: Any,
        capture: Callable[[], str],
        shards: int,
        tables: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        self._options, self._shards = options, shards
        self._system, self._stream = system, stream
        self._format = options.make_format(system, stream)
        self._check = FormatCheck(options, self._format, system, capture, tables)
        self._lines = RecordLines(self._format, options.lines)
        self._to_events = ToEvents(options, system, stream, tables)
        if options.barrier_seconds:
            self._lines.barrier("", 0)  # refuses a format without barriers
        self._metadata = metadata_format(options, self._format)
        self._schema_shards = schema_event_shards(options, self._format, shards)

    def check(self) -> None:
        """See `FormatCheck.check`."""
        self._check.check()

    def setup_warnings(self) -> list[str]:
        """See `FormatCheck.setup_warnings`."""
        return self._check.setup_warnings()

    def expand(self, records: Any) -> beam.PCollection[Line]:
        """Apply the steps to the output of a `readable` source; a step that has nothing to do is left out."""
        if (direct := self._direct_lines()) is not None:
            return records | "ToLines" >> self._to_lines(direct)
        events, letters = self._to_events.events(records)
        apply = partial(self._to_events.apply, letters)
        if self._options.barrier_seconds:
            sharded = apply(events, "ShardByKey", ShardByKey(self._shards))
            events = sharded | "Barriers" >> self._barriers()
            lines = apply(events, "ToLines", ElementTransform(partial(_shard_lines, self._lines), Line))
        else:
            if self._metadata is not None:
                events |= "TransactionMetadata" >> WithTransactionMetadata(self._metadata)
            if self._schema_shards:
                events |= "SchemaEvents" >> AddSchemaEvents(shards=self._schema_shards)
            lines = apply(events, "ToLines", self._to_lines(self._lines))
        write_letters(letters, self._options)
        return lines

    def _direct_lines(self) -> RecordLines | None:
        """Return what makes the lines of records without an event in between: the same lines, in less time.

        Nothing may come between source and format, and nothing may ask which of the two steps has failed.
        """
        options, format = self._options, self._format
        asks = options.barrier_seconds or options.dead_letters is not None or options.replay is not None
        asks = asks or options.transaction_metadata
        if asks or self._to_events.has_steps or not isinstance(format, DebeziumFormat):
            return None
        stream, keyed = self._stream, self._shards > 1
        if self._system == "postgres":
            log = LogRecordFormat(format, database=stream.database, stream=stream.publication, keyed=keyed)
            return RecordLines(log, options.lines, table=debezium_log.table_of_record)
        if self._system == "spanner":
            mods = ModRecordFormat(format, **names_of_stream(stream), keyed=keyed)
            return RecordLines(mods, options.lines, table=debezium_mods.table_of_record)
        return None

    def _to_lines(self, lines: RecordLines) -> ElementTransform:
        return ElementTransform(lines, Line, whole=None if self._options.preview else lines.runs)

    def _barriers(self) -> Barriers:
        return Barriers(shards=self._shards, interval_seconds=self._options.barrier_seconds, per_table=True)


class NativeLines(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Applies a function from a record to `Line`s to the output of a `readable` source."""

    def __init__(self, options: EventOptions, to_lines: Callable[[Any], Iterable[Line]]) -> None:
        super().__init__()
        self._options, self._to_lines = options, to_lines

    def expand(self, records: Any) -> beam.PCollection[Line]:
        """Return the lines."""
        records, letters = _divided(records)
        write_letters(letters, self._options)
        whole = None if self._options.preview else partial(line_runs, self._to_lines)
        return records | "Lines" >> ElementTransform(self._to_lines, Line, whole=whole)


def readable(source: Any, options: EventOptions) -> beam.PTransform:
    """Return a source with the logs that are wanted. It emits batches (`penstock.batches`).

    With `dead_letters` its output is the pair (records, records that cannot be decoded).
    """
    if options.replay is not None:
        return NoRecords(divided=options.dead_letters is not None)
    if options.preview is not None:
        source = source.for_preview()
    elif options.notification_log is not None:
        source = source.with_notifications(WriteToJsonLines(options.notification_log, table="notifications"))
    source = source.in_batches()
    return source if options.dead_letters is None else source.with_exception_handling()


def with_lineage_log(source: Any, folder: str | None) -> Any:
    """Return a source that writes its lineage events to JSON Lines files below `folder`; None: no log."""
    return source if folder is None else source.with_lineage(WriteToJsonLines(folder, table="lineage"))


def _divided(records: Any) -> tuple[Any, list[Any]]:
    """Return the records of a `readable` source, and the dead letters of those that cannot be decoded."""
    if not isinstance(records, tuple):
        return records, []
    records, undecodable = records
    return records, [undecodable | "DeadLetters(Read)" >> DeadLetters()]


def write_letters(letters: list[Any], options: EventOptions) -> None:
    """Write dead letters to the folder that the options name, if they name one."""
    if options.dead_letters is not None:
        every = letters | "DeadLetters" >> beam.Flatten()
        if options.preview is not None:
            _ = every | "WriteDeadLetters" >> options.preview.letters(_describe_letter)
            return
        if (limit := options.max_dead_letters) is not None:
            stop = StopAtLimit(limit, DeadLetter, _describe_letter, "dead letters of this pipeline")
            every |= "LimitOfDeadLetters" >> stop
        _ = every | "WriteDeadLetters" >> WriteDeadLetters(options.dead_letters)


def _describe_letter(letter: DeadLetter) -> str:
    place = "no position" if letter.version is None else f"position {encode_version(letter.version)}"
    return f"{place}: {letter.reason}"


class WriteLines(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Writes `Line`s to files of their tables; see `WriteToJsonLines`."""

    def __init__(self, options: EventOptions, files: FileOptions) -> None:
        super().__init__()
        self._preview, self._output = options.preview, files.output
        divided = bool(options.barrier_seconds)
        shard: Callable[[Line], int] | None = None
        if divided:
            shard = attrgetter("shard")
        elif options.schema_events:
            divided, shard = True, partial(_shard_of_line, files.shards)
        self._write = WriteToJsonLines(
            files.output,
            table=attrgetter("table"),
            key=None if divided else attrgetter("table", "key"),
            shard=shard,
            format=attrgetter("line"),
            shards=files.shards,
            roll_seconds=files.roll_seconds,
            mark_complete=files.mark_complete,
        )

    def datasets_written(self, sources: Sequence[Source]) -> list[Dataset]:
        """Return the folder of each table, and the output if no table is known; see `penstock.datasets`."""
        folders = dict.fromkeys(folder_name(each.qualified_table) for each in sources)
        return [folder_dataset(os.fspath(self._output), folder) for folder in folders or [""]]

    def expand(self, lines: beam.PCollection[Line]) -> Any:
        """Return the published files."""
        write = self._write if self._preview is None else self._preview.lines()
        return lines | "Files" >> write


def _shard_of_line(shards: int, line: Line) -> int:
    """Return the shard of a line: of a SCHEMA event its own, otherwise by its key."""
    return stable_hash((line.table, line.key)) % shards if line.shard is None else line.shard


def _shard_lines(lines: RecordLines, pair: tuple[int, ShardRecord]) -> list[Line]:
    shard, record = pair
    if record.event is not None:
        return [line._replace(key=str(shard), shard=shard) for line in lines(record.event)]
    return [
        lines.barrier(record.table, record.timestamp.step * 1_000_000)._replace(key=str(shard), shard=shard)
    ]
