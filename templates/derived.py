"""The parameters of templates, derived from the options of source, events, formats and sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, get_origin

from penstock.options import EMPTY, Argument
from penstock.pipelines.event_options import GIVEN, SECRETS
from penstock.pipelines.parameters import parameters_of
from penstock.pipelines.sinks import SINKS
from penstock.pipelines.sources import SOURCES
from penstock.templates.parameter import Kind, Parameter
from penstock.transforms.formats.catalog import formats_of

_KINDS: dict[Any, Kind] = {datetime: "timestamp", bool: "boolean", int: "integer", float: "number"}

_EXAMPLES = {
    "tables": "Orders",
    "without_tables": "audit_*",
    "operations": "UPDATE",
    "where": "op != 'DELETE'",
    "only_columns": "Orders.State",
    "without_columns": "Note",
    "rename_columns": "State=state",
    "mask_columns": "Email=hash",
    "mask_key": "${env:MASK_KEY}",
    "registry_url": "http://registry:8081",
    "registry_login": "${env:REGISTRY_LOGIN}",
    "notification_log": "/data/notifications",
    "dead_letters": "/data/dead-letters",
    "max_dead_letters": "1000",
}
# PostgreSQL folds names to lower case and always has a schema.
_EXAMPLES_OF = {
    "postgres": {
        "without_tables": "public.audit_*",
        "only_columns": "public.orders.state",
        "without_columns": "note",
        "rename_columns": "state=status",
        "mask_columns": "public.customers.email=hash",
    }
}


def parameters_of_pair(source: str, sink: str) -> dict[str, Parameter]:
    """Return the parameters of the pipeline from a source to a sink; required ones come first."""
    read, write = SOURCES[source], SINKS[sink]
    taken = parameters_of(source, sink)
    argument_of = {write.parameter(name): name for name in write.arguments()}
    known = {
        **{name: _parameter(each, secret=name in read.secrets) for name, each in taken.source.items()},
        **{
            name: _parameter(each, secret=argument_of.get(name) in write.secrets)
            for name, each in taken.sink.items()
        },
        **event_parameters(source, taken.events),
    }
    return {name: known[name] for name in taken.every}


def event_parameters(system: str, choices: Mapping[str, Argument]) -> dict[str, Parameter]:
    """Return the parameters of choices about events of a source. The options of a format are entries of its name."""
    formats = formats_of(system)
    found = {}
    for name, each in choices.items():
        example = _EXAMPLES_OF.get(system, {}).get(name)
        found[name] = _parameter(each, example=example, secret=name in SECRETS)
        if name in formats:
            entries = {
                option: _parameter(entry, GIVEN[system].get(option), secret=option in SECRETS)
                for option, entry in formats[name].options(system).items()
            }
            found[name] = found[name].model_copy(update={"entries": entries})
    return found


def _parameter(
    argument: Argument, given: str | None = None, *, example: str | None = None, secret: bool
) -> Parameter:
    """Return the parameter of an argument; `given` is the parameter that is its default."""
    accepts = argument.accepts
    default = None if argument.default in (EMPTY, None, "") or not _is_scalar(argument) else argument.default
    help_ = argument.help or f"The option {argument.name}."
    return Parameter(
        type=_KINDS.get(argument.type, "string"),
        help=f"{help_} Default: the {given.replace('_', ' ')}." if given else help_,
        required=argument.default is EMPTY and given is None,
        default=None if given else default,
        example=example or accepts.example or _EXAMPLES.get(argument.name),
        pattern=accepts.pattern,
        pattern_help=accepts.words,
        minimum=accepts.minimum,
        maximum=accepts.maximum,
        choices=argument.choices,
        repeated=get_origin(argument.type) in (Iterable, Sequence),
        mapping=get_origin(argument.type) is Mapping,
        secret=secret,
    )


def _is_scalar(argument: Argument) -> bool:
    return isinstance(argument.default, str | bool | int | float)
