"""Parameters of a build function: parameters of its source, of `EventOptions`, and its own. Pure.

    @takes(ReadFromSpannerChangeStream, "project instance database change_stream start end", events_of="spanner")
    def spanner_to_files(pipeline, *, source, events, output, shards=1): ...

    spanner_to_files(pipeline, project="p", …, output="/data", format="debezium")

The function gets its source as a transform and its `EventOptions` as a value; its callers, and the tools that read its
signature, see plain keyword arguments, each with the type and the default that the source's transform gives it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.options import arguments_of
from penstock.pipelines.event_options import EventOptions, event_arguments
from penstock.secrets import read_references

Build = Callable[..., Any]
_GIVEN_BY_US = ("source", "events")


def takes(source: Callable[..., Any], names: str, *, events_of: str) -> Callable[[Build], Build]:
    """Return a decorator that makes the arguments `names` of `source`, and the fields of `EventOptions`, arguments of a
    build function. Required arguments come first in its signature. An argument of both is given to the source, which
    saves the work on changes that it leaves out. References to secrets in arguments of the source are read. The
    arguments `replay` and `preview` are not in the signature: they are no parameters.
    """

    def decorate(build: Build) -> Build:
        known = {
            each.name: inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
            )
            for each in arguments_of(source).values()
        }
        of_source = {name: known[name] for name in names.split()}
        signature = inspect.signature(build, eval_str=True)
        positional, *own = [each for each in signature.parameters.values() if each.name not in _GIVEN_BY_US]
        of_events = [
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
            )
            for each in event_arguments(events_of).values()
        ]
        both = {each.name for each in of_events} & of_source.keys()
        of_source_alone = [each for name, each in of_source.items() if name not in both]
        every = sorted([*of_source_alone, *own, *of_events], key=_has_default)
        seen = signature.replace(parameters=[positional, *every])

        def made(**read: Any) -> Any:
            return source(**{name: _without_references(value) for name, value in read.items()})

        @functools.wraps(build)
        def with_plain_arguments(
            pipeline: Any, *, replay: Any = None, preview: Any = None, **given: Any
        ) -> Any:
            seen.bind(pipeline, **given)  # raises TypeError for an argument that is unknown or missing
            read = {name: given[name] for name in of_source if name in given}
            chosen = {each.name: given[each.name] for each in of_events if each.name in given.keys() - both}
            rest = {name: value for name, value in given.items() if name not in read and name not in chosen}
            options = replace(EventOptions.of(events_of, chosen), replay=replay, preview=preview)
            return build(pipeline, source=made(**read), events=options, **rest)

        with_plain_arguments.__signature__ = seen  # type: ignore[attr-defined]
        # For pipelines of the same source to another sink (`penstock.pipelines.source_to_sink`).
        with_plain_arguments.source, with_plain_arguments.source_names = made, tuple(of_source)  # type: ignore[attr-defined]
        return with_plain_arguments

    return decorate


def _without_references(value: Any) -> Any:
    return read_references(value) if isinstance(value, str) else value


def _has_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not inspect.Parameter.empty
