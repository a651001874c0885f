"""Parameters that templates take from code: the choices about events, the options of each format, and sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_origin

from penstock.options import EMPTY, Argument
from penstock.pipelines.event_options import (
    GIVEN,
    SECRETS,
    choices_for_records,
    choices_for_sinks,
    event_arguments,
)
from penstock.pipelines.sinks import SinkKind
from penstock.templates.parameter import Kind, Parameter
from penstock.transforms.formats.catalog import formats_of

_KINDS: dict[Any, Kind] = {bool: "boolean", int: "integer", float: "number"}

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


def event_parameters(system: str) -> dict[str, Parameter]:
    """Return the parameters of `EventOptions` for a source, and one mapping for the options of each format."""
    parameters = {name: _parameter(each, system=system) for name, each in event_arguments(system).items()}
    given = GIVEN[system]
    for name, entry in formats_of(system).items():
        if name not in parameters:
            continue
        entries = {
            option: _parameter(each, given.get(option)) for option, each in entry.options(system).items()
        }
        parameters[name] = parameters[name].model_copy(update={"entries": entries})
    return parameters


def sink_parameters(kind: SinkKind) -> dict[str, Parameter]:
    """Return the parameters of a sink, from its transform's signature and docstring."""
    argument_of = {kind.parameter(name): name for name in kind.names}
    return {
        # The parameter has the name for users; the facts are found by the name of the argument.
        name: _parameter(each).model_copy(
            update={
                "required": each.default is EMPTY,
                "example": kind.examples.get(argument_of[name]),
                "secret": argument_of[name] in kind.secrets,
            }
        )
        for name, each in kind.arguments().items()
    }


def record_parameters(system: str) -> dict[str, Parameter]:
    """Return the parameters of the choices about events for a sink whose records have a format."""
    known = event_parameters(system)
    chosen = choices_for_records(system)
    return {name: known[name] for name in chosen} | {"format": _parameter(chosen["format"])}


def choice_parameters(system: str) -> dict[str, Parameter]:
    """Return the parameters of the choices about events that do not concern a format."""
    return {name: _parameter(each, system=system) for name, each in choices_for_sinks(system).items()}


def _parameter(argument: Argument, given: str | None = None, system: str = "") -> Parameter:
    """Return the parameter of an argument; `given` is the parameter that is its default, `system` the source."""
    default = None if argument.default in (EMPTY, None, "") or not _is_scalar(argument) else argument.default
    help_ = argument.help or f"The option {argument.name}."
    return Parameter(
        type=_KINDS.get(argument.type, "string"),
        # The default is another parameter's value, so it is told in words.
        help=f"{help_} Default: the {given.replace('_', ' ')}." if given else help_,
        default=None if given else default,
        example=_EXAMPLES_OF.get(system, {}).get(argument.name, _EXAMPLES.get(argument.name)),
        choices=argument.choices,
        repeated=get_origin(argument.type) is Sequence,
        mapping=get_origin(argument.type) is Mapping,
        secret=argument.name in SECRETS,
    )


def _is_scalar(argument: Argument) -> bool:
    return isinstance(argument.default, str | bool | int | float)
