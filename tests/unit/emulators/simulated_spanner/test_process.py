"""The simulation as a process: it starts on a free port, forgets all when it restarts, and ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from penstock_emulators.server_process import EmulatorStartError
from penstock_emulators.simulated_spanner import Control, ControlError, SimulatedSpanner
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long(seconds=5)

PATH = "projects/p/instances/i/databases/d"
DDL = ["CREATE TABLE T (Id INT64) PRIMARY KEY (Id)", "CREATE CHANGE STREAM S FOR ALL"]


def test_the_process_starts_restarts_empty_and_refuses_a_port_in_use() -> None:
    with SimulatedSpanner.start(partitions=3) as simulation:
        simulation.create_database("p", "i", "d", DDL)
        with Control(simulation.host) as control:
            live = control.live(PATH, "S")
            assert len(live) == 3
            moment = control.split(PATH, "S", live[0])
            children = [each for each in control.partitions(PATH, "S") if each["parents"] == [live[0]]]
            assert [each["start"] for each in children] == [moment, moment]
            control.merge(PATH, "S", *(each["token"] for each in children))
            assert len(control.live(PATH, "S")) == 3
            with pytest.raises(ControlError, match="no live partition"):
                control.split(PATH, "S", live[0])
            with pytest.raises(ControlError, match="there are partitions"):
                control._run("nothing")
        port = int(simulation.host.rpartition(":")[2])
        with pytest.raises(EmulatorStartError):
            SimulatedSpanner.start(port=port)
        simulation.restart()
        assert simulation.host == f"localhost:{port}"
        with pytest.raises(ControlError, match="Instance not found"):
            simulation.control.live(PATH, "S")


def test_the_process_ends_with_its_parent_process() -> None:
    program = (
        "from penstock_emulators.simulated_spanner import SimulatedSpanner; import time\n"
        "simulation = SimulatedSpanner.start(); print(simulation.process_group, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait(60)
    parent.stdout.close()
    wait_until(lambda: not _runs(child), "the simulation outlives its parent")


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"
