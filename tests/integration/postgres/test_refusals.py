"""What cannot be read is refused with the fix, before or instead of a loss."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from click.testing import CliRunner

from penstock.cli.commands import cli
from penstock.errors import PositionLostError, SetupError, SeveralProblemsError, UnavailableError
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.postgres.client import Client
from tests.support.epochs import Epochs

pytestmark = pytest.mark.slow

TABLE = "create table t (id int primary key)"


def test_a_missing_publication_is_named_with_the_known_ones(database):
    database.publish()
    with pytest.raises(
        SetupError,
        match=r"no publication 'other' \(there are: changes\).*CREATE PUBLICATION other FOR ALL TABLES",
    ):
        database.source(publication="other").check()


@pytest.mark.parametrize("protocol", ["stream", "pull"])
def test_a_publication_that_was_dropped_while_the_slot_was_behind_loses_nothing_silently(database, protocol):
    database.execute(TABLE)
    database.publish()
    epochs = Epochs(database.source(protocol=protocol, heartbeat_seconds=0.1))
    database.execute("drop publication changes", "insert into t values (1)")
    with pytest.raises(SetupError, match="publication does not exist"):
        for _ in range(40):
            epochs.run(0.1)
    assert epochs.committed == []


def test_a_missing_slot_says_how_to_make_one(database):
    database.execute(TABLE, "create publication changes for all tables")
    with pytest.raises(PositionLostError, match="create_slot=True"):
        database.source().check()


def test_a_preview_creates_no_slot_and_takes_none_from_another_reader(database):
    database.execute(TABLE, "create publication changes for all tables")
    preview = database.source(create_slot=True, snapshot="when_needed").for_preview()
    with pytest.raises(SetupError, match="a preview creates none") as missing:
        preview.check()
    database.execute(*missing.value.run)
    preview.check()
    reader = database.source()
    with Client(reader.stream, reader._settings.connection) as client:
        stream = client.open_stream(0)
        try:
            with pytest.raises(SetupError, match="sends the slot to another reader"):
                preview.check()
            reader.check()  # a pipeline takes over from the driver before it
        finally:
            stream.close()


def test_everything_that_is_missing_is_told_at_once_with_statements_that_repair_it(database):
    database.execute(TABLE)
    role = f"Reader {database.name}"
    database.execute(f'create role "{role}" login')
    dsn = database.server.dsn(database.name, role.replace(" ", "\\ "))
    source = database.source(dsn=dsn, publication="changes", snapshot="initial")
    with pytest.raises(SeveralProblemsError) as raised:
        source.check()
    assert len(raised.value.problems) == 3
    database.execute(*raised.value.statements)
    with pytest.raises(SetupError, match="snapshots read rows of tables") as rights:
        source.check()
    database.execute(*rights.value.run)
    source.check()


def test_a_place_for_signals_that_does_not_exist_is_told_with_the_statements(database):
    database.execute(TABLE)
    database.publish("for table t")
    role = f"reader_{database.name}"
    database.execute(f"create role {role} login replication")
    dsn = database.server.dsn(database.name, role)
    source = database.source(dsn=dsn, signal_table="public.Signals", signal_folder="/proc/signals")
    with pytest.raises(
        SeveralProblemsError, match="(?s)no table public.Signals.*signal_folder /proc/signals"
    ) as told:
        source.check_start()
    database.execute(*told.value.statements)
    source = database.source(dsn=dsn, signal_table="public.Signals")
    source.check_start()
    database.execute('alter table "Signals" drop column data', f'revoke all on "Signals" from {role}')
    with pytest.raises(SetupError, match="has no column data"):
        source.check_start()
    assert any("has no column data" in text for text in source.setup_warnings())
    database.execute('alter table "Signals" add column data text')
    with pytest.raises(SetupError, match='may not read.*GRANT SELECT ON public."Signals"'):
        source.check_start()
    database.execute('alter publication changes add table "Signals"')  # then signals are read from the log
    source.check_start()


def test_create_slot_makes_the_slot_once(database):
    database.execute(TABLE, "create publication changes for all tables")
    source = database.source(create_slot=True, end=None)
    source.check()
    slots = "select count(*) from pg_replication_slots where slot_name = %s"
    assert database.session.execute(slots, (database.slot,)).fetchone() == (0,)  # a check changes nothing
    epochs = Epochs(source)
    database.execute("insert into t values (1)")
    source.check()
    epochs.run_until(database.clock())
    assert [record.new for record in epochs.committed] == [("1",)]


def test_a_slot_that_was_made_again_fails_instead_of_losing_changes(database):
    database.execute(TABLE)
    database.publish()
    epochs = Epochs(database.source(heartbeat_seconds=0.1, idle_stream_seconds=0))
    epochs.run_until(database.clock())
    database.wait_for_free_slot()
    database.execute(
        f"select pg_drop_replication_slot('{database.slot}')",
        "insert into t values (1)",
        f"select pg_create_logical_replication_slot('{database.slot}', 'pgoutput')",
    )
    with pytest.raises(PositionLostError, match="dropped and created again"):
        for _ in range(40):
            epochs.run(0.1)


def test_the_position_of_another_cluster_is_refused(database):
    database.execute(TABLE)
    database.publish()
    epochs = Epochs(database.source())
    ((frontier, state),) = epochs.residuals
    position = frontier.positions[database.slot]
    other = position._replace(position=[position.position[0], 0, "7000000000000000000"])
    epochs.residuals = [(replace(frontier, positions={database.slot: other}), state)]
    with pytest.raises(PositionLostError, match="another database cluster"):
        for _ in range(40):
            epochs.run(0.1)


def test_a_slot_that_the_server_has_invalidated_is_lost(database):
    database.execute(TABLE)
    database.publish()
    database.execute("alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
    try:
        for _ in range(3):  # the server removes whole files of its log, at a checkpoint
            database.execute(
                "insert into t select coalesce((select max(id) from t), 0) + i from generate_series(1, 200000) i",
                "select pg_switch_wal()",
            )
        database.execute("checkpoint")
        with pytest.raises(PositionLostError, match="max_slot_wal_keep_size"):
            database.source().check()
    finally:
        database.execute("alter system reset max_slot_wal_keep_size", "select pg_reload_conf()")


def test_a_slot_of_another_database_is_refused(database):
    database.publish()
    elsewhere = ReadFromPostgresChangeStream(
        dsn=database.server.dsn(), publication="changes", slot=database.slot
    )
    with psycopg.connect(database.server.dsn(), autocommit=True) as session:
        session.execute("create publication changes for all tables")
        try:
            with pytest.raises(SetupError, match=f"belongs to the database {database.name}"):
                elsewhere.check()
        finally:
            session.execute("drop publication changes")


def test_a_role_without_the_right_to_read_the_log_is_told_so(database):
    database.publish()
    role = f"reader_{database.name}"
    database.execute(f"create role {role} login")
    source = ReadFromPostgresChangeStream(
        dsn=database.server.dsn(database.name, role), publication="changes", slot=database.slot
    )
    with pytest.raises(SetupError, match=f"ALTER ROLE {role} REPLICATION"):
        source.check()
    database.execute(f"alter role {role} replication")
    source.check()


def test_a_server_that_does_not_answer_is_unavailable_and_the_password_is_not_shown():
    source = ReadFromPostgresChangeStream(
        dsn="host=127.0.0.1 port=1 dbname=shop user=u password=hunter2",
        publication="p",
        slot="s",
        unavailable_seconds=1,
    )
    with pytest.raises(UnavailableError, match="has not answered") as error:
        source.check()
    assert "hunter2" not in f"{error.value}{source.display_data()}{source._settings!r}"


def test_a_slot_in_use_is_waited_for(database):
    database.execute(TABLE)
    database.publish()
    other = Epochs(database.source(idle_stream_seconds=1))
    other.run(0.5)  # parks its connection for a second
    database.execute("insert into t values (1)")
    assert [record.new for record in database.read(idle_stream_seconds=0)] == [("1",)]


def test_a_role_that_may_not_read_the_tables_of_a_snapshot_is_told_so(database):
    database.execute(TABLE)
    database.publish()
    role = f"reader_{database.name}"
    database.execute(f"create role {role} login replication")
    dsn = database.server.dsn(database.name, role)
    database.source(dsn=dsn).check()  # changes alone need no right to select
    with pytest.raises(SetupError, match=r"public\.t.*GRANT SELECT ON public\.t"):
        database.source(dsn=dsn, snapshot="initial").check()


def test_a_role_with_the_rights_that_the_page_names_reads_rows_and_changes(database):
    database.execute(TABLE, "insert into t values (1)", "create table other (id int primary key)")
    role = f"reader_{database.name}"
    database.execute(
        f"create role {role} login",
        f"alter role {role} replication",
        f"grant select on all tables in schema public to {role}",
    )
    # The plan of a query decides for which tables a condition is computed. This one computes it for all of them, also
    # in schemas that the role may not use.
    database.execute(
        *(f"alter role {role} set {limit} = 1" for limit in ("join_collapse_limit", "from_collapse_limit"))
    )
    database.publish("for table t, other")
    dsn = database.server.dsn(database.name, role)
    source = database.source(dsn=dsn, snapshot="initial", end=database.clock())
    source.check()
    assert source.setup_warnings() is not None
    assert source.capture_type() == "DEFAULT"
    assert [record.new for record in Epochs(source).run_to_the_end()] == [("1",)]


def test_validate_online_and_plan_show_what_may_fail_later(database):
    database.execute(TABLE, "create table bare (v int)")
    database.publish()
    given = {"dsn": database.dsn, "publication": "changes", "slot": database.slot, "output": "/data"}
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    words = ["postgres-to-files", *sets, "--checkpoint-dir", "/checkpoint", "--online"]
    for command in ("validate", "plan"):
        done = CliRunner().invoke(cli, [command, *words])
        assert done.exit_code == 0, done.output
        assert "max_slot_wal_keep_size is -1" in done.output
        assert "public.bare: no replica identity" in done.output


def test_validate_online_tells_everything_that_run_would_refuse(database, tmp_path):
    database.execute("create table visits (at text primary key, n int)")
    given = {"dsn": database.dsn, "publication": "changes", "slot": database.slot, "uri": "/proc/x/{table}"}
    given |= {"tables": "public.nosuch"}
    checkpoint = ["--checkpoint-dir", "/proc/c9"]

    def told(command: str, **more: str) -> str:
        sets = [word for name, value in {**given, **more}.items() for word in ("--set", f"{name}={value}")]
        done = CliRunner().invoke(cli, [command, "postgres-to-delta", *sets, *checkpoint, "--online"])
        assert done.exit_code == 3, done.output
        return done.output

    first = told("validate")
    for part in (
        "no publication",
        "the slot does not exist",
        "/proc/x",
        "/proc/c9",
        "--set create_slot=true",
    ):
        assert part in first
    database.publish()
    del given["tables"]
    second = told("plan", without_tables="visit", without_columns="nocol", where="at2 == 1", tables="nosuch")
    assert "tables: no table of publication changes matches 'nosuch'" in second
    third = told("validate", without_tables="visit", without_columns="nocol", where="n2 == 1")
    for part in (
        "did you mean 'public.visits'",
        "has no column 'nocol'",
        "a column 'n2'; did you mean 'n'",
        "/proc/c9",
    ):
        assert part in third


def test_a_protocol_that_the_server_does_not_have_is_named(database):
    database.publish()
    if database.session.info.server_version < 160_000:
        with pytest.raises(SetupError, match="streaming=on"):
            database.source(streaming="parallel").check()
    else:
        database.source(streaming="parallel").check()
