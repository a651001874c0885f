"""The progress line that is redrawn on a terminal, with Rich."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text


class LiveLine:
    """One line at the bottom of a terminal. It is shown until `stop`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream)
        # File descriptor 2 is redirected to messages as a whole, so Rich need not replace sys.stderr.
        self._live = Live(Text("starting"), console=self._console, auto_refresh=False, redirect_stderr=False)
        self._live.start(refresh=True)

    def show(self, line: str) -> None:
        """Replace the line; what does not fit is cut off."""
        self._fit_to_terminal()
        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

    def print_above(self, text: str) -> None:
        """Print a message above the line."""
        self._console.print(Text(text), soft_wrap=True)

    def stop(self) -> None:
        """Leave the line as it is and show the cursor again."""
        self._live.stop()

    def _fit_to_terminal(self) -> None:
        """Tell Rich the width of the terminal. Rich asks descriptors 0 to 2, which may all be files or pipes."""
        try:
            self._console.width = os.get_terminal_size(self._stream.fileno()).columns or self._console.width
        except OSError:  # the terminal has gone, or the stream of a test has no descriptor
            return
