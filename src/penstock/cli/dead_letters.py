"""Commands for dead letters: the changes that a pipeline could not process, in files below its `dead_letters`."""

from __future__ import annotations

import json
import os
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import click

from penstock.cli.common import build, configuration_of, is_job_file, progress_options, refuse
from penstock.cli.configuration import Configuration, ConfigurationError
from penstock.cli.resolve import resolve
from penstock.cli.runner_options import RUNNER_PACKAGE, begin_session
from penstock.errors import PenstockError, UsageError
from penstock.launch.reporter import ignore_import_warnings, standard_error_reporter
from penstock.launch.run import Continuation, ExitCode, run_pipeline
from penstock.pipelines.published_folder import PublishedLine, published_lines
from penstock.pipelines.replays import PlannedReplay, ReplayFolder

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
        groups[group_of(line.content)] += 1
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
    for index, line in enumerate(read_letters(letters)):
        if index == limit:
            break
        shown = {"file": line.file, "line": line.number, **line.content}
        data = shown.pop("data")
        if values:
            shown["change"] = _change(line.content, data)
        click.echo(json.dumps(shown, default=repr))


@dead_letters.command("replay")
@click.argument("job", metavar="JOB.YAML")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="The values that `run` got.")
@progress_options
def replay_letters(job: str, sets: Sequence[str], progress: str, debug: bool) -> None:
    """Process the dead letters of a job again.

    Each enters the pipeline at the step that could not process it. The command stores a list of the replayed files next
    to the checkpoint, so no letter is replayed twice. Letters that fail again are new dead letters.
    """
    configuration = _configuration(job, sets)
    folder = str(configuration.parameters["dead_letters"])
    replays = ReplayFolder(str(configuration.runner["checkpoint_dir"]))
    ignore_import_warnings()
    try:
        code = _replay_all(replays, folder, configuration, progress, debug)
    except (PenstockError, OSError) as error:
        refuse(error)
    if code:
        sys.exit(code)


def _replay_all(
    replays: ReplayFolder, folder: str, configuration: Configuration, progress: str, debug: bool
) -> int:
    """Run the replays that were planned before and are not done, then a new one. Stop at the first that fails.

    Returns the exit code.
    """
    for each in [*replays.planned(), None]:
        planned = each or _new_replay(replays, folder, configuration)
        if planned is None:
            click.echo("no dead letters that can be replayed")
        elif not _is_done(planned):
            code = _run(configuration, planned, folder, progress, debug)
            if code:
                return code
            click.echo(f"replay {planned.number}: {len(planned.files)} files of dead letters")
    return 0


def _configuration(job: str, sets: Sequence[str]) -> Configuration:
    try:
        configuration = resolve(job, sets, {}, os.environ)
    except ConfigurationError as error:
        refuse(error)
    parameters = configuration.parameters
    if "dead_letters" not in parameters or parameters.get("format") == "native":
        refuse(f"{job} has no dead_letters, or native lines, whose dead letters are undecodable records")
    if parameters.get("barrier_seconds"):
        refuse("a job with barriers cannot replay: the records would come behind their barriers")
    return configuration


def _new_replay(replays: ReplayFolder, folder: str, configuration: Configuration) -> PlannedReplay | None:
    """Plan a replay of the files that no replay has and whose letters can all be replayed; None if there is none."""
    taken = {file for each in replays.planned() for file in each.files}
    reasons: dict[str, set[str]] = {}
    for line in read_letters(folder):
        if line.file not in taken:
            reasons.setdefault(line.file, set()).add(_refusal(line, configuration))
    for file, file_reasons in reasons.items():
        for reason in sorted(file_reasons - {""}):
            click.echo(f"not replayed: {file}: {reason}", err=True)
    files = [file for file, file_reasons in reasons.items() if file_reasons == {""}]
    return replays.plan(files) if files else None


def _refusal(line: PublishedLine, configuration: Configuration) -> str:
    from penstock.pipelines.replay import refusal
    from penstock.transforms.dead_letters import letter_of

    materialized = bool(configuration.parameters.get("materialize_rows"))
    return refusal(letter_of(line.content), materialize_rows=materialized)


def _letters(count: int) -> str:
    return "1 letter of a change" if count == 1 else f"{count:,} letters of changes"


def _is_done(planned: PlannedReplay) -> bool:
    try:
        record = import_module(RUNNER_PACKAGE).RemoteJob.open(planned.checkpoint).last()
    except PenstockError:  # not begun
        return False
    return record is not None and bool(record.state.done)


def _run(
    configuration: Configuration, planned: PlannedReplay, folder: str, progress: str, debug: bool
) -> ExitCode:
    """Run the job's pipeline with letters instead of its source."""
    runner = {**configuration.runner, "checkpoint_dir": planned.checkpoint}
    own = replace(configuration, runner=runner)

    def start() -> Any:
        from penstock.pipelines.letter_selection import LetterSelection
        from penstock.pipelines.replay import Replay
        from penstock.transforms.dead_letters import letter_of

        begin_session(runner, configuration.template.modules)
        letters = [letter_of(line.content) for line in read_letters(folder) if line.file in planned.files]
        materialized = bool(configuration.parameters.get("materialize_rows"))
        selection = LetterSelection.of(configuration.parameters)
        replay = Replay(letters, materialize_rows=materialized, selection=selection)
        if replay.left_out:
            click.echo(f"not written: {_letters(replay.left_out)} that the job leaves out now")
        return build(own, replay=replay)

    continuation = Continuation("to continue the replay, run the same command again")
    with standard_error_reporter(progress) as reporter:
        return run_pipeline(start, reporter, continuation, debug=debug)


def read_letters(letters: str) -> Iterator[PublishedLine]:
    """Yield the dead letters below the folder of the argument; refuse what is none."""
    try:
        yield from map(checked_letter, published_lines(_folder(letters)))
    except (PenstockError, OSError) as error:
        refuse(error)


def checked_letter(line: PublishedLine) -> PublishedLine:
    """Return the line if it is a dead letter.

    Raises:
        UsageError: it is none.
    """
    if not {"reason", "attempt", "element_type", "data"} <= line.content.keys():
        raise UsageError(
            f"line {line.number} of {line.file} is no dead letter: give the folder of dead_letters"
        )
    return line


def group_of(content: dict[str, Any]) -> tuple[str, int, str]:
    """Return the table, the attempt and the reason of a dead letter."""
    return _table(content), int(content["attempt"]), str(content["reason"])


def _folder(letters: str) -> str:
    if not is_job_file(letters):
        return letters
    configuration = configuration_of(letters)
    folder = None if configuration is None else configuration.parameters.get("dead_letters")
    if folder is None:
        refuse(f"{letters} is incomplete or has no dead_letters: give the folder instead")
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
