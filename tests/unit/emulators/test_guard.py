"""A child with a guard ends with its parent, and is otherwise the child that it would be without."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from penstock_emulators.guard import guarded
from penstock_emulators.oracle.kill import session_members
from penstock_emulators.server_process import ServerProcess
from tests.support.waiting import wait_until

# A server with a child, started by a thread that ends at once.
PARENT = """
import sys, threading, time
from pathlib import Path
from penstock_emulators.server_process import ServerProcess

def start():
    kept.append(ServerProcess(["/bin/sh", "-c", "sleep 600 & sleep 600"], None))

kept = []
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(kept[0].group, flush=True)
time.sleep(600)
"""


def test_a_server_and_its_children_end_with_a_killed_parent_and_not_with_the_thread_that_started_them() -> (
    None
):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    wait_until(lambda: len(session_members(group)) == 4)  # the shell, two sleeps, the guard
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not session_members(group))


def test_a_guarded_child_has_its_own_id_exit_code_output_and_an_empty_input(tmp_path: Path) -> None:
    script = "import os, sys; print(os.getpid(), sys.argv[1], len(sys.stdin.read())); sys.exit(3)"
    command = guarded([sys.executable, "-c", script, "a 'quoted' $word"])
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    # To the end of the output: a guard that kept it open would hold this up.
    assert child.stdout is not None
    assert child.stdout.read().decode() == f"{child.pid} a 'quoted' $word 0\n"
    assert child.wait() == 3
    assert child.stdin is not None
    child.stdin.close()
    child.stdout.close()
    wait_until(lambda: not session_members(child.pid))


def test_a_stopped_server_leaves_no_guard(tmp_path: Path) -> None:
    before, process = threading.active_count(), ServerProcess(["sleep", "600"], tmp_path / "log")
    assert process.runs
    group = process.group
    process.stop()
    assert (session_members(group), process.runs, threading.active_count()) == (set(), False, before)


def test_the_guard_sends_the_signal_that_it_is_given() -> None:
    script = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(7))\n"
    command = guarded([sys.executable, "-c", f"{script}print(flush=True)\ntime.sleep(600)"], "INT")
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdout.readline()
    child.stdin.close()
    assert child.wait(60) == 7
