"""Prints the names that users write: arguments of transforms, parameters of templates, flags, and Beam YAML.

    python tools/public_surface.py > tests/golden/surface/surface.txt

One fact a line, sorted; the test services (`penstock emulator`) are another distribution.
`tests/unit/pipelines/test_public_surface.py` compares it with the recorded one. Record again only when a name, a
default or a limit changes on purpose: users have job files and programs with the old one.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click
from ruamel.yaml import YAML

from penstock.beam_yaml import PROVIDERS
from penstock.cli.commands import cli
from penstock.templates import Parameter, templates

PACKAGES = (
    *(
        f"penstock.io.{name}"
        for name in (
            "bigquery", "bigtable", "delta", "files", "iceberg", "kafka", "postgres", "pubsub", "spanner", "spark",
            "sql", "ydb",
        )
    ),
    "penstock.transforms",
)  # fmt: skip


def surface() -> list[str]:
    """Return all lines, sorted."""
    return sorted({*_transforms(), *_templates(), *_commands(cli, "penstock"), *_beam_yaml()})


def _transforms() -> Iterator[str]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) and (hasattr(value, "expand") or name.endswith("Format")):
                yield from _arguments(f"transform {package}.{name}", value)


def _arguments(prefix: str, function: Any) -> Iterator[str]:
    for name, each in inspect.signature(function).parameters.items():
        default = each.default
        if dataclasses.is_dataclass(function) and default is not inspect.Parameter.empty:
            (field,) = (field for field in dataclasses.fields(function) if field.name == name)
            factory = field.default_factory
            default = default if factory is dataclasses.MISSING else factory()
        yield f"{prefix}: {name} {_kind(each)}, {_default(default)}"


def _kind(parameter: inspect.Parameter) -> str:
    return str(parameter.kind.description)


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if callable(value):
        return "default is a function"
    if isinstance(value, Mapping):  # a proxy and a dictionary are the same to users
        value = dict(value)
    return f"default {value!r}"


def _templates() -> Iterator[str]:
    for name, template in templates().items():
        yield f"template {name}: streaming {template.streaming}"
        yield from _parameters(f"template {name}:", template.parameters)


def _parameters(prefix: str, parameters: Mapping[str, Parameter]) -> Iterator[str]:
    for name, each in parameters.items():
        facts = each.model_dump(exclude={"help", "example", "entries", "pattern_help"}, exclude_defaults=True)
        shown = ", ".join(f"{fact} {_plain(value)!r}" for fact, value in facts.items())
        yield f"{prefix} {name} {shown}".rstrip()
        yield from _parameters(f"{prefix} {name}.", each.entries or {})


def _plain(value: Any) -> Any:
    """Return a number without a fraction that is zero: 1 and 1.0 are one value of a parameter."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _commands(command: click.Command, prefix: str) -> Iterator[str]:
    for each in command.params:
        names = " ".join([*each.opts, *each.secondary_opts])
        yield (
            f"command {prefix}: {names} {each.param_type_name}, {_type(each)}, required {each.required}, "
            f"multiple {getattr(each, 'multiple', False)}, {_shown_default(each)}"
        )
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            if name == "emulator":
                continue
            yield f"command {prefix} {name}"
            yield from _commands(inner, f"{prefix} {name}")


def _shown_default(parameter: click.Parameter) -> str:
    # What stands for "none" depends on the version of click.
    return (
        f"default {parameter.default!r}" if isinstance(parameter.default, str | int | float) else "no default"
    )


def _type(parameter: click.Parameter) -> str:
    kind = parameter.type
    choices = getattr(kind, "choices", None)
    return kind.name if choices is None else f"{kind.name} of {' '.join(map(str, choices))}"


def _beam_yaml() -> Iterator[str]:
    (provider,) = YAML(typ="safe").load(PROVIDERS.read_text("utf-8"))
    for name, path in provider["transforms"].items():
        module, _, function = path.rpartition(".")
        yield from _arguments(f"beam yaml {name}", getattr(importlib.import_module(module), function))


if __name__ == "__main__":
    sys.stdout.write("\n".join([*surface(), ""]))
