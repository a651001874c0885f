"""Commands for dead letters: the changes that a pipeline could not process, in files below its `dead_letters`."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from penstock.cli.common import configuration_of, is_job_file, refuse
from penstock.cli.folders import PublishedLine, published_lines
from penstock.errors import PenstockError

letters_argument = click.argument("letters", metavar="JOB.YAML|FOLDER")
"""A job file with dead_letters, or that folder: a path or a URL."""


@click.group("dead-letters")
def dead_letters() -> None:
    """Changes that a pipeline could not process."""


@dead_letters.command("ls")
@letters_argument
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def list_letters(letters: str, json_: bool) -> None:
    """Count the dead letters by table, attempt and reason."""
    groups: Counter[tuple[str, int, str]] = Counter()
    for line in read_letters(letters):
        groups[_table(line.content), int(line.content["attempt"]), str(line.content["reason"])] += 1
    found = [
        {"letters": count, "table": table, "attempt": attempt, "reason": reason}
        for (table, attempt, reason), count in groups.most_common()
    ]
    if json_:
        click.echo(json.dumps(found, indent=2))
        return
    for each in found:
        click.echo(f"{each['letters']:>8}  {each['table']}  attempt {each['attempt']}  {each['reason']}")
    click.echo(f"{groups.total()} dead letters")


@dead_letters.command("show")
@letters_argument
@click.option("--limit", default=20, show_default=True, help="Most letters to show.")
@click.option("--values", is_flag=True, help="Also show the change itself, with the values of its row.")
def show_letters(letters: str, limit: int, values: bool) -> None:
    """Show dead letters, one JSON object for each. Without --values they contain no values of rows."""
    for place, line in enumerate(read_letters(letters)):
        if place == limit:
            break
        shown = {"file": line.file, "line": line.number, **line.content}
        data = shown.pop("data")
        if values:
            shown["change"] = _change(line.content, data)
        click.echo(json.dumps(shown, default=repr))


def read_letters(letters: str) -> Iterator[PublishedLine]:
    """Yield the dead letters below the folder of the argument; refuse what is none."""
    try:
        for line in published_lines(_folder(letters)):
            if not {"reason", "attempt", "element_type", "data"} <= line.content.keys():
                refuse(
                    f"line {line.number} of {line.file} is no dead letter: give the folder of dead_letters"
                )
            yield line
    except (PenstockError, OSError) as error:
        refuse(error)


def _folder(letters: str) -> str:
    if not is_job_file(letters):
        return letters
    configuration = configuration_of(letters)
    folder = None if configuration is None else configuration.parameters.get("dead_letters")
    if folder is None:
        refuse(f"{letters} is incomplete or has no dead_letters: give the folder in its place")
    return str(folder)


def _table(content: dict[str, Any]) -> str:
    source = content["source"]
    return ".".join(filter(None, (source["schema"], source["table"]))) if source else "-"


def _change(content: dict[str, Any], data: str) -> Any:
    """Return an event with its images; the original bytes of anything else, as base64."""
    if content["version"] is None:
        return {"data": data}
    from penstock.event.coder import decode_event

    event = decode_event(b64decode(data))
    return {"op": str(event.op), "key": event.key, "before": event.before, "after": event.after}
