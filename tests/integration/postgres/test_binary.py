"""A value in binary form becomes the text that the server prints for it."""

from __future__ import annotations

import struct

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from penstock.errors import SetupError
from penstock.io.postgres.binary_values import binary_reader
from penstock.io.postgres.catalog import TYPES
from penstock.io.postgres.column_types import CatalogType, column_type
from penstock.io.postgres.text_values import SESSION_SETTINGS
from tests.integration.postgres.test_log import TYPES as EVERY_TYPE

pytestmark = pytest.mark.slow

CREATE = (
    "create type mood as enum ('sad', 'so so')",
    "create domain price as numeric(6,2)",
    "create type pair as (a int, b text)",
)

EDGES = {
    "boolean": ["t", "f"],
    '"char"': ["a", "", "\\351"],
    "tid": ["(4294967295,7)"],
    "xid8": ["18446744073709551615"],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "lseg": ["[(1,2),(3,4)]"],
    "path": ["((1,2),(3,4))", "[(1,2),(3,4)]"],
    "box": ["(3,4),(1,2)"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "line": ["{1,2,3}"],
    "circle": ["<(1,2),3.5>"],
    "cidr": ["10.0.0.0/8", "1.2.3.4/32", "2001:db8::/32"],
    "inet": ["10.0.0.1/8", "::ffff:1.2.3.4", "::1/64"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["-1234567.89", "92233720368547758.07"],
    "numeric": ["NaN", "Infinity", "-Infinity", "1e20", "1e-20", "0.00010000"],
    "date": ["0001-12-31 BC", "12345-01-02", "infinity", "-infinity"],
    "timetz": ["01:00:00+01:02:03", "24:00:00-03"],
    "timestamp": ["0044-03-15 12:00:00 BC", "infinity"],
    "timestamptz": ["0044-03-15 12:00:00.5+00 BC", "-infinity"],
    "interval": ["0", "14 mons -3 days 04:05:06", "-00:00:00.5"],
    "varbit": ["", "1010101011"],
    "pg_lsn": ["16/B374D848"],
    "tsvector": ["a:1A,3 b:2 'c d':5B", ""],
    "numrange": ["(1.5,2]", "empty", "(,)"],
    "tstzrange": ["[2000-01-01 00:00+00,infinity)"],
    "int4multirange": ["{[1,3),[5,8)}", "{}"],
    "int4[]": ["{}", "{{1,2},{3,4}}", "[0:1]={1,2}"],
    "text[]": ['{"", " x", "null", nUlL, "{", "a\\"b"}'],
    "pair": ["(,)", '(1,"")', '(2,"a""b\\\\ ")'],
    "pair[]": ['{"(1,\\"x y\\")",NULL}'],
}


@pytest.fixture
def compared(database):
    """A function that compares texts of a type with what its binary form becomes; NULL where the server refuses one."""
    database.execute(*CREATE)
    options = " ".join(
        f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SESSION_SETTINGS.items()
    )
    with psycopg.connect(database.dsn, autocommit=True, options=options) as session:
        catalog = {oid: CatalogType(oid, *rest) for oid, *rest in session.execute(TYPES).fetchall()}

        def compare(type_name, texts):
            ((oid,),) = session.execute(f"select pg_typeof(null::{type_name})::oid::int8").fetchall()
            show = binary_reader(column_type(oid, -1, catalog), catalog)
            assert show is not None, type_name
            values = sql.SQL(", ").join(sql.SQL("({})").format(sql.Literal(text)) for text in texts)
            query = sql.SQL(
                "copy (select format('%s', given::{type}), given::{type} from (values {values}) as v (given)) "
                "to stdout (format binary)"
            ).format(type=sql.SQL(type_name), values=values)
            with session.cursor() as cursor, cursor.copy(query) as copy:
                for text, binary in copy.rows():
                    assert show(bytes(binary)) == bytes(text).decode(), type_name

        yield compare


def test_a_value_of_every_type_has_the_servers_text(compared):
    for type_name, texts in EDGES.items():
        compared(type_name, texts)


def floats(width):
    kind, bits = ("f", 32) if width == 32 else ("d", 64)
    integers = st.integers(0, 2**bits - 1)
    return integers.map(lambda n: struct.unpack(kind, struct.pack("I" if width == 32 else "Q", n))[0])


VALUES = {
    "float4": floats(32).map(repr),
    "float8": floats(64).map(repr),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False, places=None)
    .map(lambda d: format(d, "f"))
    .filter(lambda text: len(text) < 200),
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "bytea": st.binary(max_size=20).map(lambda data: "\\x" + data.hex()),
    "date": st.integers(-2_400_000, 100_000_000).map(lambda n: f"J{n + 2_451_545}"),
    "timestamp": st.datetimes().map(str),
    "timestamptz": st.datetimes().map(lambda at: f"{at}+00"),
    "time": st.times().map(str),
    "interval": st.tuples(*(st.integers(-(10**6), 10**6) for _ in range(3))).map(
        lambda parts: "{} months {} days {} milliseconds".format(*parts)
    ),
    "text": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    "inet": st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str),
    "uuid": st.uuids().map(str),
    "varbit": st.text("01", max_size=40),
}


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_drawn_values_have_the_servers_text(compared, data):
    type_name = data.draw(st.sampled_from(sorted(VALUES)))
    compared(type_name, data.draw(st.lists(VALUES[type_name], min_size=20, max_size=60)))


def test_binary_rows_of_the_log_equal_text_rows(database):
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(EVERY_TYPE))
    database.execute(
        *CREATE,
        f"create table every (id int primary key, {columns})",
        "alter table every replica identity full",
    )
    database.publish()
    database.execute(
        f"insert into every values (1, {', '.join(value for value, _ in EVERY_TYPE.values())})",
        "update every set c1 = 5",
        "insert into every values (2)",
        "delete from every",
    )
    as_text = database.read()
    database.wait_for_free_slot()
    assert database.read(binary=True) == as_text
    database.wait_for_free_slot()
    assert database.read(binary=True, protocol="pull") == as_text
    assert len(as_text) == 5


def test_a_type_without_a_known_binary_form_is_refused_with_its_column(database):
    database.execute("create table t (id int primary key, words tsquery)")
    database.publish()
    database.execute("insert into t values (1, 'a & b')")
    with pytest.raises(SetupError, match=r"column words of public\.t has the type tsquery.*binary=False"):
        database.read(binary=True)
