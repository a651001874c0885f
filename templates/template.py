"""Templates: pipelines that can be started by name. They are the YAML files in the folder of this module."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from ruamel.yaml import YAML

from penstock.errors import UsageError
from penstock.pipelines.sinks import SINKS
from penstock.pipelines.sources import SOURCES, SourceKind
from penstock.suggestions import did_you_mean
from penstock.templates.derived import (
    choice_parameters,
    event_parameters,
    record_parameters,
    sink_parameters,
)
from penstock.templates.parameter import Parameter

SOURCE_TO_SINK = "penstock.pipelines.source_to_sink"

ParameterName = Annotated[str, Field(pattern=r"[a-z][a-z0-9_]*")]


class Template(BaseModel):
    """A pipeline that can be started by name: parameters, guarantees, and the function that builds it.

    `pipeline` is `module:function`. The function takes a Beam pipeline and one keyword argument for each
    parameter that has a value, and applies its transforms. A `streaming` template needs a checkpoint folder.

    `events_of` is the system whose changes the pipeline reads, if it takes the choices of `EventOptions`: their
    parameters come from the code.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"[a-z][a-z0-9-]*")]
    summary: Annotated[str, Field(min_length=1, max_length=90)]
    description: str
    pipeline: Annotated[str, Field(pattern=r"[\w.]+:\w+")]
    streaming: bool
    guarantees: tuple[str, ...]
    events_of: Literal["spanner", "bigtable", "postgres", "ydb"] | None = None
    parameters: Mapping[ParameterName, Parameter]

    @model_validator(mode="after")
    def _with_event_parameters(self) -> Template:
        if self.events_of:
            # The model is frozen for its users; pydantic's own way to change a field in a validator.
            object.__setattr__(self, "parameters", {**self.parameters, **event_parameters(self.events_of)})
        return self

    @property
    def module(self) -> str:
        """The name of the module that builds the pipeline."""
        return self.pipeline.partition(":")[0]

    def build_function(self) -> Callable[..., Any]:
        """Import and return the function that builds the pipeline."""
        function = self.pipeline.partition(":")[2]
        built: Callable[..., Any] = getattr(importlib.import_module(self.module), function)
        return built


class UnknownTemplateError(UsageError, LookupError):
    """No template has this name; the message names the nearest one and how to list them."""


def load_template(text: str) -> Template:
    """Return the template that a YAML text describes; raises pydantic's ValidationError if it is not one."""
    # The safe loader: a template is data, and must not make objects.
    return Template.model_validate(YAML(typ="safe").load(text))


class _Templates(Mapping[str, Template]):
    """All templates by name, in alphabetical order. Templates of sources and sinks are made at the first access.

    Their parameters come from the signature of the sink's transform, and to import that takes a second.
    """

    def __init__(self, written: Mapping[str, Template]) -> None:
        self._made = dict(written)
        # Not every source has what a sink needs, so some pairs do not exist.
        pairs = (
            (source, sink) for sink, kind in SINKS.items() for source in SOURCES if source in kind.systems
        )
        self._pairs = {f"{source}-to-{sink}": (source, sink) for source, sink in pairs}
        self._names = sorted([*written, *self._pairs])

    def __getitem__(self, name: str) -> Template:
        if name not in self._made:
            # Made once: the signature of a transform does not change.
            self._made[name] = _of_pair(self._made, *self._pairs[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def summary(self, name: str) -> str:
        """Return the summary of a template. The template is not made for it: all of them take seconds."""
        pair = self._pairs.get(name)
        return self._made[name].summary if pair is None else _summary(*pair)

    def __len__(self) -> int:
        return len(self._names)


def _of_pair(written: Mapping[str, Template], source: str, sink: str) -> Template:
    """Return the template of a source and a sink. The source's parameters are described in its template to files."""
    kind, described = SINKS[sink], written[f"{source}-to-files"].parameters
    build = f"{source}_to_{sink}"
    # The signature decides which parameters a pair has, and in which order.
    taken = inspect.signature(getattr(importlib.import_module(SOURCE_TO_SINK), build)).parameters
    choices = record_parameters(source) if kind.has_format else choice_parameters(source)
    known = {**choices, **sink_parameters(kind), **described_by(described, SOURCES[source])}
    return Template(
        name=f"{source}-to-{sink}",
        summary=_summary(source, sink),
        description=(
            f"Reads the change stream as {source}-to-files does, and writes its changes to {kind.title}. Changes can "
            "be filtered, and columns chosen, renamed and masked.\n"
        ),
        pipeline=f"{SOURCE_TO_SINK}:{build}",
        streaming=True,
        guarantees=kind.guarantees,
        # The first argument is Beam's pipeline.
        parameters={name: known[name] for name in list(taken)[1:]},
    )


def _summary(source: str, sink: str) -> str:
    kind = SINKS[sink]
    return f"{SOURCES[source].title} to {kind.title}{kind.promise}"


def described_by(parameters: Mapping[str, Parameter], source: SourceKind) -> dict[str, Parameter]:
    """Return those parameters of a template that belong to its source."""
    return {name: parameters[name] for name in source.parameters()}


@functools.cache  # files of the package do not change, and parsing them takes a tenth of a second
def templates() -> _Templates:
    """Return all templates of the package by name, in alphabetical order."""
    found = [load_template(entry.read_text("utf-8")) for entry in _specifications()]
    return _Templates({each.name: each for each in sorted(found, key=lambda each: each.name)})


def template_named(name: str) -> Template:
    """Return the template called `name`; raises UnknownTemplateError."""
    known = templates()
    if name not in known:
        raise UnknownTemplateError(
            f"there is no template {name!r}{did_you_mean(name, known)}; `penstock list` shows all of them"
        )
    return known[name]


def _specifications() -> list[Any]:
    return [entry for entry in files(__package__).iterdir() if entry.name.endswith(".yaml")]
