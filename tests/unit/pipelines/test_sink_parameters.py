"""What a user gives a template reaches the sink under the sink's names, and secrets stay hidden."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from penstock.pipelines.sinks import SINKS, SinkKind
from penstock.pipelines.source_to_sink import _target
from penstock.templates.template import templates

KINDS = pytest.mark.parametrize(("name", "kind"), SINKS.items())


def made_with(kind: SinkKind, given: dict[str, Any]) -> dict[str, Any]:
    """Return what the transform gets for these parameters."""
    found: dict[str, Any] = {}
    noting = dataclasses.replace(kind, transform=lambda: lambda **given: found.update(given))
    _target(noting, given)
    return found


@KINDS
def test_every_parameter_reaches_the_sink(name: str, kind: SinkKind):
    given = {kind.parameter(argument): f"value of {argument}" for argument in kind.arguments()}
    assert made_with(kind, given) == {argument: f"value of {argument}" for argument in kind.arguments()}


@KINDS
def test_the_default_of_a_parameter_is_that_of_the_sink(name: str, kind: SinkKind):
    known = kind.arguments()
    for source in kind.systems:
        shown = templates()[f"{source}-to-{name}"].parameters
        for argument in kind.arguments():
            default = known[argument].default
            if default in (inspect.Parameter.empty, None, {}, ()):
                assert shown[kind.parameter(argument)].default is None
            else:
                assert shown[kind.parameter(argument)].default == default


@KINDS
def test_a_secret_of_a_sink_is_secret_in_its_templates(name: str, kind: SinkKind):
    for source in kind.systems:
        shown = templates()[f"{source}-to-{name}"].parameters
        secret = {argument for argument in kind.arguments() if shown[kind.parameter(argument)].secret}
        assert secret == kind.secrets


def test_a_reference_to_a_secret_is_read_when_the_pipeline_is_built(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("TARGET", "dbname=shop password=hunter2")
    secret = "dbname=shop password=hunter2"
    assert made_with(SINKS["postgresql"], {"target_dsn": "${env:TARGET}"}) == {"dsn": secret}
    config = {"sasl.password": "${env:TARGET}", "sasl.username": "u"}
    assert made_with(SINKS["kafka"], {"config": config}) == {
        "config": {"sasl.password": secret, "sasl.username": "u"}
    }
