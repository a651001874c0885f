"""From what was given to what runs: precedence, and every mistake at once.

Flags win over the environment, that over the job file, that over defaults. Pure: the environment and the
file's text come in as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.cli.inputs import Problem, RawValue
from penstock.cli.runner_options import RUNNER, Values, runner_arguments
from penstock.errors import UsageError
from penstock.suggestions import did_you_mean
from penstock.templates.parameter import Parameter, Value
from penstock.templates.template import Template

Layer: TypeAlias = Mapping[str, RawValue]


class ConfigurationError(UsageError):
    """The configuration cannot run; `problems` are all that is wrong with it, one sentence each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"{count} in the configuration\n{lines}")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A template, a value for each of its parameters that has one, and the runner's options likewise."""

    template: Template
    parameters: Values
    runner: Values

    def runner_arguments(self) -> list[str]:
        """Return the runner's options as arguments for Beam's `PipelineOptions`."""
        return runner_arguments(self.runner)


def configure(
    template: Template, parameters: Sequence[Layer], runner: Sequence[Layer], problems: Iterable[Problem] = ()
) -> Configuration:
    """Settle each value by the first layer that gives it, then by its default.

    `parameters` and `runner` are the layers of each, strongest first; `problems` are mistakes already found
    while reading them.

    Raises:
        ConfigurationError: with `problems` and all others.
    """
    names = _Names(template.parameters, _needed(template))
    values, wrong = _settle("parameter", names.parameters, parameters, names)
    options, also_wrong = _settle("runner option", names.runner, runner, names)
    if found := [*problems, *wrong, *also_wrong]:
        raise ConfigurationError(found)
    return Configuration(template, values, options)


def runner_flag(name: str) -> str:
    """Return the command-line flag of a runner option."""
    return f"--{name.replace('_', '-')}"


def _needed(template: Template) -> dict[str, Parameter]:
    """The runner's options; a pipeline that does not end by itself needs a place to go on from."""
    required = RUNNER["checkpoint_dir"].model_copy(update={"required": template.streaming})
    return {**RUNNER, "checkpoint_dir": required}


@dataclass(frozen=True, slots=True)
class _Names:
    """Which names there are, and on which side."""

    parameters: Mapping[str, Parameter]
    runner: Mapping[str, Parameter]

    def how_to_give(self, name: str) -> str:
        if name in self.runner:
            return f"pass {runner_flag(name)} VALUE, or put it under 'runner' in the job file"
        return f"pass --set {name}=VALUE, or put it under 'parameters' in the job file"

    def correct(self, name: str, known: Mapping[str, Parameter]) -> str:
        """Say what to do about a name that is not in `known`."""
        if name in self.parameters or name in self.runner:
            return f" here; {self.how_to_give(name)}"
        return did_you_mean(name, known) or f"; there are {', '.join(known)}"


def _settle(
    noun: str, known: Mapping[str, Parameter], layers: Sequence[Layer], names: _Names
) -> tuple[Values, list[Problem]]:
    found = [
        Problem(given.where, f"{noun} {name!r} is unknown{names.correct(name, known)}")
        for layer in layers
        for name, given in layer.items()
        if name not in known
    ]
    values: dict[str, Value | tuple[Value, ...]] = {}
    for name, parameter in known.items():
        given = next((layer[name] for layer in layers if name in layer), None)
        if given is not None:
            try:
                values[name] = _read(parameter, given)
            except ValueError as error:
                found.append(Problem(given.where, f"{noun} {name!r}: {error}"))
        elif parameter.required:
            found.append(Problem("", f"{noun} {name!r} is required; {names.how_to_give(name)}"))
        elif parameter.default is not None:
            values[name] = parameter.default
    return values, found


def _read(parameter: Parameter, given: RawValue) -> Value | tuple[Value, ...]:
    if parameter.repeated:
        return tuple(parameter.read(text) for text in given.texts)
    if given.listed:
        got = f"but {len(given.texts)} were given" if len(given.texts) > 1 else "not a list"
        raise ValueError(f"takes one value, {got}")
    return parameter.read(given.texts[0])
