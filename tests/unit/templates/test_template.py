"""Every template that ships: its description, its example, and the pipeline that takes its values."""

from __future__ import annotations

import re

import pytest

from penstock.cli.configuration import configure
from penstock.cli.describe import as_text, job_file
from penstock.cli.inputs import read_job
from penstock.options import EMPTY
from penstock.pipelines.parameters import parameters_of
from penstock.templates.template import Template, UnknownTemplateError, template_named, templates

SHIPPED = list(templates().values())


@pytest.fixture(params=SHIPPED, ids=lambda each: each.name)
def shipped(request: pytest.FixtureRequest) -> Template:
    template: Template = request.param
    return template


def test_the_templates_are_found() -> None:
    assert "spanner-to-files" in {each.name for each in SHIPPED}


def test_an_unknown_template_says_which_was_probably_meant() -> None:
    with pytest.raises(UnknownTemplateError, match="did you mean 'spanner-to-files'"):
        template_named("spaner_to_files")


def test_the_example_is_a_valid_job(shipped: Template) -> None:
    job = read_job(job_file(shipped), "job.yaml")
    assert job.problems == ()
    configuration = configure(shipped, [job.parameters], [job.runner])
    required = {name for name, each in shipped.parameters.items() if each.required}
    assert required <= set(configuration.parameters)


def test_the_example_is_valid_with_every_comment_taken_away(shipped: Template) -> None:
    lines = [line.replace("  # ", "  ", 1) for line in job_file(shipped).splitlines() if _is_setting(line)]
    job = read_job("\n".join(lines), "job.yaml")
    assert job.problems == ()
    configuration = configure(shipped, [job.parameters], [job.runner])
    assert set(configuration.parameters) == set(shipped.parameters)


def _is_setting(line: str) -> bool:
    name = line.removeprefix("  # ").strip().partition(":")[0]
    return bool(re.fullmatch(r"\w+(\.\w+)*", name)) and ": " not in name and not line.startswith("#")


def test_the_description_names_every_parameter_and_guarantee(shipped: Template) -> None:
    text = " ".join(as_text(shipped).split())
    for name in shipped.parameters:
        assert f" {name} (" in text
    for guarantee in shipped.guarantees:
        assert " ".join(guarantee.split()) in text


def test_the_template_has_the_parameters_that_the_pipeline_takes(shipped: Template) -> None:
    taken = parameters_of(shipped.source, shipped.sink).every
    assert list(taken) == list(shipped.parameters)
    for name, parameter in shipped.parameters.items():
        left_out = () if parameter.repeated else {} if parameter.mapping else parameter.default
        default = EMPTY if parameter.required else left_out
        assert taken[name].default == default, name
