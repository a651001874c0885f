"""Whether a folder of this machine can be made and written, without leaving anything behind."""

from __future__ import annotations

import os
import tempfile


def check_creatable(folder: str) -> None:
    """Check that a folder can be made, or written if it exists.

    Raises:
        OSError: it cannot; the text names the folder and its parent that refuses.
    """
    existing = os.path.abspath(folder)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    try:
        with tempfile.TemporaryDirectory(prefix=".penstock-", dir=existing):
            pass
    except OSError as error:
        # Not the name of the probe, which means nothing to the user.
        text = f"nothing can be created in {existing}: {error.strerror}"
        raise type(error)(error.errno, text, folder) from None
