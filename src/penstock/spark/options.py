"""Options of a Spark data source, which are all texts, as the options of a Beam source. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar, get_origin

from penstock.errors import UsageError
from penstock.options import EMPTY, Accepts, Argument, Options, arguments_of, options
from penstock.secrets import is_reference, read_references
from penstock.suggestions import did_you_mean

OptionsT = TypeVar("OptionsT", bound=Options)
_TRUTH = {"true": True, "false": False}


@options
class TaskOptions(Options):
    """The options that every data source has besides the options of its stream."""

    max_tasks: Annotated[int, Accepts(minimum=1, maximum=10_000)] = 16
    """The most tasks in which one batch is read."""
    schema_changes: Annotated[str, Accepts(choices=("stop", "ignore"))] = "stop"
    """What happens to a change that has a column which the DataFrame does not have: stop ends the query, ignore leaves
    the column out. Only with table."""


@options
class SliceOptions(TaskOptions):
    """The options of a stream that has several tables."""

    table: Annotated[str | None, Accepts(example="Orders")] = None
    """Table whose changes are read, with a column for each of its columns, and ``_change_type``, ``_commit_version``
    and ``_commit_timestamp``. Default: all tables of the stream, one layout for all: ``op``, ``timestamp``, ``key``,
    ``before``, ``after``, ``metadata``."""
    max_slice_seconds: Annotated[float | None, Accepts(minimum=0.1, maximum=604_800)] = None
    """The most time of the stream, in seconds, that one batch covers, so that a backlog is read in several batches.
    Default: up to now. Needs Spark 4.2 or newer."""

    def selected_tables(self, tables: Collection[str]) -> Collection[str]:
        """Return `table` alone, or `tables`.

        Raises:
            UsageError: both are given.
        """
        if self.table is None:
            return tables
        if tables:
            raise UsageError("table and tables are both given: pass table for one table, with its columns")
        return (self.table,)


def read_options(
    kind: type[OptionsT],
    given: Mapping[str, str],
    *,
    name: str,
    left_out: Collection[str] = (),
    dsns: Collection[str] = (),
    secrets: Collection[str] = (),
) -> OptionsT:
    """Return the options `kind` from the texts of a data source.

    Names are compared without case, as Spark does. A list is a JSON array, or texts separated by commas. References to
    secrets (`penstock.secrets`) are read here, so a plan has the references only. `name` of the data
    source and `left_out`, options that it does not have, are for messages. `secrets`: options that must not have a
    password in plain text, because Spark shows options in plans.

    Raises:
        UsageError: an option is unknown, missing or malformed. The message shows no value of an option that has a
            reference.
    """
    arguments = {each: known for each, known in arguments_of(kind).items() if each not in left_out}
    texts = {_spelled(key.lower(), arguments): text for key, text in given.items()}
    for key in texts:
        if key in left_out:
            raise UsageError(f"{name} has no option {key}: {_WHY.get(key, 'only the Beam source has it')}")
        if key not in arguments:
            raise UsageError(
                f"{name} has no option {key!r} (it has {', '.join(sorted(arguments))}){did_you_mean(key, arguments)}"
            )
    missing = [each for each, known in arguments.items() if known.default is EMPTY and each not in texts]
    if missing:
        raise UsageError(f"{name} needs the option{'s' * (len(missing) > 1)} {', '.join(missing)}")
    for key in set(secrets) & texts.keys():
        if not is_reference(texts[key]):
            raise UsageError(
                f"{name}: {key} is in plain text, and Spark shows options in plans: write {key}=${{file:/path}} or "
                f"{key}=${{env:NAME}}, which the driver reads"
            )
    for key in set(dsns) & texts.keys():
        if has_password(texts[key]):
            raise UsageError(
                f"{name}: {key} has a password, and Spark shows options in plans: write password=${{file:/path}} or "
                f"password=${{env:NAME}}, or pass the whole {key} as such a reference, which the driver reads"
            )
    return kind(**{key: _value(arguments[key], text) for key, text in texts.items()})


def _spelled(key: str, arguments: Collection[str]) -> str:
    """Return the name of an option; names of Spark have no underscores, such as maxRowsPerTrigger."""
    return next((each for each in arguments if "_" not in key and each.replace("_", "") == key), key)


def has_password(dsn: str) -> bool:
    """Return whether a connection string of libpq has a password that is no reference."""
    rest = re.sub(r"\$\{[\w-]+:[^}]*\}", "", dsn)
    in_uri = re.match(r"\w+://[^/@:]*:([^/@]*)@", rest)
    found = re.findall(r"(?:^|[\s?&])password\s*=\s*('[^']*'|[^\s&]*)", rest)
    return bool(in_uri and in_uri[1]) or any(each.strip("'") for each in found)


_WHY = {
    "end": "a position has no time before it was read. Stop the query, or use availableNow",
    "credentials": "options are texts. Executors find application default credentials themselves",
    "timestampasof": "only Spanner keeps rows of an earlier time",
    "maxrowspertrigger": "a change stream does not say how many changes it has. Pass max_slice_seconds",
    "maxbytespertrigger": "a change stream does not say how many changes it has. Pass max_slice_seconds",
    "max_slice_seconds": "a position has no time before it was read",
    "snapshot": "read the rows with spark.read and timestampAsOf, then the changes with start at the same time",
}
REFUSED = frozenset(("maxrowspertrigger", "maxbytespertrigger"))
"""Options of other data sources that users look for here."""
SNAPSHOTS = frozenset(
    {"signal_file", "signal_folder", "signal_kafka", "signal_table"}
    | {"snapshot", "chunk_rows", "parallel_tables", "new_tables"}
)
"""Options of snapshots, which only the Beam sources take."""


def _value(argument: Argument, text: str) -> Any:
    """Return the value of an option; ranges are checked where the Beam source checks them."""
    shown = f"{argument.name}={text!r}" if "${" not in text else argument.name
    text = read_references(text)
    if argument.type is bool:
        if text.lower() not in _TRUTH:
            raise UsageError(f"{shown} is not true or false")
        return _TRUTH[text.lower()]
    if argument.type in (int, float):
        try:
            value = argument.type(text)
        except ValueError:
            raise UsageError(f"{shown} is not a {'whole ' * (argument.type is int)}number") from None
        _check_range(argument, value)
        return value
    if argument.type is datetime:
        return text
    origin = get_origin(argument.type)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _texts(shown, text)
    if argument.choices and text not in argument.choices:
        raise UsageError(f"{shown} is not one of {', '.join(map(str, argument.choices))}")
    return text


def _check_range(argument: Argument, value: float) -> None:
    lowest, highest = argument.accepts.minimum, argument.accepts.maximum
    if (lowest is not None and not value >= lowest) or (highest is not None and not value <= highest):
        raise UsageError(
            f"{argument.name}={value!r} is out of range: pass a number from {lowest:,} to {highest:,}"
        )


def _texts(shown: str, text: str) -> list[str]:
    if not text.lstrip().startswith("["):
        return [each.strip() for each in text.split(",") if each.strip()]
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UsageError(f"{shown} is not a JSON array of texts")
    return found
