"""The JSON schema of the job files of a template, for editors that check and complete YAML. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.cli.runner_options import ONE_SHOT_OPTIONS, RUNNER
from penstock.templates.parameter import Parameter
from penstock.templates.template import Template

_TYPES = {"integer": "integer", "number": "number", "boolean": "boolean"}


def json_schema(template: Template) -> dict[str, Any]:
    """Return the schema of a job file."""
    runner = {name: each for name, each in RUNNER.items() if name not in ONE_SHOT_OPTIONS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{template.name}: {template.summary}",
        "type": "object",
        "properties": {
            "template": {"const": template.name},
            "parameters": _object(template.parameters),
            "runner": _object(runner),
        },
        "required": ["template", "parameters"],
        "additionalProperties": False,
    }


def _object(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    required = [name for name, each in parameters.items() if each.required]
    return {
        "type": "object",
        "properties": {name: _parameter(each) for name, each in parameters.items()},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    shown: dict[str, Any] = {"description": parameter.help}
    if parameter.default is not None:
        shown["default"] = parameter.default
    if parameter.mapping:
        if parameter.entries is None:
            return {**shown, "type": "object", "additionalProperties": {"type": "string"}}
        return {**shown, **_object(parameter.entries)}
    value = _value(parameter)
    return {**shown, "type": "array", "items": value} if parameter.repeated else {**shown, **value}


def _value(parameter: Parameter) -> dict[str, Any]:
    value: dict[str, Any] = {"type": _TYPES.get(parameter.type, "string")}
    if parameter.type == "timestamp":
        value["format"] = "date-time"
    if parameter.choices:
        value["enum"] = list(parameter.choices)
    # A reference to a secret, such as ${env:NAME}, does not match the pattern of its value.
    if parameter.pattern and not parameter.secret:
        value["pattern"] = f"^(?:{parameter.pattern})$"
    if parameter.minimum is not None:
        value["minimum"] = parameter.minimum
    if parameter.maximum is not None:
        value["maximum"] = parameter.maximum
    return value
