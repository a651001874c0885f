"""The claims of the README and of the other pages hold."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from textwrap import indent

from penstock.cli.resolve import resolve

ROOT = Path(__file__).resolve().parent.parent.parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_the_first_screen_says_what_it_is_tested_on() -> None:
    first_screen = " ".join("\n".join(README.splitlines()[:25]).replace("**", "").split())
    assert "tested on the emulators" in first_screen
    assert "not yet on the live services" in first_screen.replace("> ", "")


def test_the_library_example_is_short() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    compile(code, "README.md", "exec")


def test_the_job_file_is_valid_and_has_ten_lines(tmp_path: Path) -> None:
    (job,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert len(job.splitlines()) <= 10
    (tmp_path / "job.yaml").write_text(job)
    assert resolve(str(tmp_path / "job.yaml"), (), {}, {}).template.name == "postgres-to-files"


def test_the_figures_on_the_first_screen_are_those_of_the_benchmarks() -> None:
    figures = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    (ours,) = re.findall(
        r"^\| postgres \| files \| 2 \|.*\| ([\d,]+) \(.*\) \| [\d.]+ \|$", figures, re.MULTILINE
    )
    (theirs,) = re.findall(
        r"^\| Debezium's engine \| none \|.*\| ([\d,]+) \| 1.00 \|$", figures, re.MULTILINE
    )
    (latency,) = re.findall(r"^\| p50 \| (\d+) \(.*\) \| \d \(", figures, re.MULTILINE)
    assert f"**{ours} changes per CPU second**" in README
    assert f"reaches {theirs} " in README
    assert f"{latency} ms (p50)" in README


def test_every_relative_link_of_the_pages_leads_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_folder_of_the_layout_table_exists() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    folders = re.findall(r"^\| `([a-z_/]+)` \|", page, re.MULTILINE)
    assert folders
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_the_readme_fits_on_two_screens() -> None:
    assert len(README.splitlines()) <= 110


IMPORT = re.compile(r"^from (penstock[\w.]*) import (\(.*?\)|[^\n#]+)", re.MULTILINE | re.DOTALL)


def test_every_import_of_the_pages_works() -> None:
    missing = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for code in re.findall(r"```python[^\n]*\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for module, names in IMPORT.findall(code):
                if module == "penstock.airflow":  # its page runs in tests/integration/schedulers
                    continue
                for name in re.findall(r"(\w+)(?: as \w+)?", names):
                    if not hasattr(importlib.import_module(module), name):
                        missing.append(f"{page.relative_to(ROOT)}: {module}.{name}")
    assert missing == []


def test_the_sql_that_prepares_postgres_is_the_block_that_the_tutorial_runs() -> None:
    tutorial = (ROOT / "docs" / "tutorial-postgres.md").read_text("utf-8")
    (block,) = re.findall(r'^```sql title="setup.sql"\n(.*?)^```', tutorial, re.MULTILINE | re.DOTALL)
    assert indent(block, "   ") in (ROOT / "docs" / "postgres.md").read_text("utf-8")
