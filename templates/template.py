"""Templates: pipelines that can be started by name, one for each source and each sink that takes its changes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from pydantic import BaseModel, ConfigDict

from penstock.errors import UsageError
from penstock.pipelines.sinks import SINKS
from penstock.pipelines.sources import SOURCES
from penstock.suggestions import did_you_mean
from penstock.templates.derived import parameters_of_pair
from penstock.templates.parameter import Parameter


class Template(BaseModel):
    """A pipeline that can be started by name: parameters, guarantees, and the names of its source and its sink.

    A `streaming` template needs a checkpoint folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str
    description: str
    source: str
    sink: str
    streaming: bool = True
    guarantees: tuple[str, ...]
    parameters: Mapping[str, Parameter]

    @property
    def modules(self) -> list[str]:
        """Modules that build the pipeline, read its source and write to its sink. Workers need them."""
        of_sink = SINKS[self.sink].options.__module__
        return ["penstock.pipelines.source_to_sink", f"penstock.io.{self.source}.read", of_sink]


class UnknownTemplateError(UsageError, LookupError):
    """No template has this name; the message names the nearest one and how to list them."""


class _Templates(Mapping[str, Template]):
    """All templates by name, in alphabetical order. Each is made at the first access, in about 20 ms."""

    def __init__(self) -> None:
        self._made: dict[str, Template] = {}
        self._pairs = {
            f"{source}-to-{sink}": (source, sink)
            for source in sorted(SOURCES)
            for sink in sorted(SINKS)
            if source in SINKS[sink].systems
        }

    def __getitem__(self, name: str) -> Template:
        if name not in self._made:
            self._made[name] = _of_pair(*self._pairs[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def summary(self, name: str) -> str:
        """Return the summary of a template. The template is not made for it."""
        return _summary(*self._pairs[name])

    def __len__(self) -> int:
        return len(self._pairs)


def _of_pair(source: str, sink: str) -> Template:
    read, write = SOURCES[source], SINKS[sink]
    return Template(
        name=f"{source}-to-{sink}",
        summary=_summary(source, sink),
        description=f"{read.reads}\n\n{write.writes.format(native=read.native)}\n",
        source=source,
        sink=sink,
        guarantees=(*write.guarantees, *read.guarantees),
        parameters=parameters_of_pair(source, sink),
    )


def _summary(source: str, sink: str) -> str:
    kind = SINKS[sink]
    return f"{SOURCES[source].title} to {kind.title}{kind.promise}"


@functools.cache
def templates() -> _Templates:
    """Return all templates by name, in alphabetical order."""
    return _Templates()


def template_named(name: str) -> Template:
    """Return the template called `name`; raises UnknownTemplateError."""
    known = templates()
    if name not in known:
        raise UnknownTemplateError(
            f"there is no template {name!r}{did_you_mean(name, known)}; `penstock list` shows all of them"
        )
    return known[name]
