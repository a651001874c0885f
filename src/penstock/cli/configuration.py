"""Turns raw values into a configuration: precedence, defaults, and every problem in one error. Pure.

The order is: flags, environment variables, the job file, defaults. The first that has a value wins. References such as
``${env:NAME}`` are replaced, except in secrets, which are read when the pipeline starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.cli.inputs import Problem, RawValue
from penstock.cli.runner_options import RUNNER, Values, runner_arguments
from penstock.errors import UsageError
from penstock.suggestions import did_you_mean
from penstock.templates.parameter import Parameter, Value
from penstock.templates.template import Template

Layer: TypeAlias = Mapping[str, RawValue]
"""Raw values of one origin, by name."""


class ConfigurationError(UsageError):
    """The configuration cannot run. `problems` holds every problem that was found, one sentence each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"{count} in the configuration\n{lines}")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A template with the values of its parameters and of the runner's options. Values that are not set are absent."""

    template: Template
    parameters: Values
    runner: Values

    def runner_arguments(self) -> list[str]:
        """Return the runner's options as arguments for Beam's `PipelineOptions`."""
        return runner_arguments(self.runner)


def configure(
    template: Template,
    parameters: Sequence[Layer],
    runner: Sequence[Layer],
    problems: Iterable[Problem] = (),
    read_references: Callable[[str], str] = str,
) -> Configuration:
    """Return the configuration in which each value comes from the first layer that has one, or is the default.

    `parameters` and `runner` are layers in order of precedence. `problems` were found while the layers were read.
    `read_references` returns a text with the values of its references, or raises ValueError.

    Raises:
        ConfigurationError: with `problems` and all others.
    """
    names = _Names(template.parameters, _runner_options(template))
    values, wrong = _resolve_layers("parameter", names.parameters, parameters, names, read_references)
    options, wrong_options = _resolve_layers("runner option", names.runner, runner, names, read_references)
    if all_problems := [*problems, *wrong, *wrong_options]:
        raise ConfigurationError(all_problems)
    return Configuration(template, values, options)


def runner_flag(name: str) -> str:
    """Return the command-line flag of a runner option."""
    return f"--{name.replace('_', '-')}"


def _runner_options(template: Template) -> dict[str, Parameter]:
    """Return the runner's options. A streaming template requires a checkpoint folder to continue from."""
    checkpoint_dir = RUNNER["checkpoint_dir"].model_copy(update={"required": template.streaming})
    return {**RUNNER, "checkpoint_dir": checkpoint_dir}


@dataclass(frozen=True, slots=True)
class _Names:
    """The known names of both sides, for advice about an unknown or missing one."""

    parameters: Mapping[str, Parameter]
    runner: Mapping[str, Parameter]

    def how_to_set(self, name: str) -> str:
        if name in self.runner:
            return f"pass {runner_flag(name)} VALUE, or put it under 'runner' in the job file"
        return f"pass --set {name}=VALUE, or put it under 'parameters' in the job file"

    def advice(self, name: str, known: Mapping[str, Parameter]) -> str:
        """Return what to do about a name that is not in `known`."""
        if name in self.parameters or name in self.runner:
            return f" here; {self.how_to_set(name)}"
        mapping, point, _ = name.partition(".")
        if point and (entries := mapping in known and known[mapping].entries):
            names = [f"{mapping}.{each}" for each in entries]
            return did_you_mean(name, names) or f"; known names: {', '.join(names)}"
        return did_you_mean(name, known) or f"; known names: {', '.join(known)}"


def _resolve_layers(
    noun: str,
    known: Mapping[str, Parameter],
    layers: Sequence[Layer],
    names: _Names,
    read_references: Callable[[str], str],
) -> tuple[Values, list[Problem]]:
    problems = [
        Problem(raw.where, f"{noun} {name!r} is unknown{names.advice(name, known)}")
        for layer in layers
        for name, raw in layer.items()
        if not _is_known(name, known)
    ]
    values: dict[str, Any] = {}
    for name, parameter in known.items():
        if parameter.mapping:
            entries, wrong = _read_mapping(noun, name, parameter, layers, read_references)
            problems += wrong
            values |= {name: entries} if entries else {}
            continue
        raw = next((layer[name] for layer in layers if name in layer), None)
        if raw is not None:
            try:
                values[name] = _read(parameter, raw, read_references)
            except ValueError as error:
                problems.append(Problem(raw.where, f"{noun} {name!r}: {error}"))
        elif parameter.required:
            problems.append(Problem("", f"{noun} {name!r} is required; {names.how_to_set(name)}"))
        elif parameter.default is not None:
            values[name] = parameter.default
    return values, problems


def _is_known(name: str, known: Mapping[str, Parameter]) -> bool:
    mapping, point, entry = name.partition(".")
    if not point:
        return name in known
    parameter = known.get(mapping)
    return parameter is not None and parameter.mapping and entry in (parameter.entries or (entry,))


def _read_mapping(
    noun: str,
    name: str,
    parameter: Parameter,
    layers: Sequence[Layer],
    read_references: Callable[[str], str],
) -> tuple[dict[str, Value], list[Problem]]:
    """Return the values of `name.entry` of all layers, each from the first layer that has it."""
    values, problems = {}, []
    start = f"{name}."
    for raw in (layer[name] for layer in layers if name in layer):
        text = (
            f"{noun} {name!r} takes values by name: set {start}NAME=VALUE, or write a mapping in the job file"
        )
        problems.append(Problem(raw.where, text))
    for full in dict.fromkeys(each for layer in layers for each in layer if each.startswith(start)):
        raw = next(layer[full] for layer in layers if full in layer)
        if not _is_known(full, {name: parameter}):
            continue
        try:
            if raw.listed:
                raise ValueError("takes one value, not a list")
            entry = full.removeprefix(start)
            of_entry = (parameter.entries or {}).get(entry, parameter)
            values[entry] = of_entry.read(_replaced(raw.texts[0], of_entry, read_references))
        except ValueError as error:
            problems.append(Problem(raw.where, f"{noun} {full!r}: {error}"))
    return values, problems


def _read(
    parameter: Parameter, raw: RawValue, read_references: Callable[[str], str]
) -> Value | tuple[Value, ...]:
    if parameter.repeated:
        return tuple(parameter.read(_replaced(text, parameter, read_references)) for text in raw.texts)
    if raw.listed:
        got = f"but {len(raw.texts)} were given" if len(raw.texts) > 1 else "not a list"
        raise ValueError(f"takes one value, {got}")
    return parameter.read(_replaced(raw.texts[0], parameter, read_references))


def _replaced(text: str, parameter: Parameter, read_references: Callable[[str], str]) -> str:
    return text if parameter.secret else read_references(text)
