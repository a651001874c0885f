"""A program that starts other programs while it reads a gRPC stream, as a driver starts Spark's JVM.

python -m tests.integration.children.program COUNT

Prints for each program its exit code if it is not 0, otherwise whether it ignored Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from penstock.runner.spark.gateway import start_process


class Echo(grpc.GenericRpcHandler):
    """Returns each message that it receives."""

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(lambda messages, context: messages)


def ticks() -> Iterator[bytes]:
    while True:
        time.sleep(0.005)
        yield b"tick"


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    echoed = grpc.insecure_channel(f"127.0.0.1:{port}").stream_stream("/echo/Echo")(ticks())
    next(echoed)
    threading.Thread(target=lambda: list(echoed), daemon=True).start()
    for _ in range(int(sys.argv[1])):
        child = start_process(["/bin/sh", "-c", "echo started; sleep 0.01"], os.environ)
        if child.stdout is not None:
            child.stdout.readline()
        deaf = int(Path(f"/proc/{child.pid}/status").read_text().partition("SigIgn:\t")[2][:16], 16) & 2
        print(child.wait(60) or ("deaf" if deaf else "heard"))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
