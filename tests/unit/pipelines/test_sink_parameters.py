"""What a user gives a template reaches the sink under the sink's names, and secrets stay hidden."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from penstock.options import arguments_of
from penstock.pipelines.sinks import SINKS, SinkKind
from penstock.pipelines.source_to_sink import _sink
from penstock.templates.template import templates

KINDS = pytest.mark.parametrize(("name", "kind"), SINKS.items())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the transform gets, in place of the transform."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(SinkKind, "load", lambda kind: lambda **given: found.update(given))
    return found


@KINDS
def test_every_parameter_reaches_the_sink(name: str, kind: SinkKind, made: dict[str, Any]):
    given = {kind.parameter(argument): f"value of {argument}" for argument in kind.names}
    _sink(kind, given)
    assert made == {argument: f"value of {argument}" for argument in kind.names}


@KINDS
def test_what_is_not_given_is_left_to_the_sink(name: str, kind: SinkKind, made: dict[str, Any]):
    _sink(kind, {"project": "that of the source"} if "project" in kind.renamed else {})
    assert made == {}


@KINDS
def test_the_default_of_a_parameter_is_that_of_the_sink(name: str, kind: SinkKind):
    known = arguments_of(kind.load())
    for source in kind.systems:
        shown = templates()[f"{source}-to-{name}"].parameters
        for argument in kind.names:
            default = known[argument].default
            if default in (inspect.Parameter.empty, None, {}):
                assert shown[kind.parameter(argument)].default is None
            else:
                assert shown[kind.parameter(argument)].default == default


@KINDS
def test_a_secret_of_a_sink_is_secret_in_its_templates(name: str, kind: SinkKind):
    for source in kind.systems:
        shown = templates()[f"{source}-to-{name}"].parameters
        secret = {argument for argument in kind.names if shown[kind.parameter(argument)].secret}
        assert secret == kind.secrets


def test_a_reference_to_a_secret_is_read_when_the_pipeline_is_built(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TARGET", "dbname=shop password=hunter2")
    _sink(SINKS["postgresql"], {"target_dsn": "${env:TARGET}"})
    _sink(SINKS["kafka"], {"config": {"sasl.password": "${env:TARGET}", "sasl.username": "u"}})
    assert made["dsn"] == made["config"]["sasl.password"] == "dbname=shop password=hunter2"
    assert made["config"]["sasl.username"] == "u"
