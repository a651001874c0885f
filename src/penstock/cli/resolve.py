"""Reads the configuration of one command line: a template or a job file, flags, the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from penstock.cli.configuration import Configuration, ConfigurationError, configure, runner_flag
from penstock.cli.inputs import (
    JOB_SUFFIXES,
    MAX_JOB_CHARACTERS,
    Job,
    Problem,
    RawValue,
    from_environment,
    from_flags,
    read_job,
)
from penstock.cli.runner_options import ONE_SHOT_OPTIONS, RUNNER
from penstock.launch.folders import any_folder_conflict, is_a_file
from penstock.secrets import read_shown_references
from penstock.templates.template import Template, UnknownTemplateError, template_named


def resolve(
    name_or_file: str,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    until: str | None = None,
) -> Configuration:
    """Return the configuration that the command line asks for.

    `name_or_file` is the name of a template or the path of a job file, `sets` are the values of `--set`, `flags` those
    of the runner's flags by option name (None or () if not given), `until` is the value of `--until`, which sets `end`.

    Raises:
        ConfigurationError: with every problem that was found.
    """
    job = _read_job_or_name(name_or_file)
    parameters, problems = from_flags(sets)
    if until is not None and "end" in parameters:
        problems.append(Problem("--until", "sets `end`, which --set sets too; give one of them"))
    elif until is not None:
        parameters["end"] = RawValue((until,), "--until")
    problems = [*job.problems, *problems, *_misplaced_options(job)]
    template = _template(job, problems)
    if template is None:
        raise ConfigurationError(problems)
    repeatable = {name: each for name, each in RUNNER.items() if name not in ONE_SHOT_OPTIONS}
    configuration = configure(
        template,
        [parameters, from_environment(environment, template.parameters), job.parameters],
        [
            _from_options(flags),
            from_environment(environment, repeatable),
            {name: value for name, value in job.runner.items() if name not in ONE_SHOT_OPTIONS},
        ],
        problems,
        partial(read_shown_references, environment=environment),
    )
    if conflict := any_folder_conflict({**configuration.parameters, **configuration.runner}):
        raise ConfigurationError([Problem("", conflict)])
    checkpoint = str(configuration.runner.get("checkpoint_dir", ""))
    if is_a_file(checkpoint):
        raise ConfigurationError(
            [Problem("", f"checkpoint_dir {checkpoint} is not a folder; choose a folder")]
        )
    return configuration


def _read_job_or_name(name_or_file: str) -> Job:
    """Read the job file if the argument looks like a path, otherwise take it for the name of a template."""
    path = Path(name_or_file)
    if path.suffix not in JOB_SUFFIXES and path.name == name_or_file:
        return Job(RawValue((name_or_file,), ""), {}, {}, ())
    try:
        with path.open(encoding="utf-8") as file:  # one character more than allowed shows that it is too long
            return read_job(file.read(MAX_JOB_CHARACTERS + 1), name_or_file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return Job(None, {}, {}, (Problem(name_or_file, f"cannot be read: {reason}"),))


def _template(job: Job, problems: list[Problem]) -> Template | None:
    if job.template is None:
        return None
    try:
        return template_named(job.template.texts[0])
    except UnknownTemplateError as error:
        problems.append(Problem(job.template.where, str(error)))
        return None


def _misplaced_options(job: Job) -> list[Problem]:
    text = "is valid for one start only, so a job file may not contain it; pass"
    return [
        Problem(value.where, f"{name!r} {text} {runner_flag(name)}")
        for name, value in job.runner.items()
        if name in ONE_SHOT_OPTIONS
    ]


def _from_options(flags: Mapping[str, Any]) -> dict[str, RawValue]:
    """Return the values of the runner's flags as texts, like the values of all other origins."""
    values = {}
    for name, value in flags.items():
        if value is not None and value != ():
            texts = value if isinstance(value, tuple) else ("true" if value is True else value,)
            values[name] = RawValue(texts, runner_flag(name), len(texts) > 1)
    return values
