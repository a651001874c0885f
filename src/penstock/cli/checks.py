"""What `validate` and `plan` check before a start: whether the pipeline can be built, and what its services say."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from penstock.cli.common import build, words_of
from penstock.cli.configuration import Configuration, ConfigurationError
from penstock.cli.inputs import Problem
from penstock.errors import SeveralProblemsError
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode


def try_to_build(configuration: Configuration, *, to_run: bool) -> Any:
    """Return the pipeline: some values are refused only by its transforms, such as an end before the start.

    Raises:
        ConfigurationError: a transform refused a value.
    """
    ignore_import_warnings()
    try:
        return build(configuration, to_run=to_run)
    except Exception as error:  # `run` would not start either, whatever the error
        text = words_of(configuration)(str(error) or type(error).__name__)
        raise ConfigurationError([Problem(configuration.template.name, text)]) from error


def ask_services(configuration: Configuration, pipeline: Any, json_: bool) -> list[str]:
    """Let every transform ask its service, as `run` does before it starts, and return the warnings.

    Exit if a service refuses.
    """
    from penstock import preflight

    try:
        return list(map(words_of(configuration), preflight.preflight(pipeline)))
    except Exception as error:
        if not json_:
            text = words_of(configuration)(str(error) or type(error).__name__)
            click.echo(f"Error: not ready: {text}", err=True)
        else:
            statements = {"statements": error.statements} if isinstance(error, SeveralProblemsError) else {}
            problems = [
                {"where": configuration.template.name, "problem": each}
                for each in refusals(configuration, error)
            ]
            click.echo(json.dumps({"valid": False, "problems": problems, **statements}, indent=2))
        sys.exit(ExitCode.PREFLIGHT)


def refusals(configuration: Configuration, error: Exception) -> list[str]:
    """Return the problems of an error that a check has raised, in the words of the command."""
    texts = (
        error.problems if isinstance(error, SeveralProblemsError) else [str(error) or type(error).__name__]
    )
    return list(map(words_of(configuration), texts))
