"""The sources of pipelines: one entry for each. An entry imports its transform, and Beam, when it is asked for it.

The parameters of a source are the options of its transform (`penstock.options`), except for those that are `hidden`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from penstock.io.bigtable.options import BigtableStreamOptions
from penstock.io.postgres.options import PostgresStreamOptions
from penstock.io.spanner.options import SpannerStreamOptions
from penstock.io.ydb.options import YdbChangefeedOptions
from penstock.options import Accepts, Argument, Options, arguments_of, options
from penstock.pipelines.spanner_filters import filtering_after_rows
from penstock.transforms.formats.bigtable_change_log import CHANGE_LOG, ROW, change_log_lines
from penstock.transforms.formats.capture import check_choice
from penstock.transforms.formats.lines import Line
from penstock.transforms.formats.postgres_lines import log_lines
from penstock.transforms.formats.spanner_lines import mod_lines
from penstock.transforms.formats.ydb_lines import changefeed_lines


@options
class LineageOptions(Options):
    """The options of the sink `files` for sources with a lineage of partitions."""

    lineage_log: Annotated[
        str | None, Accepts(pattern=".+", words="a path or a URL", example="/data/lineage")
    ] = None
    """Folder or URL for JSON Lines files with the lineage of the stream's partitions: which began, ended or got keys
    of others, and when. Exactly once, like the output. Default: none."""


@options
class BigtableLineOptions(LineageOptions):
    """The options of the sink `files` for native lines of Bigtable's changes."""

    shape: Literal["change-log", "row"] = "change-log"
    """Shape of a native line: the fields of the change log, or a row whose cells are these fields."""
    base64: bool = False
    """Whether native lines have all row keys, qualifiers and values as base64. Otherwise UTF-8 is written as text and
    only other bytes as base64."""

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, (CHANGE_LOG, ROW))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """One kind of source.

    - `title`: the source in summaries, such as "Spanner changes".
    - `reads`: a sentence that says what is read. `native`: the text that describes a native line.
    - `guarantees`: sentences for the description of a template; the sentences of the sink follow.
    - `options`: the options of the transform. `hidden`: those that are no parameters.
    - `secrets`: options whose values are never shown; a value may be a reference.
    - `transform`: imports and returns the transform.
    - `lines`: a function from a record to its native lines. `line_names`: names of the change stream that it takes.
    - `file_options`: further options of the sink `files` for this source. Apart from `lineage_log`, `lines` takes them.
    - `filter_rows`: returns the transform and the `EventOptions` with filters of the source behind the step
      `MaterializeRows`; None if the source has no filters that hide a part of a row's changes.
    """

    title: str
    reads: str
    native: str
    guarantees: tuple[str, ...]
    options: type[Options]
    hidden: frozenset[str]
    secrets: frozenset[str] = frozenset()
    transform: Callable[[], Callable[..., Any]]
    lines: Callable[..., Iterable[Line]]
    line_names: tuple[str, ...] = ()
    file_options: type[Options] = LineageOptions
    filter_rows: Callable[[Any, Any], tuple[Any, Any]] | None = None

    def arguments(self) -> dict[str, Argument]:
        """Return the arguments of the transform that are parameters."""
        return {name: each for name, each in arguments_of(self.options).items() if name not in self.hidden}


def _spanner() -> Callable[..., Any]:
    from penstock.io.spanner import ReadFromSpannerChangeStream

    return ReadFromSpannerChangeStream


def _bigtable() -> Callable[..., Any]:
    from penstock.io.bigtable import ReadFromBigtableChangeStream

    return ReadFromBigtableChangeStream


def _postgres() -> Callable[..., Any]:
    from penstock.io.postgres import ReadFromPostgresChangeStream

    return ReadFromPostgresChangeStream


def _ydb() -> Callable[..., Any]:
    from penstock.io.ydb import ReadFromYdbChangefeed

    return ReadFromYdbChangefeed


# What concerns one worker process, and values that are not text.
_HIDDEN = frozenset(
    {
        "buffer_bytes", "credentials", "emulator_host", "idle_stream_seconds", "max_concurrent_partitions",
        "signal_kafka",
    }
)  # fmt: skip

SOURCES: Mapping[str, SourceKind] = {
    "bigtable": SourceKind(
        title="Bigtable changes",
        reads="Reads the change stream of a Bigtable table. Its changes have cells, and not rows, so formats and modes "
        "that need whole rows are refused.",
        native="a cell that was set or deleted, with the fields of the change log of Google's change stream "
        "templates, or its row shape",
        guarantees=(
            "Changes of a row are in the order of their commits in each source cluster.",
            "Reading writes nothing to Bigtable and needs no metadata table.",
        ),
        options=BigtableStreamOptions,
        hidden=_HIDDEN | {"api_endpoint", "merge_wait_seconds", "row_range"},
        transform=_bigtable,
        lines=change_log_lines,
        line_names=("instance", "table"),
        file_options=BigtableLineOptions,
    ),
    "postgres": SourceKind(
        title="PostgreSQL changes",
        reads="Reads the changes of a publication through a logical replication slot. Formats that need whole rows are "
        "refused before the start unless all tables have REPLICA IDENTITY FULL.",
        native="a changed row, a truncated table or a logical message, with the values as PostgreSQL sent them",
        guarantees=(
            "The server drops its log only up to a position that is in the checkpoint. Reading writes nothing to the "
            "tables.",
            "With a snapshot, no row follows a change of its key that it does not contain: replaying the changes in "
            "their order gives the tables.",
        ),
        options=PostgresStreamOptions,
        hidden=_HIDDEN,
        secrets=frozenset({"dsn"}),
        transform=_postgres,
        lines=log_lines,
        file_options=Options,
    ),
    "spanner": SourceKind(
        title="Spanner changes",
        reads="Reads a Spanner change stream, of either dialect. Formats that need whole rows are refused before the "
        "start if the change stream does not send them.",
        native="a changed row, with the fields of Spanner's data change record and the row's keys, new values and old "
        "values as Spanner sent them",
        guarantees=("Reading writes nothing to the database and needs no metadata table.",),
        options=SpannerStreamOptions,
        hidden=_HIDDEN,
        transform=_spanner,
        lines=mod_lines,
        filter_rows=filtering_after_rows,
    ),
    "ydb": SourceKind(
        title="YDB changes",
        reads="Reads a changefeed of a YDB table. Formats that need whole rows are refused before the start if the "
        "mode of the changefeed does not give them.",
        native="a record of a changed row or a changed schema, as YDB wrote it",
        guarantees=(
            "Records that the retention period deleted before they were read fail the pipeline; none is skipped "
            "silently.",
            "Reading writes nothing to YDB, except the offsets of the consumer, if one is given. They never run ahead "
            "of the checkpoint.",
        ),
        options=YdbChangefeedOptions,
        hidden=_HIDDEN,
        secrets=frozenset({"password", "token"}),
        transform=_ydb,
        lines=changefeed_lines,
    ),
}
