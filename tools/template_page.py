"""Writes docs/templates.md, and the table of arguments on the page of each source and sink, as the code declares them.

    python tools/template_page.py

A test compares the pages with the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.cli.describe import parameter_facts
from penstock.io.bigquery.options import BigQuerySinkOptions
from penstock.io.bigtable.options import BigtableStreamOptions
from penstock.io.bigtable.sink.options import BigtableSinkOptions
from penstock.io.delta.options import DeltaSinkOptions
from penstock.io.files.options import AvroSinkOptions, JsonLinesSinkOptions, ParquetSinkOptions
from penstock.io.iceberg.options import IcebergSinkOptions
from penstock.io.kafka.options import KafkaSinkOptions
from penstock.io.postgres.options import PostgresStreamOptions
from penstock.io.pubsub.options import PubSubSinkOptions
from penstock.io.spanner.options import SpannerStreamOptions
from penstock.io.spanner.sink.options import SpannerSinkOptions
from penstock.io.spark.options import SparkSinkOptions
from penstock.io.sql.options import SqlSinkOptions
from penstock.io.ydb.options import YdbChangefeedOptions
from penstock.options import EMPTY, Options, arguments_of
from penstock.pipelines.event_options import event_arguments
from penstock.pipelines.parameters import parameters_of
from penstock.pipelines.sinks import SINKS
from penstock.pipelines.sources import SOURCES
from penstock.templates.derived import event_parameters
from penstock.templates.parameter import Parameter
from penstock.templates.template import templates

DOCS = Path(__file__).resolve().parent.parent / "docs"
ARGUMENTS: Mapping[tuple[str, str], type[Options]] = {
    ("bigtable.md", "Arguments"): BigtableStreamOptions,
    ("files.md", "Arguments of `WriteToAvro`"): AvroSinkOptions,
    ("files.md", "Arguments of `WriteToJsonLines`"): JsonLinesSinkOptions,
    ("files.md", "Arguments of `WriteToParquet`"): ParquetSinkOptions,
    ("postgres.md", "Arguments"): PostgresStreamOptions,
    ("sinks/bigquery.md", "Arguments"): BigQuerySinkOptions,
    ("sinks/bigtable.md", "Arguments"): BigtableSinkOptions,
    ("sinks/delta.md", "Arguments"): DeltaSinkOptions,
    ("sinks/iceberg.md", "Arguments"): IcebergSinkOptions,
    ("sinks/kafka.md", "Arguments"): KafkaSinkOptions,
    ("sinks/pubsub.md", "Arguments"): PubSubSinkOptions,
    ("sinks/spanner.md", "Arguments"): SpannerSinkOptions,
    ("sinks/spark.md", "Arguments"): SparkSinkOptions,
    ("sinks/sql.md", "Arguments"): SqlSinkOptions,
    ("spanner.md", "Arguments"): SpannerStreamOptions,
    ("ydb.md", "Arguments"): YdbChangefeedOptions,
}
"""The tables of arguments by page and heading, and what declares them."""

_INTRODUCTION = """\
# Templates

A template is a pipeline that is started by its name, without code:

```
penstock init spanner-to-kafka -o job.yaml
penstock validate job.yaml --online
penstock run job.yaml
```

`SOURCE-to-SINK` is the name of every pair. Its parameters are the parameters of its source, of its sink, and those that
choose and change events. A parameter of a sink that a source has too is called `target_…`. Values of secret parameters
are never shown; a reference such as `${env:NAME}` or `${vault:PATH#FIELD}` names a secret without containing it
([secrets.md](secrets.md)). An entry of a mapping is `parameter.entry` on the command line.

