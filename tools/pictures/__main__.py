"""Draws the pictures; see the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.pictures import overview, terminal
from tools.pictures.recording import record

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "pictures"
CAST = Path(__file__).resolve().parent / "quickstart.cast"


def pictures() -> dict[str, str]:
    """Return the text of each picture by its name."""
    return {"overview.svg": overview.draw(), "quickstart.svg": terminal.draw(CAST.read_text("utf-8"))}


def main() -> None:
    """Record a new run if that is asked for, and draw all pictures."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument(
        "--record", action="store_true", help="run the quickstart, which takes a minute, and keep it"
    )
    if parser.parse_args().record:
        CAST.write_text(record(), "utf-8")
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
