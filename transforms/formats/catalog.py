"""The formats by name, as pipelines offer them: the options of each, and the sources that can satisfy it. Pure.

    format = make_format("spanner", "debezium", {"debezium": {"schemas_enable": "true"}}, {"server": "shop"})

The options of a format are the arguments of its class. Names and defaults come from the signature, help texts from the
docstring.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import msgspec

from penstock.errors import UsageError
from penstock.extras import extra_packages
from penstock.options import EMPTY, Argument, arguments_of
from penstock.suggestions import did_you_mean
from penstock.transforms.formats.converter_options import make_converter
from penstock.transforms.formats.formatted import Format

Options = Mapping[str, Any]

_SCALARS = (bool, int, float, str)
"""Types of the options that a text can give; arguments of other types are for programs."""

_CONVERTER_OPTIONS = arguments_of(make_converter)

_PACKAGE = "penstock.transforms.formats"


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """A format that pipelines offer.

    `home` is ``module:class``. `systems` are the sources that can satisfy the format. `inner` is the default of the
    argument `data_format` of a format that wraps another one. `extra` is the extra of the package that it needs.
    `converters` is True if keys and values can also be Avro or Protobuf; see `make_converter`.
    """

    name: str
    summary: str
    home: str
    systems: tuple[str, ...] = ("spanner", "bigtable", "postgres", "ydb")
    inner: str = ""
    extra: str = ""
    converters: bool = False

    def make(self, **arguments: Any) -> Format:
        """Return the format."""
        if self.converters:
            # The options of the converter are flat for users, and one object for the format.
            chosen = {name: arguments.pop(name) for name in _CONVERTER_OPTIONS if name in arguments}
            arguments["converter"] = make_converter(**chosen)
        return self._class()(**arguments)

    def options(self, system: str) -> dict[str, Argument]:
        """Return the options by name. They are empty if the package's extra is not installed."""
        try:
            arguments = arguments_of(self._class())
        # Reached without the extra, for help and descriptions. The error with the name of the extra comes when
        # the format is made.
        except UsageError:
            return {}
        found = {name: each for name, each in arguments.items() if each.choices or each.type in _SCALARS}
        if self.inner:
            # The option comes first: it decides which further options make sense.
            found = {"data_format": arguments["data_format"], **found}
            inner = tuple(name for name, each in formats_of(system).items() if not each.inner)
            described = replace(found["data_format"], type=str, default=self.inner, choices=inner)
            found["data_format"] = described
        return found | _CONVERTER_OPTIONS if self.converters else found

    def _class(self) -> Any:
        module, _, name = self.home.partition(":")
        # The module may be imported only if its extra is there; the context turns the ImportError into the
        # command that installs it.
        with extra_packages(self.extra) if self.extra else nullcontext():
            return getattr(import_module(f"{_PACKAGE}.{module}"), name)


CATALOG = (
    FormatEntry(
        "debezium", "Debezium's records in JSON, Avro or Protobuf", "debezium:DebeziumFormat", converters=True
    ),
    FormatEntry(
        "envelope",
        "events with all their parts in JSON, Avro or Protobuf",
        "event_envelope:EventFormat",
        converters=True,
    ),
    FormatEntry("ydb", "records of a YDB changefeed", "ydb:YdbFormat"),
    FormatEntry("dynamodb", "DynamoDB Streams JSON", "dynamodb:DynamoDbFormat"),
    FormatEntry(
        "cloudevents",
        "CloudEvents around another format",
        "cloudevents:CloudEventsFormat",
        inner="debezium",
        extra="cloudevents",
    ),
    FormatEntry(
        "change_feed",
        "rows of a change feed, as Delta's and Spark's",
        "change_feed:ChangeFeedFormat",
        ("spanner", "postgres", "ydb"),
    ),
    FormatEntry(
        "bigquery",
        "rows of the changelog tables of Google's Spanner template",
        "google_templates:SpannerBigQueryFormat",
        ("spanner",),
    ),
    FormatEntry(
        "bigquery",
        "rows of the change log of Google's Bigtable template",
        "google_templates:BigtableChangeLogFormat",
        ("bigtable",),
    ),
)


def formats_of(system: str) -> dict[str, FormatEntry]:
    """Return the formats that a source can satisfy, by name."""
    return {entry.name: entry for entry in CATALOG if system in entry.systems}


def make_format(system: str, name: str, options: Mapping[str, Options], given: Options) -> Format:
    """Return the format `name` with its options, for the events of a source.

    `options` are by format and option; a value may be the text of a boolean or a number. `given` are values that the
    pipeline knows, such as the name of the database; they replace defaults of arguments that have their names.

    Raises:
        UsageError: an unknown format, option or value; or options of a format that is not used.
    """
    # What remains after `_make` belongs to formats that are not in use: a silent option would surprise its
    # user.
    unused = {each for each, values in options.items() if values}
    made = _make(system, name, options, given, unused)
    if unused:
        raise UsageError(
            f"options of format {', '.join(sorted(unused))} have no effect with format {name}: remove them, or choose "
            "that format"
        )
    return made


def _make(system: str, name: str, options: Mapping[str, Options], given: Options, unused: set[str]) -> Format:
    known = formats_of(system)
    if name not in known:
        raise UsageError(f"format {name!r} does not exist for {system}: use one of {', '.join(known)}")
    unused.discard(name)
    entry, chosen = known[name], options.get(name, {})
    accepted = entry.options(system)
    # Without the extra there are no options to compare with, so names are checked only if they are known.
    if accepted:
        for option in chosen.keys() - accepted.keys():
            raise UsageError(f"format {name} has no option {option!r}{did_you_mean(option, accepted)}")
    # Values of the pipeline first: an option of the user replaces them.
    values = {option: value for option, value in given.items() if option in accepted}
    values |= {option: _read(name, accepted[option], value) for option, value in chosen.items() if accepted}
    # The inner format takes its own options from the same mapping.
    if entry.inner:
        inner = str(values.get("data_format", entry.inner))
        values["data_format"] = _make(system, inner, options, given, unused)
    missing = [option for option, each in accepted.items() if each.default is EMPTY and option not in values]
    if missing:
        raise UsageError(f"format {name} needs the option {missing[0]}")
    return entry.make(**values)


def _read(name: str, option: Argument, value: Any) -> Any:
    """Return the value of an option, from itself or from its text."""
    if option.choices:
        if value not in option.choices:
            raise UsageError(
                f"format {name}: {option.name} {value!r} does not exist: use one of {', '.join(option.choices)}"
            )
        return value
    try:
        # `strict=False` reads the texts of a command line: "true" as a boolean, "5" as a number.
        return msgspec.convert(value, option.type, strict=False)
    except msgspec.ValidationError:
        raise UsageError(
            f"format {name}: {option.name} {value!r} is not of type {option.type.__name__}"
        ) from None
