"""The parameters of a pipeline: of its source, of the choices about events, and of its sink."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import UsageError
from penstock.options import EMPTY, Argument, arguments_of
from penstock.pipelines.event_options import choices_for_records, choices_for_sinks, event_arguments
from penstock.pipelines.sinks import SINKS
from penstock.pipelines.sources import SOURCES
from penstock.suggestions import did_you_mean


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by what takes them. An argument of source and events is the source's: it saves the work on changes."""

    source: Mapping[str, Argument]
    events: Mapping[str, Argument]
    sink: Mapping[str, Argument]

    @property
    def every(self) -> dict[str, Argument]:
        """All of them; those without a default come first."""
        found = {**self.source, **self.sink, **self.events}
        return {
            name: found[name] for name in sorted(found, key=lambda name: found[name].default is not EMPTY)
        }

    def divided(self, choices: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return the values for source, events and sink.

        Raises:
            TypeError: a parameter is unknown or missing.
        """
        every = self.every
        for name in choices:
            if name not in every:
                raise TypeError(f"there is no parameter {name!r}{did_you_mean(name, every)}")
        if missing := [name for name, each in every.items() if each.default is EMPTY and name not in choices]:
            raise TypeError(f"missing: {', '.join(missing)}")
        parts = [
            {name: choices[name] for name in taken if name in choices}
            for taken in (self.source, self.events, self.sink)
        ]
        return parts[0], parts[1], parts[2]


@functools.cache
def parameters_of(source: str, sink: str) -> Parameters:
    """Return the parameters of the pipeline from a source to a sink, by their names.

    Raises:
        UsageError: the sink does not take changes of the source.
    """
    read, write = SOURCES[source], SINKS[sink]
    if source not in write.systems:
        raise UsageError(f"the sink {sink} takes no {read.title}: its sources are {', '.join(write.systems)}")
    of_source, of_sink = read.arguments(), write.parameters()
    if write.takes == "events":
        of_events = choices_for_sinks(source)
    elif write.takes == "records":
        of_events = choices_for_records(source)
    else:
        of_events = event_arguments(source)
        of_sink |= arguments_of(read.file_options)
    of_events = {name: each for name, each in of_events.items() if name not in of_source}
    return Parameters(of_source, of_events, of_sink)
