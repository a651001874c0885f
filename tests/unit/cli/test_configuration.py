"""Precedence, defaults, and all problems at once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.cli.configuration import Configuration, ConfigurationError, configure
from penstock.cli.inputs import Problem, RawValue
from penstock.cli.runner_options import RUNNER
from penstock.templates.parameter import Parameter
from penstock.templates.template import Template, templates


def template(streaming: bool = False, **parameters: Parameter) -> Template:
    return Template(
        name="t",
        summary="For this test.",
        description="",
        source="a",
        sink="b",
        streaming=streaming,
        guarantees=(),
        parameters=parameters,
    )


def layer(where: str, **texts: str) -> Mapping[str, RawValue]:
    return {name: RawValue((text,), where) for name, text in texts.items()}


def problems_of(*arguments: object, **more: object) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        configure(*arguments, **more)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


TEXT = Parameter(help="A text.")
NUMBER = Parameter(help="A number.", type="integer", default=7)
NEEDED = Parameter(help="A text.", required=True)
MANY = Parameter(help="Texts.", repeated=True)


def test_the_first_layer_that_gives_a_value_wins() -> None:
    layers = [layer("--set", a="1"), layer("environment", a="2", b="2"), layer("file", a="3", b="3", c="3")]
    found = configure(template(a=TEXT, b=TEXT, c=TEXT), layers, [])
    assert found.parameters == {"a": "1", "b": "2", "c": "3"}


def test_a_missing_value_is_the_default_or_absent() -> None:
    assert configure(template(a=NUMBER, b=TEXT), [], []).parameters == {"a": 7}


def test_a_weaker_layer_is_not_checked_when_a_stronger_one_gives_the_value() -> None:
    layers = [layer("--set", a="1"), layer("environment", a="no number")]
    assert configure(template(a=NUMBER), layers, []).parameters == {"a": 1}


def test_a_missing_required_value_says_how_to_set_it() -> None:
    assert problems_of(template(a=NEEDED), [], []) == [
        "parameter 'a' is required; pass --set a=VALUE, or put it under 'parameters' in the job file"
    ]


def test_a_streaming_template_needs_a_checkpoint_folder() -> None:
    assert problems_of(template(streaming=True), [], []) == [
        "runner option 'checkpoint_dir' is required; "
        "pass --checkpoint-dir VALUE, or put it under 'runner' in the job file"
    ]


def test_an_unknown_name_suggests_a_similar_one() -> None:
    assert problems_of(template(change_stream=TEXT), [layer("f:1:2", **{"change-streem": "x"})], []) == [
        "f:1:2: parameter 'change-streem' is unknown; did you mean 'change_stream'?"
    ]


def test_an_unknown_name_without_a_similar_one_lists_the_known_names() -> None:
    assert problems_of(template(a=TEXT, b=TEXT), [layer("f:1:2", zzz="x")], []) == [
        "f:1:2: parameter 'zzz' is unknown; known names: a, b"
    ]


def test_a_name_in_the_wrong_section_is_reported_with_the_right_section() -> None:
    assert problems_of(template(a=TEXT), [layer("--set master", master="x")], [layer("f:9:9", a="x")]) == [
        "--set master: parameter 'master' is unknown here; "
        "pass --master VALUE, or put it under 'runner' in the job file",
        "f:9:9: runner option 'a' is unknown here; "
        "pass --set a=VALUE, or put it under 'parameters' in the job file",
    ]


def test_a_list_is_for_repeated_parameters_only() -> None:
    twice = {
        "a": RawValue(("1", "2"), "--set a", listed=True),
        "b": RawValue(("1", "2"), "--set b", listed=True),
    }
    assert problems_of(template(a=TEXT, b=MANY), [twice], []) == [
        "--set a: parameter 'a': takes one value, but 2 were given"
    ]


@pytest.mark.parametrize("texts", [(), ("1",)])
def test_a_list_of_one_value_is_refused_as_a_list(texts: tuple[str, ...]) -> None:
    raw = {"a": RawValue(texts, "f:1:2", listed=True)}
    assert problems_of(template(a=TEXT), [raw], []) == ["f:1:2: parameter 'a': takes one value, not a list"]


def test_all_problems_are_reported_at_once_after_those_found_before() -> None:
    before = [Problem("file:1:1", "found before")]
    found = problems_of(
        template(a=NUMBER, b=NEEDED), [layer("x", a="many")], [layer("y", nope="1")], problems=before
    )
    assert len(found) == 4
    assert found[0] == "file:1:1: found before"


def test_one_problem_is_counted_in_the_singular() -> None:
    assert str(ConfigurationError([Problem("", "a")])).startswith("1 problem in")
    assert str(ConfigurationError([Problem("", "a"), Problem("", "b")])).startswith("2 problems in")


def test_runner_options_become_arguments_with_beams_names() -> None:
    given = {
        "master": RawValue(("local[1,4]",), "--master"),
        "conf": RawValue(("a.b=c,d", "e.f=g"), "--conf", listed=True),
        "fresh": RawValue(("true",), "--fresh"),
        "epoch_seconds": RawValue(("0.5",), "--epoch-seconds"),
    }
    configuration: Configuration = configure(template(), [], [given])
    assert configuration.runner_arguments() == [
        "--runner=penstock.runner.PySparkRunner",
        "--fresh",
        "--spark_master=local[1,4]",
        "--spark_conf=a.b=c,d",
        "--spark_conf=e.f=g",
        "--epoch_seconds=0.5",
    ]


def test_no_template_has_a_parameter_that_is_also_an_option_of_the_runner() -> None:
    for each in templates().values():
        assert not set(each.parameters) & set(RUNNER), each.name


FLAG, SIZE = Parameter(help="A flag.", type="boolean"), Parameter(help="A size.")
MAPPING = template(
    names=Parameter(help="New names.", mapping=True),
    options=Parameter(help="Options.", mapping=True, entries={"flag": FLAG, "size": SIZE}),
)


def given(texts: dict[str, str]) -> Mapping[str, RawValue]:
    return layer("--set", **texts)


def test_each_entry_of_a_mapping_comes_from_the_first_layer_that_has_it() -> None:
    flags, file = given({"names.a": "x"}), given({"names.a": "y", "names.b": "z", "options.flag": "true"})
    values = {"names": {"a": "x", "b": "z"}, "options": {"flag": True}}
    assert configure(MAPPING, [flags, file], []).parameters == values
    assert configure(MAPPING, [], []).parameters == {}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("options", "'options' takes values by name: set options.NAME=VALUE"),
        ("options.flga", "'options.flga' is unknown; did you mean 'options.flag'?"),
        ("options.flag", "'options.flag': 'x' is not true or false"),
        ("option.flag", "'option.flag' is unknown"),
    ],
)
def test_a_wrong_entry_of_a_mapping_is_named(name: str, complaint: str) -> None:
    (problem,) = problems_of(MAPPING, [given({name: "x"})], [])
    assert complaint in problem
