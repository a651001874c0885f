"""Raw values from flags, the environment and a job file, and the place of every problem."""

from __future__ import annotations

import pytest

from penstock.cli.inputs import (
    MAX_JOB_CHARACTERS,
    MAX_NAMES,
    RawValue,
    from_environment,
    from_flags,
    read_job,
)


def problems_of(text: str) -> list[str]:
    return [str(problem) for problem in read_job(text, "job.yaml").problems]


def test_a_value_given_by_a_flag_is_never_split() -> None:
    given, problems = from_flags(["filter=a,b=c"])
    assert given == {"filter": RawValue(("a,b=c",), "--set filter")}
    assert not problems


def test_a_flag_given_again_adds_a_value() -> None:
    given, _ = from_flags(["table=a", "table=b"])
    assert given["table"] == RawValue(("a", "b"), "--set table", listed=True)


@pytest.mark.parametrize("pair", ["table", "=x"])
def test_a_flag_without_name_or_value_is_a_problem(pair: str) -> None:
    given, problems = from_flags([pair])
    assert not given
    assert "write --set name=value" in str(problems[0])


def test_the_environment_gives_only_known_names_and_no_empty_values() -> None:
    environment = {"PENSTOCK_PROJECT": "p", "PENSTOCK_OTHER": "x", "PENSTOCK_OUTPUT": "", "PROJECT": "y"}
    given = from_environment(environment, ["project", "output"])
    assert given == {"project": RawValue(("p",), "environment PENSTOCK_PROJECT")}


def test_scalars_of_a_job_file_keep_their_text_and_place() -> None:
    job = read_job("template: t\nparameters:\n  database: on\n  project: 0123\n", "job.yaml")
    assert job.template == RawValue(("t",), "job.yaml:1:11")
    assert job.parameters["database"] == RawValue(("on",), "job.yaml:3:13")
    assert job.parameters["project"].texts == ("0123",)


def test_a_list_in_a_job_file_is_a_list_even_of_one() -> None:
    job = read_job("template: t\nrunner:\n  conf: [a=b]\n  drop_state:\n    - Old\n    - Older\n", "job.yaml")
    assert job.runner["conf"] == RawValue(("a=b",), "job.yaml:3:9", listed=True)
    assert job.runner["drop_state"].texts == ("Old", "Older")


def test_a_mapping_in_a_job_file_is_one_value_for_each_name() -> None:
    job = read_job(
        "template: t\nparameters:\n  debezium:\n    server: shop\n    schemas_enable: true\n", "job.yaml"
    )
    assert job.problems == ()
    assert job.parameters["debezium.schemas_enable"].texts == ("true",)
    assert job.parameters["debezium.server"].where == "job.yaml:4:13"
    assert "debezium" not in job.parameters


def test_a_name_without_a_value_is_not_given() -> None:
    assert read_job("template: t\nparameters:\n  start:\n  end: null\n", "job.yaml").parameters == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("parameters: {}\n", "job.yaml: names no template; add a line 'template: NAME'"),
        ("template: [a]\n", "job.yaml:1:11: 'template' must be the name of a template"),
        (
            "template: t\nparamters: {}\n",
            "job.yaml:2:1: 'paramters' is unknown here; did you mean 'parameters'?",
        ),
        ("template: t\nparameters: 5\n", "job.yaml:2:13: 'parameters' must be a mapping of names to values"),
        (
            "template: t\nparameters: {a: {b: {c: d}}}\n",
            "job.yaml:2:21: 'a.b' must be one value or a list of values",
        ),
        (
            "template: t\nparameters:\n  a: 1\n  a: 2\n",
            "job.yaml:4:3: 'a' is given twice; the first is in line 3",
        ),
        ("- a\n", "job.yaml:1:1: a job file has template, parameters, runner"),
    ],
)
def test_each_syntax_error_has_a_position_and_a_fix(text: str, problem: str) -> None:
    assert problem in problems_of(text)


def test_the_error_of_text_that_is_not_yaml_names_the_position() -> None:
    assert problems_of("template: [a\n")[0].startswith("job.yaml:2:1: not YAML: ")


def test_a_tab_is_named() -> None:
    (problem,) = read_job("parameters:\n\tproject: x\n", "job.yaml").problems
    assert str(problem) == "job.yaml:2:1: not YAML: a tab; indent with spaces"


def test_a_character_that_yaml_does_not_allow_is_named_with_its_line() -> None:
    assert problems_of("template: t\nrunner:\n  conf: a\x00b\n")[0] == (
        "job.yaml:3:10: not YAML: the character '\\x00' is not allowed"
    )


def test_an_empty_file_is_a_problem() -> None:
    assert any("a job file has template" in problem for problem in problems_of(""))


def test_all_mistakes_are_found_at_once() -> None:
    assert len(problems_of("paramters: 1\nrunner: 2\nrunner: 3\n")) == 4


def test_a_file_that_is_not_yaml_has_one_problem() -> None:
    """Its template may well be there, so the file is not said to name none."""
    assert len(problems_of("template: t\nparameters: [a\n")) == 1


def test_a_key_full_of_aliases_is_refused_without_expanding_them() -> None:
    lists = "".join(f"  a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    text = f"template: t\nparameters:\n  a0: &a0 [x, x]\n{lists}  ? *a39\n  : 1\n"
    assert "a name must be plain text, not a list or a mapping" in problems_of(text)[-1]


def test_deep_nesting_is_refused_with_its_position() -> None:
    assert problems_of("template: t\nparameters: {a: " + "[" * 20_000) == [
        "job.yaml:2:23: is nested deeper than 8 levels; a job file has three"
    ]


def test_a_file_that_is_too_long_is_refused_unread() -> None:
    assert problems_of("#" * (MAX_JOB_CHARACTERS + 1)) == [
        "job.yaml: is longer than 65,536 characters, so it is not read; is it a job file?"
    ]


def test_a_section_with_too_many_names_is_one_more_problem() -> None:
    names = "".join(f"  name{n}: 1\n" for n in range(MAX_NAMES + 50))
    job = read_job(f"template: t\nparameters:\n{names}", "job.yaml")
    assert len(job.parameters) == MAX_NAMES
    assert [str(problem) for problem in job.problems] == [
        "job.yaml:3:3: has 250 names here; at most 200 are read"
    ]
