"""Hides secrets in what is shown: the command that continues a pipeline, and its configuration. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.cli.configuration import Configuration, runner_flag
from penstock.cli.runner_options import ONE_SHOT_OPTIONS, RUNNER
from penstock.secrets import is_reference
from penstock.templates.parameter import Parameter, show

HIDDEN = "(hidden)"

_PAIR_FLAGS = ("--set", "--conf")
"""Flags that take name=value."""
_SECRET_SETTING = re.compile("(?i)secret|password|token|access[.]?key|(storage|account)_key")
"""Names of Spark settings to hide: the default of spark.redaction.regex, and Azure's variables for account keys."""


def resume_command(arguments: Sequence[str], secrets: Collection[str] = ()) -> str:
    """Return the shell command that continues the pipeline which the command `arguments` started.

    It is the same command without options that are valid for one start only. Values of the parameters `secrets` and of
    Spark's secret settings are hidden, because the command is logged.
    """
    # `python -m` puts the path of a module there, which is no command.
    program = arguments[0] if Path(arguments[0]).name == "penstock" else "penstock"
    one_shot = {runner_flag(name): RUNNER[name].type for name in ONE_SHOT_OPTIONS}
    kept = [program]
    rest = iter(arguments[1:])
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if flag in _PAIR_FLAGS and equals:
            kept.append(f"{flag}={redacted_pair(flag, value, secrets)}")
        elif flag in _PAIR_FLAGS:
            kept += [flag, *(redacted_pair(flag, pair, secrets) for pair in islice(rest, 1))]
        elif flag not in one_shot:
            kept.append(argument)
        elif not equals and one_shot[flag] != "boolean":
            next(rest, None)  # the value of the flag
    return shlex.join(kept)


def redacted_pair(flag: str, pair: str, secrets: Collection[str] = ()) -> str:
    """Return the `name=value` of a flag without its value if it is secret."""
    name, equals, value = pair.partition("=")
    hidden = is_secret(name, secrets) and not is_reference(value)
    secret = hidden if flag == "--set" else is_secret_setting(name)
    return f"{name}={HIDDEN}" if equals and secret else pair


def is_secret_setting(name: str) -> bool:
    """Return whether the value of a Spark setting must not be shown."""
    return _SECRET_SETTING.search(name) is not None


def is_secret(name: str, secrets: Collection[str]) -> bool:
    """Return whether a parameter, or the entry of a mapping, is secret; all entries of a secret mapping are."""
    return name in secrets or name.partition(".")[0] in secrets


def secret_names(parameters: Mapping[str, Parameter]) -> list[str]:
    """Return the names of secret parameters. Names in a mapping are ``parameter.name``."""
    names = [name for name, each in parameters.items() if each.secret]
    for name, each in parameters.items():
        names += [f"{name}.{inner}" for inner in secret_names(each.entries or {})]
    return names


def redacted(configuration: Configuration) -> dict[str, dict[str, Any]]:
    """Return the values of a configuration as they may be shown, under `parameters` and `runner`."""
    secret = secret_names(configuration.template.parameters)
    shown: dict[str, Any] = {}
    for name, each in configuration.parameters.items():
        if isinstance(each, Mapping):
            shown |= {f"{name}.{entry}": value for entry, value in each.items()}
        else:
            shown[name] = each
    parameters = {
        name: HIDDEN if is_secret(name, secret) and not is_reference(str(each)) else each
        for name, each in shown.items()
    }
    runner = dict(configuration.runner)
    if isinstance(conf := runner.get("conf"), tuple):
        runner["conf"] = tuple(redacted_pair("--conf", str(pair)) for pair in conf)
    return {"parameters": parameters, "runner": runner}


def shown_value(value: Any) -> str:
    """Return a value as a job file has it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(show, value))}]"
    return show(value)