`penstock describe NAME` shows the same, `--json-schema` prints a schema of the job file for editors, and
`--flex-metadata` the metadata of a Google flex template. This page is made from the code:
`python tools/template_page.py`.
"""
_PAGES = {
    "avro": "files.md",
    "files": "files.md",
    "parquet": "files.md",
    "postgresql": "sinks/sql.md",
}


def page() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *_overview(), *_sources(), *_sinks(), *_events()])


def _overview() -> Iterator[str]:
    yield "| Source | Sinks |\n|---|---|"
    for source in SOURCES:
        names = [name for name in templates() if name.startswith(f"{source}-to-")]
        yield f"| `{source}` | {', '.join(f'`{name}`' for name in names)} |"
    yield ""


def _sources() -> Iterator[str]:
    for source, kind in SOURCES.items():
        shown = templates()[f"{source}-to-files"].parameters
        yield f"## Source `{source}`: {kind.title}\n"
        yield from (f"- {each}" for each in kind.guarantees)
        yield ""
        own = parameters_of(source, "files").source
        yield from _table({name: each for name, each in shown.items() if name in own})


def _sinks() -> Iterator[str]:
    for sink, kind in SINKS.items():
        own: dict[str, Parameter] = {}
        for source in kind.systems:
            shown = templates()[f"{source}-to-{sink}"].parameters
            taken = parameters_of(source, sink).sink.keys() - own.keys()
            own |= {name: each for name, each in shown.items() if name in taken}
        yield f"## Sink `{sink}`: {kind.title}\n"
        yield f"[Guarantee, types and limits]({_page_of(sink)}).\n"
        yield from (f"- {each}" for each in kind.guarantees)
        yield ""
        yield from _table(own)


def _events() -> Iterator[str]:
    yield "## Events\n"
    yield (
        "Every template has the parameters of this list that fit its source. `format` and the options of formats "
        "belong to files and queues, `lines` and `barrier_seconds` to files; "
        "the default format of queues is debezium.\n"
    )
    yield from _table(_event_parameters())


def _event_parameters() -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for source in ("spanner", *SOURCES):
        found = event_parameters(source, event_arguments(source)) | found
    return {name: found[name] for name in [*event_arguments("spanner"), *found]}


def _page_of(sink: str) -> str:
    return _PAGES.get(sink, f"sinks/{sink}.md")


def _table(parameters: Mapping[str, Parameter], prefix: str = "") -> Iterator[str]:
    if not prefix:
        yield "| Parameter | | |\n|---|---|---|"
    for name, each in parameters.items():
        facts = ", ".join(parameter_facts(each)) + (", secret" if each.secret else "")
        yield f"| `{prefix}{name}` | {_cell(facts)} | {_cell(each.help)} |"
        yield from _table(each.entries or {}, f"{prefix}{name}.")
    if not prefix:
        yield ""


def with_arguments(text: str, heading: str, declared: type[Options]) -> str:
    """Return the text of a page with the table of the arguments that a class declares below a heading."""
    before, line, after = text.partition(f"\n## {heading}\n\n")
    _, _, rest = after.partition("\n\n")
    return f"{before}{line}{argument_table(declared)}\n\n{rest}"


def argument_table(declared: type[Options]) -> str:
    """Return the table of the arguments that a class declares."""
    lines = ["| Argument | Default | Meaning |", "|---|---|---|"]
    for each in sorted(arguments_of(declared).values(), key=lambda each: each.default is not EMPTY):
        default = "required" if each.default is EMPTY else _shown(each.default)
        low, high = each.accepts.minimum, each.accepts.maximum
        limits = "" if low is None or high is None else f" ({low:,.15g} to {high:,.15g})"
        if each.choices:
            limits = f" (one of {', '.join(each.choices)})"
        lines.append(f"| `{each.name}` | {default}{limits} | {_cell(each.help)} |")
    return "\n".join(lines)


def _shown(default: Any) -> str:
    if callable(default):
        return f"`{default.__name__}`"
    if isinstance(default, bool) or not isinstance(default, int | float | str):
        return str(default) if default else "none" if default is not False else "False"
    if isinstance(default, int) and default >= 1 << 20:
        return f"{default >> 20} MiB"
    return f"`{default}`" if isinstance(default, str) else f"{default:,.15g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    (DOCS / "templates.md").write_text(page(), "utf-8")
    for (name, heading), declared in ARGUMENTS.items():
        path = DOCS / name
        path.write_text(with_arguments(path.read_text("utf-8"), heading, declared), "utf-8")
