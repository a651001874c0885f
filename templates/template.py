"""Templates: pipelines that can be started by name. They are the YAML files in the folder of this module."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from ruamel.yaml import YAML

from penstock.errors import UsageError
from penstock.suggestions import did_you_mean
from penstock.templates.derived import event_parameters
from penstock.templates.parameter import Parameter

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
    return Template.model_validate(YAML(typ="safe").load(text))


@functools.cache  # files of the package do not change, and parsing them takes a tenth of a second
def templates() -> Mapping[str, Template]:
    """Return all templates of the package by name, in alphabetical order."""
    found = [load_template(entry.read_text("utf-8")) for entry in _specifications()]
    return MappingProxyType({each.name: each for each in sorted(found, key=lambda each: each.name)})


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
