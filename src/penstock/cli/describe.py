"""Describes a template to a person: as text, and as a job file to fill in. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill, indent

from penstock.cli.runner_options import ONE_SHOT_OPTIONS, RUNNER
from penstock.templates.parameter import Parameter, show
from penstock.templates.template import Template

WIDTH = 100


def as_text(template: Template) -> str:
    """Return the template's description, guarantees and parameters as text."""
    blocks = [
        f"{template.name}: {template.summary}",
        "\n\n".join(fill(text, WIDTH) for text in template.description.strip().split("\n\n")),
        "Guarantees\n" + "\n".join(_bullet(text) for text in template.guarantees),
        "Parameters\n" + "\n".join(_entry(name, each) for name, each in template.parameters.items()),
        f"A job file to fill in: penstock describe {template.name} --example",
    ]
    return "\n\n".join(blocks) + "\n"


def job_file(
    template: Template,
    parameters: Mapping[str, Sequence[str]] | None = None,
    runner: Mapping[str, str] | None = None,
) -> str:
    """Return a job file: given values, example values of other required parameters, the rest as comments.

    `parameters` are the texts of each given parameter, ``mapping.option`` for an entry of a mapping.
    """
    values = parameters or {}
    lines = [f"# {template.summary}", f"template: {template.name}", "", "parameters:"]
    for name, each in template.parameters.items():
        lines += _given(name, each, values) or _setting(name, each)
    lines += ["", "runner:"]
    for name, each in RUNNER.items():
        if name not in ONE_SHOT_OPTIONS:
            needed = template.streaming and name == "checkpoint_dir"
            texts = {name: (runner[name],)} if runner and name in runner else {}
            option = each.model_copy(update={"required": needed})
            lines += _given(name, option, texts) or _setting(name, option)
    return "\n".join(lines) + "\n"


def _given(name: str, parameter: Parameter, given: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a parameter that was given; none if it was not."""
    help_ = indent(fill(parameter.help, WIDTH - 4), "  # ")
    if parameter.mapping:
        entries = {
            full.partition(".")[2]: texts[0] for full, texts in given.items() if full.startswith(f"{name}.")
        }
        inner = parameter.entries or {}
        lines = [
            f"    {entry}: {_quoted(text, inner.get(entry, parameter))}" for entry, text in entries.items()
        ]
        return [help_, f"  {name}:", *lines] if lines else []
    if name not in given:
        return []
    texts = [_quoted(text, parameter) for text in given[name]]
    return [help_, f"  {name}: {'[' + ', '.join(texts) + ']' if parameter.repeated else texts[0]}"]


def _entry(name: str, parameter: Parameter) -> str:
    facts = ", ".join(parameter_facts(parameter))
    entries = [_entry(f"{name}.{each}", inner) for each, inner in (parameter.entries or {}).items()]
    head = fill(f"{name} ({facts})", WIDTH, initial_indent="  ", subsequent_indent="      ")
    return "\n".join([head, indent(fill(parameter.help, WIDTH - 6), " " * 6), *entries])


def parameter_facts(parameter: Parameter) -> Iterator[str]:
    """Yield the type of a parameter, and what restricts its values."""
    yield "mapping" if parameter.mapping else parameter.type
    if parameter.required:
        yield "required"
    if parameter.repeated:
        yield "repeatable"
    if parameter.default is not None:
        yield f"default {show(parameter.default)}"
    if parameter.choices:
        yield "one of " + " ".join(parameter.choices)
    if parameter.minimum is not None or parameter.maximum is not None:
        yield f"{_bound(parameter.minimum)} to {_bound(parameter.maximum)}"


def _bound(value: float | None) -> str:
    return "any" if value is None else f"{value:.15g}"


def _setting(name: str, parameter: Parameter) -> Iterator[str]:
    yield indent(fill(parameter.help, WIDTH - 4), "  # ")
    if parameter.mapping:
        yield f"  # {name}:"
        for entry, text in _entry_examples(parameter):
            yield f"  #   {entry}: {text}".rstrip()
        return
    value = parameter.example if parameter.default is None else show(parameter.default)
    quoted = _quoted(value, parameter) if value else ""
    text = f"[{quoted}]" if parameter.repeated and value else quoted
    yield f"  {'' if parameter.required else '# '}{name}: {text}".rstrip()


def _entry_examples(parameter: Parameter) -> Iterator[tuple[str, str]]:
    """Yield names of a mapping with the text of an example or a default."""
    if parameter.entries is None:
        name, _, text = (parameter.example or "").partition("=")
        yield name, _quoted(text, parameter)
    for name, each in (parameter.entries or {}).items():
        value = each.example if each.default is None else show(each.default)
        yield name, _quoted(value, each) if value else ""


def _quoted(text: str, parameter: Parameter) -> str:
    if parameter.type in ("integer", "number", "boolean") and re.fullmatch(r"[\w.+-]+", text):
        return text
    return "'" + text.replace("'", "''") + "'"


def _bullet(text: str) -> str:
    return fill(text, WIDTH, initial_indent="  - ", subsequent_indent="    ")
