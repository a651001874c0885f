"""Every command line that a page shows: its command and options exist, and its parameters are those of the template.

`tests/unit/cli/test_documented_commands.py` runs the commands of docs/command-line.md, `test_tutorial.py` those of the
tutorial.
"""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.cli.commands import cli
from penstock.cli.configuration import ConfigurationError
from penstock.cli.resolve import resolve
from penstock.cli.runner_options import RUNNER
from penstock.templates.template import templates

ROOT = Path(__file__).resolve().parents[3]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]
BLOCK = re.compile(r"^ *```(\S*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:penstock|make|python -m) [^`]+)`")
SHELL = {"", "sh", "bash", "console"}
END = {"&", "&&", ";", "|", ">", "2>", "}"}


@dataclass(frozen=True, slots=True)
class Shown:
    """A command line of a page."""

    page: str
    line: str

    @property
    def words(self) -> list[str]:
        """The words of the first command, without variables before it and without what follows it."""
        try:
            words = shlex.split(self.line.removeprefix("$ "), comments=True)
        except ValueError:  # the rest of a line of a longer program
            return []
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        ends = [place for place, word in enumerate(words) if word in END or word.startswith((">", "2>"))]
        return words[: min(ends, default=len(words))]

    def __str__(self) -> str:
        return f"{self.page}: {self.line}"


def shown(start: str) -> list[Shown]:
    """Return the command lines of all pages that begin with a text."""
    return [each for each in _all() if " ".join(each.words).startswith(start)]


def _all() -> Iterator[Shown]:
    for page in PAGES:
        text, name = page.read_text("utf-8"), str(page.relative_to(ROOT))
        for language, code in BLOCK.findall(text):
            if language in SHELL:
                for line in re.sub(r"\\\n\s*", " ", code).splitlines():
                    for part in re.split(r"(?<=\S) && ", line.strip()):
                        yield Shown(name, part)
        for line in INLINE.findall(BLOCK.sub("", text)):
            yield Shown(name, " ".join(line.split()))


def command_of(each: Shown) -> tuple[click.Command, list[str]]:
    """Return the command that the words name, and its arguments."""
    command: click.Command = cli
    rest = each.words[1:]
    while (
        isinstance(command, click.Group) and rest and rest[0] in command.list_commands(click.Context(command))
    ):
        command, rest = command.get_command(click.Context(command), rest[0]), rest[1:]
    return command, rest


def options_of(each: Shown) -> set[str]:
    command, rest = command_of(each)
    if not command.context_settings.get("ignore_unknown_options"):
        return {name for each in command.params if isinstance(each, click.Option) for name in each.opts}
    # An emulator has a parser of its own.
    simulated = [word for word in rest if word == "--simulated"]
    helped = CliRunner().invoke(cli, [*each.words[1:3], *simulated, "--help"])
    return {*simulated, *re.findall(r"--[a-z-]+", helped.output)}


PENSTOCK = shown("penstock ")


def test_the_pages_show_commands() -> None:
    assert len(PENSTOCK) > 60
    assert {each.page for each in PENSTOCK} >= {"README.md", "docs/tutorial.md", "docs/quickstart.md"}


@pytest.mark.parametrize("each", PENSTOCK, ids=str)
def test_a_command_and_its_options_exist(each: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.emulator.restore_defaults", lambda: None)  # the signals are pytest's
    command, rest = command_of(each)
    own = rest[: rest.index("--")] if "--" in rest else rest
    own = [re.sub(r"\$\(.*\)", "", word) for word in own]
    named = set(re.findall(r"(?<!\S)\[?(--?[a-z-]+)", " ".join(own)))
    if isinstance(command, click.Group) and own and command is not cli:  # such as `dead-letters ls|show`
        assert set(own[0].split("|")) <= set(command.list_commands(click.Context(command)))
    elif command is not cli:
        assert named <= options_of(each)


SETS = [each for each in PENSTOCK if "--set" in each.words and "NAME=VALUE" not in each.line]


@pytest.mark.parametrize("each", SETS, ids=str)
def test_the_template_has_the_parameters_that_are_set(each: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOP_DSN", "YDB_TOKEN", "MASK_KEY"):
        monkeypatch.setenv(name, "secret")
    command, rest = command_of(each)
    words = [re.sub(r"=(\$\(.*\)|\$\w+)$", "=2026-01-31T12:00:00Z", word) for word in rest]
    words = [
        word for before, word in zip(["", *words], words, strict=False) if word != "…" or before[:2] == "--"
    ]
    given = command.make_context(str(command.name), words).params
    template = given.pop("name_or_file", None) or given["name"]
    sets = [pair for pair in given.pop("sets") if not pair.endswith("=…")]
    assert template in templates()
    flags = {name: value for name, value in given.items() if name in RUNNER}
    problems: list[str] = []
    try:
        resolve(template, sets, flags, os.environ)
    except ConfigurationError as error:
        problems = [str(problem) for problem in error.problems]
    complete = command.name != "init" and "…" not in each.line
    assert [problem for problem in problems if complete or "is required" not in problem] == []


def test_make_has_the_targets_that_the_pages_name() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = shown("make ")
    assert used
    for each in used:
        named = [word for word in each.words[1:] if "=" not in word and word.isalpha()]
        assert set(named) <= targets, each


def test_the_modules_that_the_pages_start_exist() -> None:
    used = [each for each in shown("python -m ") if each.words[2].isascii()]
    assert used
    for each in used:
        assert importlib.util.find_spec(each.words[2]) is not None, each


def test_the_extras_that_the_pages_install_exist() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = set(config["options.extras_require"])
    for page in PAGES:
        for names in re.findall(r"(?:penstock|'\.)\[([a-z0-9,]+)\]", page.read_text("utf-8")):
            assert set(names.split(",")) <= extras, f"{page}: {names}"
