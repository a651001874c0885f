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
from pyspark import java_gateway

from penstock.runner.spark.gateway import pyspark_popen


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
    with pyspark_popen({}):
        for _ in range(int(sys.argv[1])):
            # With a function for the child, as PySpark gives one.
            child = java_gateway.Popen(["sleep", "0.01"], preexec_fn=lambda: None)
            deaf = int(Path(f"/proc/{child.pid}/status").read_text().partition("SigIgn:\t")[2][:16], 16) & 2
            print(child.wait(60) or ("deaf" if deaf else "heard"))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
