"""Jobs of templates in processes, and the command beside them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock_emulators.oracle.kill import python
from tests.integration.cli.conftest import Program


def job_file(folder: Path, template: str, **parameters: Any) -> Path:
    """Write a job that begins with a snapshot."""
    file = folder / "job.yaml"
    job = {
        "template": template,
        "parameters": {"snapshot": "initial", "roll_seconds": "0", **parameters},
        "runner": {"checkpoint_dir": str(folder / "checkpoint"), "master": "local[2,4]"},
    }
    file.write_text(json.dumps(job))
    return file


@contextmanager
def running(job: Path) -> Iterator[Program]:
    program = Program(python("penstock.cli.main", "run", str(job)), {}, job.parent)
    try:
        program.until((job.parent / "checkpoint" / "FORMAT").exists)  # the file by which others open it
        yield program
    finally:
        program.end()


def verify(job: Path, *options: str) -> tuple[int, Any, str]:
    """Run the command; return its exit code, its JSON and its messages."""
    done = subprocess.run(
        [*python("penstock.cli.main", "verify", str(job)), "--json", *options], capture_output=True, text=True
    )
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def found(results: Any, field: str = "differences") -> set[tuple[str, str, tuple[str, ...]]]:
    """Return the differences, or those of another field of a result: table, kind with key, columns."""
    return {
        (each["table"], f"{one['kind']} {one['key']}", tuple(column["column"] for column in one["columns"]))
        for each in results or ()
        for one in each.get(field, ())
    }
