"""The worker daemon as the driver starts it, beside the JVM: see `spark/daemon_handoff.py`.

python -m penstock.runner.early_daemon DESCRIPTOR [MODULE …]
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import signal
import socket
import sys

from penstock.runner.spark.daemon_handoff import take_over


def main() -> None:
    descriptor, *modules = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the daemon inherits it from the JVM
    from penstock.runner import daemon

    logging.disable(logging.WARNING)
    for module in modules:
        with contextlib.suppress(ImportError):  # whoever needs it says so
            importlib.import_module(module)
    logging.disable(logging.NOTSET)
    connection = take_over(socket.socket(fileno=int(descriptor)))
    if connection is not None:
        daemon.serve()


if __name__ == "__main__":
    main()
