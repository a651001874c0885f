"""Google's ordinary Python clients use the emulator unchanged, through BIGTABLE_EMULATOR_HOST."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from penstock_emulators.bigtable import (
    BigtableEmulator,
    EmulatorNotFoundError,
    EmulatorStartError,
    find_binary,
)
from penstock_emulators.commands import bigtable as command
from tests.integration.emulators.bigtable.client import (
    INSTANCE_ADMIN,
    TABLE_ADMIN,
    Client,
    now_us,
    set_cell,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.emulator, pytest.mark.long(seconds=5)]


@pytest.fixture
def environment(emulator: BigtableEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.filterwarnings("ignore:Connecting to Bigtable emulator")
def test_the_data_client_writes_and_reads(client: Client, environment: None) -> None:
    from google.cloud.bigtable.data import BigtableDataClient, DeleteAllFromRow, ReadRowsQuery, SetCell
    from google.cloud.bigtable.data.read_modify_write_rules import IncrementRule

    start = now_us()
    _, project, _, instance, _, table_id = client.table.split("/")
    with BigtableDataClient(project=project) as data, data.get_table(instance, table_id) as table:
        table.mutate_row(b"a", [SetCell("f", b"q", b"1")])
        table.mutate_row(b"b", SetCell("f", b"q", b"2"))
        table.read_modify_write_row(b"c", IncrementRule("g", b"n", 5))
        table.mutate_row(b"b", DeleteAllFromRow())
        assert {row.row_key for row in table.read_rows(ReadRowsQuery())} == {b"a", b"c"}
        assert table.sample_row_keys()
    assert [change.key for change in client.read(start_us=start).changes] == [b"a", b"b", b"c", b"b"]


def test_the_admin_client_sets_and_clears_the_change_stream(client: Client, environment: None) -> None:
    from google.cloud import bigtable

    _, project, _, instance, _, table_id = client.table.split("/")
    admin = bigtable.Client(project=project, admin=True)
    table = admin.instance(instance).table(table_id)
    assert table.exists()
    assert client.get().change_stream_config.retention_period.ToTimedelta() == timedelta(days=1)
    client.configure(days=3)
    assert client.get().change_stream_config.retention_period.ToTimedelta() == timedelta(days=3)
    with pytest.raises(grpc.RpcError, match="must be 1 to 7 days"):
        client.configure(days=8)
    table.column_family("h").create()
    assert set(table.list_column_families()) == {"f", "g", "h"}
    client.write(b"row", set_cell("h", b"q", b"1"))
    client.configure(days=0)
    assert not client.get().HasField("change_stream_config")
    table.delete()
    assert not table.exists()


def test_app_profiles_are_created_updated_listed_and_deleted(emulator: BigtableEmulator) -> None:
    from google.api_core.exceptions import AlreadyExists, NotFound
    from google.cloud.bigtable_admin_v2 import BigtableInstanceAdminClient
    from google.cloud.bigtable_admin_v2.services.bigtable_instance_admin.transports import (
        BigtableInstanceAdminGrpcTransport,
    )

    channel = grpc.insecure_channel(emulator.host)
    admin = BigtableInstanceAdminClient(transport=BigtableInstanceAdminGrpcTransport(channel=channel))
    parent = "projects/penstock-test/instances/profiles"
    (default,) = admin.list_app_profiles(parent=parent)
    assert default.single_cluster_routing.allow_transactional_writes
    single = {"single_cluster_routing": {"cluster_id": "c"}}
    made = admin.create_app_profile(parent=parent, app_profile_id="mine", app_profile=single)
    with pytest.raises(AlreadyExists):
        admin.create_app_profile(parent=parent, app_profile_id="mine", app_profile=single)
    changed = {"name": made.name, "multi_cluster_routing_use_any": {}, "description": "any"}
    paths = {"paths": ["multi_cluster_routing_use_any", "description"]}
    admin.update_app_profile(app_profile=changed, update_mask=paths).result()
    found = admin.get_app_profile(name=made.name)
    assert (found.description, "single_cluster_routing" in found) == ("any", False)
    admin.delete_app_profile(request={"name": made.name, "ignore_warnings": True})
    with pytest.raises(NotFound):
        admin.get_app_profile(name=made.name)
    channel.close()


def test_errors_and_unknown_calls_of_cbtemulator_are_passed_through(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        client.call("/google.bigtable.admin.v2.BigtableInstanceAdmin/", "ListInstances", _Nothing())
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.RpcError) as failed:
        client.call("/no.such.Service/", "Method", _Nothing())
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_calls_that_would_crash_cbtemulator_are_unimplemented(client: Client) -> None:
    backups = [f"{verb}Backup" for verb in ("Create", "Get", "Update", "Delete", "Copy")]
    views = [
        f"{verb}{kind}"
        for kind in ("LogicalView", "MaterializedView")
        for verb in ("Create", "Get", "Update", "Delete")
    ]
    lists = ["ListLogicalViews", "ListMaterializedViews", "ListHotTablets"]
    calls = [
        *((TABLE_ADMIN, name) for name in (*backups, "ListBackups", "RestoreTable", "UndeleteTable")),
        *((INSTANCE_ADMIN, name) for name in (*views, *lists, "PartialUpdateCluster")),
    ]
    for service, name in calls:
        with pytest.raises(grpc.RpcError) as failed:
            client.call(service, name, _Nothing())
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED, name
    assert client.cells() == {}


class _Nothing:
    def SerializeToString(self) -> bytes:
        return b""


def test_both_processes_end_with_their_parent_process(tmp_path: Path) -> None:
    program = (
        "import time; from penstock_emulators.bigtable import BigtableEmulator; "
        "e = BigtableEmulator.start(); print(e.process_group, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    assert len(members(group)) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait(60)
    parent.stdout.close()
    assert gone(group)


def test_cbtemulator_does_not_outlive_a_killed_front_and_sigterm_ends_both() -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with BigtableEmulator.start() as emulator:
            group = emulator.process_group
            os.kill(group, number)
            assert gone(group)


def members(group: int) -> list[int]:
    """The processes of the emulator, without the guard that ends them with this process."""
    columns = "pid=,pgid=,stat=,comm="
    listed = subprocess.run(["ps", "-eo", columns], capture_output=True, text=True, check=True, timeout=60)
    found = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    alive = [(int(pid), int(pgid)) for pid, pgid, stat, name in found if stat[0] != "Z" and name != "sh"]
    return [pid for pid, pgid in alive if pgid == group]


def gone(group: int) -> bool:
    wait_until(lambda: not members(group), lambda: members(group), every=0.05)
    return True


def test_a_front_whose_cbtemulator_dies_fails_with_the_reason(tmp_path: Path) -> None:
    with BigtableEmulator.start(log=tmp_path / "log") as emulator:
        process = emulator._process
        assert process is not None
        (behind,) = set(members(emulator.process_group)) - {emulator.process_group}
        os.kill(behind, signal.SIGKILL)
        assert process.wait(60) == 1
    assert "cbtemulator ended with exit code -9" in (tmp_path / "log").read_text()


def test_an_impossible_port_number_is_refused() -> None:
    for port in ("65536", "-1"):
        refused = CliRunner().invoke(command, ["--port", port])
        assert "is not in the range 0<=x<=65535" in refused.output


def test_a_missing_cbtemulator_is_reported_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGTABLE_EMULATOR_BIN", "/nowhere")
    with pytest.raises(EmulatorNotFoundError, match="gcloud components install bigtable"):
        BigtableEmulator.start()
    monkeypatch.delenv("BIGTABLE_EMULATOR_BIN")
    monkeypatch.setenv("BIGTABLE_EMULATOR_BIN", str(find_binary().parent))
    assert find_binary().name == "cbtemulator"


def test_a_taken_port_is_an_error(emulator: BigtableEmulator, tmp_path: Path) -> None:
    taken = int(emulator.host.rpartition(":")[2])
    with pytest.raises(EmulatorStartError, match="did not listen"):
        BigtableEmulator.start(port=taken, log=tmp_path / "log")
    assert f"port {taken} is in use" in (tmp_path / "log").read_text()
