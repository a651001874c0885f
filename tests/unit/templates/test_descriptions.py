"""Text, job file, JSON schema, flex metadata and the page of the documentation say the same about each template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from penstock.cli.describe import as_text
from penstock.cli.flex import flex_metadata
from penstock.cli.json_schema import json_schema
from penstock.options import arguments_of
from penstock.templates.parameter import Parameter
from penstock.templates.template import Template, templates
from tools.template_page import ARGUMENTS, DOCS, page, with_arguments

SHIPPED = pytest.mark.parametrize("template", templates().values(), ids=templates())


def flat(parameters: Mapping[str, Parameter], prefix: str = "") -> Iterator[tuple[str, Parameter]]:
    for name, each in parameters.items():
        if each.entries:
            yield from flat(each.entries, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", each


@SHIPPED
def test_schema_metadata_and_text_have_the_parameters_of_the_template(template: Template) -> None:
    schema = json_schema(template)["properties"]["parameters"]
    metadata = {each["name"]: each for each in flex_metadata(template)["parameters"]}
    text = " ".join(as_text(template).split())
    assert list(schema["properties"]) == list(template.parameters)
    assert schema["required"] == [name for name, each in template.parameters.items() if each.required]
    assert list(metadata) == [name for name, _ in flat(template.parameters)]
    for name, each in flat(template.parameters):
        described = schema
        for part in name.split(".", 1) if name not in template.parameters else [name]:
            described = described["properties"][part]
        assert described["description"] == metadata[name]["helpText"] == each.help
        assert described.get("default") == each.default
        assert metadata[name]["isOptional"] is not each.required
        values = described["items"] if each.repeated else described
        assert tuple(values.get("enum", ())) == each.choices
        assert f" {name} (" in text
        assert " ".join(each.help.split()) in text


def test_the_page_equals_the_descriptions_in_the_code() -> None:
    written = (DOCS / "templates.md").read_text("utf-8")
    assert written == page(), "run: python tools/template_page.py"


@pytest.mark.parametrize(("name", "heading"), ARGUMENTS)
def test_the_page_of_a_transform_has_the_arguments_that_it_declares(name: str, heading: str) -> None:
    written, declared = (DOCS / name).read_text("utf-8"), ARGUMENTS[name, heading]
    assert f"\n## {heading}\n" in written
    assert written == with_arguments(written, heading, declared), "run: python tools/template_page.py"
    assert all(each.help for each in arguments_of(declared).values())


def test_the_page_has_every_parameter_of_every_template() -> None:
    written = page()
    for template in templates().values():
        assert f"`{template.name}`" in written
        for name in template.parameters:
            assert f"| `{name}` |" in written, f"{name} of {template.name}"
