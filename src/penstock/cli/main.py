"""Entry point of the `penstock` command. It imports little, so that the first signals are handled soon.

The commands are in `penstock.cli.commands`, which takes 0.3 s to import.
"""

from __future__ import annotations

import sys

from penstock.launch.signals import exit_at_once
from penstock.launch.streams import open_missing_streams


def main() -> None:
    """Run the command. Usage errors exit with 2, as configuration errors do."""
    exit_at_once()
    open_missing_streams()

    from penstock.extras import MissingExtraError, extra_packages

    try:
        with extra_packages("cli"):
            from penstock.cli.commands import cli
    except MissingExtraError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)

    cli(prog_name="penstock")


if __name__ == "__main__":
    main()
