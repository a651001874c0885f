"""An encoder of pgoutput messages for tests, written from PostgreSQL's documentation."""

from __future__ import annotations

from struct import pack

from penstock.io.postgres import messages as m


def encode(message: m.Message) -> bytes:
    return _ENCODERS[type(message)](message)


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _xid(message) -> bytes:
    return b"" if message.xid is None else pack("!I", message.xid)


def _row(row: m.Row) -> bytes:
    parts = [pack("!h", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        elif value is m.UNCHANGED:
            parts.append(b"u")
        else:
            data = value.encode() if isinstance(value, str) else value
            parts.append((b"t" if isinstance(value, str) else b"b") + pack("!i", len(data)) + data)
    return b"".join(parts)


def _old(row: m.Row, full: bool) -> bytes:
    return (b"O" if full else b"K") + _row(row)


def _insert(x: m.Insert) -> bytes:
    return b"I" + _xid(x) + pack("!I", x.relation_oid) + b"N" + _row(x.new)


def _update(x: m.Update) -> bytes:
    old = b"" if x.old is None else _old(x.old, x.old_is_full)
    return b"U" + _xid(x) + pack("!I", x.relation_oid) + old + b"N" + _row(x.new)


def _delete(x: m.Delete) -> bytes:
    return b"D" + _xid(x) + pack("!I", x.relation_oid) + _old(x.old, x.old_is_full)


def _relation(x: m.Relation) -> bytes:
    schema = "" if x.schema == "pg_catalog" else x.schema
    head = b"R" + _xid(x) + pack("!I", x.oid) + _text(schema) + _text(x.table) + x.replica_identity.encode()
    columns = [
        pack("!B", column.is_key) + _text(column.name) + pack("!Ii", column.type_oid, column.modifier)
        for column in x.columns
    ]
    return head + pack("!h", len(x.columns)) + b"".join(columns)


def _type(x: m.Type) -> bytes:
    return (
        b"Y"
        + _xid(x)
        + pack("!I", x.oid)
        + _text("" if x.schema == "pg_catalog" else x.schema)
        + _text(x.name)
    )


def _truncate(x: m.Truncate) -> bytes:
    options = x.cascade | x.restart_identity << 1
    return (
        b"T" + _xid(x) + pack(f"!iB{len(x.relation_oids)}I", len(x.relation_oids), options, *x.relation_oids)
    )


def _message(x: m.LogicalMessage) -> bytes:
    head = b"M" + _xid(x) + pack("!BQ", x.transactional, x.lsn) + _text(x.prefix)
    return head + pack("!I", len(x.content)) + x.content


def _abort(x: m.StreamAbort) -> bytes:
    return b"A" + pack("!II", x.xid, x.subxid) + (b"" if x.lsn is None else pack("!Qq", x.lsn, x.abort_us))


def _prepared(kind: bytes):
    def encode_prepared(x) -> bytes:
        return (
            kind + pack("!BQQqI", 0, *(getattr(x, name) for name in x.__struct_fields__[:4])) + _text(x.gid)
        )

    return encode_prepared


_ENCODERS = {
    m.Begin: lambda x: b"B" + pack("!QqI", x.final_lsn, x.commit_us, x.xid),
    m.Commit: lambda x: b"C" + pack("!BQQq", 0, x.lsn, x.end_lsn, x.commit_us),
    m.Origin: lambda x: b"O" + pack("!Q", x.lsn) + _text(x.name),
    m.Relation: _relation,
    m.Type: _type,
    m.Insert: _insert,
    m.Update: _update,
    m.Delete: _delete,
    m.Truncate: _truncate,
    m.LogicalMessage: _message,
    m.StreamStart: lambda x: b"S" + pack("!IB", x.xid, x.first_segment),
    m.StreamStop: lambda x: b"E",
    m.StreamCommit: lambda x: b"c" + pack("!IBQQq", x.xid, 0, x.lsn, x.end_lsn, x.commit_us),
    m.StreamAbort: _abort,
    m.BeginPrepare: lambda x: (
        b"b" + pack("!QQqI", x.prepare_lsn, x.end_lsn, x.prepare_us, x.xid) + _text(x.gid)
    ),
    m.Prepare: _prepared(b"P"),
    m.StreamPrepare: _prepared(b"p"),
    m.CommitPrepared: _prepared(b"K"),
    m.RollbackPrepared: lambda x: (
        b"r"
        + pack("!BQQqqI", 0, x.prepare_end_lsn, x.rollback_end_lsn, x.prepare_us, x.rollback_us, x.xid)
        + _text(x.gid)
    ),
}
