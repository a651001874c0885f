"""The metadata of a Google flex template for a template of Penstock. Pure.

Source: Dataflow documentation, "Configure Flex Templates" (parameter metadata: names, types, `isOptional`, `regexes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.templates.parameter import Parameter, show
from penstock.templates.template import Template

_TYPES = {"integer": "NUMBER", "number": "NUMBER", "boolean": "BOOLEAN"}


def flex_metadata(template: Template) -> dict[str, Any]:
    """Return the metadata. An option of a mapping is a parameter ``mapping.option``."""
    return {
        "name": template.name,
        "description": template.summary,
        "streaming": template.streaming,
        "parameters": list(_parameters(template.parameters)),
    }


def _parameters(parameters: Mapping[str, Parameter]) -> Iterator[dict[str, Any]]:
    format_ = parameters.get("format")
    for name, each in parameters.items():
        # A user interface shows the options of a format only if that format is chosen.
        of_format = format_ is not None and name in format_.choices
        shown_with = {"parentName": "format", "parentTriggerValues": [name]} if of_format else {}
        for entry, inner in (each.entries or {}).items():
            yield {**_parameter(f"{name}.{entry}", inner), **shown_with}
        if not each.entries:
            yield _parameter(name, each)


def _parameter(name: str, parameter: Parameter) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": name,
        "label": name.replace("_", " ").replace(".", ": ").capitalize(),
        "helpText": parameter.help,
        "isOptional": not parameter.required,
        "paramType": "ENUM" if parameter.choices else _TYPES.get(parameter.type, "TEXT"),
    }
    if parameter.choices:
        shown["enumOptions"] = [{"value": choice, "label": choice} for choice in parameter.choices]
    if parameter.pattern:
        shown["regexes"] = [
            f"^(?:{parameter.pattern})$" if "|" in parameter.pattern else f"^{parameter.pattern}$"
        ]
    if parameter.default is not None:
        shown["defaultValue"] = show(parameter.default)
    return shown
