"""Where values come from: flags, the environment, a job file; and that every mistake has a place."""

from __future__ import annotations

import pytest

from penstock.cli.inputs import Given, from_environment, from_flags, read_job


def problems_of(text: str) -> list[str]:
    return [str(problem) for problem in read_job(text, "job.yaml").problems]


def test_a_value_given_by_a_flag_is_never_split() -> None:
    given, problems = from_flags(["filter=a,b=c"])
    assert given == {"filter": Given(("a,b=c",), "--set filter")}
    assert not problems


def test_a_flag_given_again_adds_a_value() -> None:
    given, _ = from_flags(["table=a", "table=b"])
    assert given["table"] == Given(("a", "b"), "--set table", listed=True)


@pytest.mark.parametrize("pair", ["table", "=x"])
def test_a_flag_without_name_or_value_is_a_problem(pair: str) -> None:
    given, problems = from_flags([pair])
    assert not given
    assert "write --set name=value" in str(problems[0])


def test_the_environment_gives_only_known_names_and_no_empty_values() -> None:
    environment = {"PENSTOCK_PROJECT": "p", "PENSTOCK_OTHER": "x", "PENSTOCK_OUTPUT": "", "PROJECT": "y"}
    given = from_environment(environment, ["project", "output"])
    assert given == {"project": Given(("p",), "environment PENSTOCK_PROJECT")}


def test_scalars_of_a_job_file_keep_their_text_and_place() -> None:
    job = read_job("template: t\nparameters:\n  database: on\n  project: 0123\n", "job.yaml")
    assert job.template == Given(("t",), "job.yaml:1:11")
    assert job.parameters["database"] == Given(("on",), "job.yaml:3:13")
    assert job.parameters["project"].texts == ("0123",)


def test_a_list_in_a_job_file_is_a_list_even_of_one() -> None:
    job = read_job("template: t\nrunner:\n  conf: [a=b]\n  drop_state:\n    - Old\n    - Older\n", "job.yaml")
    assert job.runner["conf"] == Given(("a=b",), "job.yaml:3:9", listed=True)
    assert job.runner["drop_state"].texts == ("Old", "Older")


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
            "template: t\nparameters: {a: {b: c}}\n",
            "job.yaml:2:17: 'a' must be one value or a list of values",
        ),
        (
            "template: t\nparameters:\n  a: 1\n  a: 2\n",
            "job.yaml:4:3: 'a' stands here again; the first is in line 3",
        ),
        ("- a\n", "job.yaml:1:1: a job file has template, parameters, runner"),
    ],
)
def test_every_mistake_of_form_says_where_and_what(text: str, problem: str) -> None:
    assert problem in problems_of(text)


def test_text_that_is_no_yaml_says_where() -> None:
    assert problems_of("template: [a\n")[0].startswith("job.yaml:2:1: not YAML: ")


def test_a_character_that_yaml_does_not_allow_is_named_with_its_line() -> None:
    assert problems_of("template: t\nrunner:\n  conf: a\x00b\n")[0] == (
        "job.yaml:3:10: not YAML: the character '\\x00' is not allowed"
    )


def test_an_empty_file_is_a_mistake_and_not_a_crash() -> None:
    assert any("a job file has template" in problem for problem in problems_of(""))


def test_all_mistakes_are_found_at_once() -> None:
    assert len(problems_of("paramters: 1\nrunner: 2\nrunner: 3\n")) == 4
