"""`penstock plan`: what `run` would do, of one job in detail, of many in a table."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import Any

import click

from penstock.cli import graph
from penstock.cli.checks import ask_services, try_to_build
from penstock.cli.common import (
    complete_template_or_file,
    refuse,
    refuse_options_of_one_job,
    value_options,
    write_file,
)
from penstock.cli.configuration import Configuration, ConfigurationError
from penstock.cli.job_places import is_folder
from penstock.cli.planned_jobs import as_text, planned_jobs
from penstock.cli.redaction import redacted, shown_value
from penstock.cli.resolve import resolve
from penstock.errors import PenstockError
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode
from penstock.templates.template import templates


@click.command()
@click.argument(
    "places",
    metavar="NAME|JOB.YAML|FOLDER…",
    nargs=-1,
    required=True,
    shell_complete=complete_template_or_file,
)
@value_options
@click.option("--depth", default=2, show_default=True, help="How far composite steps are opened.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture of the graph.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option("--online", is_flag=True, help="Also ask the services, and show their warnings.")
def plan(
    places: Sequence[str],
    sets: Sequence[str],
    depth: int,
    svg: Path | None,
    json_: bool,
    online: bool,
    **flags: Any,
) -> None:
    """Show what `run` would do, and start nothing.

    Prints the steps, the guarantees, and every value. Secrets are hidden.

    Several job files, or a FOLDER with job files directly in it, give a table: whether a start of each job begins,
    continues or is refused. The exit code is the highest of all jobs.
    """
    if len(places) > 1 or (places[0] not in templates() and is_folder(places[0])):
        refuse_options_of_one_job("json_", "online")
        sys.exit(_plan_many(places, json_, online))
    try:
        configuration = resolve(places[0], sets, flags, os.environ)
        pipeline = try_to_build(configuration, to_run=online)
        warnings = ask_services(configuration, pipeline, json_) if online else []
        steps = graph.graph_of(pipeline, depth)
    except ConfigurationError as error:
        refuse(error)
    if svg:
        write_file(svg, graph.as_svg(steps))
    guarantees = [*configuration.template.guarantees, *_refused_changes(configuration)]
    if json_:
        shown = {
            "steps": steps.steps,
            "edges": steps.edges,
            "guarantees": guarantees,
            **({"warnings": warnings} if online else {}),
            **redacted(configuration),
        }
        click.echo(json.dumps(shown, indent=2))
        return
    click.echo(f"{configuration.template.name}: {configuration.template.summary}\n\nSteps")
    click.echo(indent(graph.as_text(steps), "  "))
    click.echo("\nGuarantees\n" + "\n".join(f"  - {each}" for each in guarantees))
    if warnings:
        click.echo("\nWarnings\n" + "\n".join(f"  - {each}" for each in warnings))
    for section, values in redacted(configuration).items():
        click.echo(f"\n{section.capitalize()}")
        for name, value in values.items():
            click.echo(f"  {name}: {shown_value(value)}")


def _plan_many(places: Sequence[str], json_: bool, online: bool) -> ExitCode:
    """Print the table of the jobs, or their list as JSON; return the highest exit code."""
    ignore_import_warnings()
    try:
        jobs = planned_jobs(places, online=online)
    except (PenstockError, OSError) as error:
        refuse(error)
    click.echo(json.dumps(list(map(asdict, jobs)), indent=2) if json_ else as_text(jobs, online=online))
    return max(each.exit_code for each in jobs)


def _refused_changes(configuration: Configuration) -> list[str]:
    """Return what happens to changes that the pipeline cannot process, if its template has an error output."""
    if "dead_letters" not in configuration.template.parameters:
        return []
    folder = configuration.parameters.get("dead_letters")
    refused = "A change that cannot be decoded, converted or formatted"
    if folder is None:
        return [
            f"{refused} stops the pipeline before anything after it is published; dead_letters= lets it pass."
        ]
    return [f"{refused} is written to {folder}, exactly once; later changes of its row are not held back."]
