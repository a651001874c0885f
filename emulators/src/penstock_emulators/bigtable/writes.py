"""Every call that changes rows: checked, forwarded and logged under the rows' locks.

Calls for a table without a change stream are only forwarded, and switching a stream on waits for them. Every other
write that the backend has applied is logged, also if the client has disconnected. Checks and server-assigned timestamps
are done under the locks too, since a column family or the table may be dropped while a write waits, and a later change
of a row must not get an earlier timestamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as admin_types
from google.cloud.bigtable_v2.types import bigtable as data_types

from penstock_emulators.bigtable.backend import (
    CODES,
    DATA,
    TABLE_ADMIN,
    Backend,
    CallError,
    rows_from,
    rows_with,
)
from penstock_emulators.bigtable.locks import EVERY_ROW, stripes_of
from penstock_emulators.bigtable.mutations import (
    Refusal,
    admit,
    cell_deleted,
    cells_set,
    deletes_row,
    family_deleted,
    misshapen,
    shown,
    unfit,
)
from penstock_emulators.bigtable.profiles import ProfileError, Profiles
from penstock_emulators.bigtable.rules import condemned
from penstock_emulators.bigtable.table import ChangeStream, Table
from penstock_emulators.bigtable.tables import Tables, now_us
from penstock_emulators.bigtable.unbroken import Unbroken
from penstock_emulators.bigtable.wire import GARBAGE_COLLECTION, Origin

MutateRow = data_types.MutateRowRequest.pb()
MutateRows = data_types.MutateRowsRequest.pb()
MutateRowsResponse = data_types.MutateRowsResponse.pb()
CheckAndMutateRow = data_types.CheckAndMutateRowRequest.pb()
CheckAndMutateRowResponse = data_types.CheckAndMutateRowResponse.pb()
ReadModifyWriteRow = data_types.ReadModifyWriteRowRequest.pb()
ReadModifyWriteRowResponse = data_types.ReadModifyWriteRowResponse.pb()
DropRowRange = admin_types.DropRowRangeRequest.pb()

TIEBREAKER = 1
"""Of every write through the front: two of them never meet on one timestamp."""


class Writes:
    """The writing calls; each takes the request and the call's context and returns the response, as bytes."""

    def __init__(self, backend: Backend, tables: Tables, profiles: Profiles) -> None:
        """Forward to `backend` and log into the streams of `tables`."""
        self._backend = backend
        self._tables = tables
        self._profiles = profiles
        self._unbroken = Unbroken()

    async def mutate_row(self, body: bytes, context: Any) -> bytes:
        """MutateRow: one record, if the row changed at all."""
        return await self._unbroken.run(self._mutate_row(MutateRow.FromString(body), body, context))

    async def _mutate_row(self, request: Any, body: bytes, context: Any) -> bytes:
        async with self._tables.writing(request.table_name, stripes_of((request.row_key,))) as table:
            if table is None:
                return await self._backend.unary(DATA + "MutateRow", body, context)
            self._require_profile(table, request)
            _require_shape(len(request.mutations), request.row_key)
            # Forwarded as it came, unless a time was filled in.
            if _admitted(request.mutations, table):
                body = request.SerializeToString()
            # Before the write: afterwards the families that a DeleteFromRow has emptied cannot be found any more.
            present = await self._present(table, [request] if deletes_row(request.mutations) else [])
            # Before the write too: a reader that starts at a time must get every change written after it.
            begun_us = now_us()
            answer = await self._backend.unary(DATA + "MutateRow", body, context)
            self._log(table, request, [(request.row_key, request.mutations)], present, begun_us)
        return answer

    async def mutate_rows(self, body: bytes, context: Any) -> None:
        """MutateRows: a record for each entry that was applied; bad entries are answered here."""
        work = self._mutate_rows(MutateRows.FromString(body), body, context)
        for message in await self._unbroken.run(work):
            await context.write(message)

    async def _mutate_rows(self, request: Any, body: bytes, context: Any) -> list[bytes]:
        stripes = stripes_of([entry.row_key for entry in request.entries])
        async with self._tables.writing(request.table_name, stripes) as table:
            if table is None:
                return await self._backend.collected(DATA + "MutateRows", body, context)
            self._require_profile(table, request)
            _require_shape(max(len(request.entries), sum(len(entry.mutations) for entry in request.entries)))
            refused, changed = _sorted_out(request, table)
            if refused:
                return await self._some_rows(table, request, refused, context)
            body = request.SerializeToString() if changed else body
            return await self._all_rows(table, request, body, context)

    async def _some_rows(
        self, table: Table, request: Any, refused: dict[int, Refusal], context: Any
    ) -> list[bytes]:
        """Write the entries that are not refused, and return the answers of all entries by their index."""
        kept = [place for place in range(len(request.entries)) if place not in refused]
        rest = MutateRows()
        rest.CopyFrom(request)
        del rest.entries[:]
        rest.entries.extend(request.entries[place] for place in kept)
        answer = MutateRowsResponse()
        if kept:
            for message in await self._all_rows(table, rest, rest.SerializeToString(), context):
                answer.MergeFromString(message)
            for entry in answer.entries:
                entry.index = kept[entry.index]
        for place, refusal in refused.items():
            entry = answer.entries.add(index=place)
            entry.status.code, entry.status.message = refusal.code, refusal.message
        answer.entries.sort(key=lambda entry: entry.index)
        return [answer.SerializeToString()]

    async def _all_rows(self, table: Table, request: Any, body: bytes, context: Any) -> list[bytes]:
        """Write all entries. The caller holds their rows' locks."""
        deleting = [entry for entry in request.entries if deletes_row(entry.mutations)]
        present = await self._present(table, deleting)
        begun_us = now_us()
        answer = await self._backend.collected(DATA + "MutateRows", body, context)
        changes = [(entry.row_key, entry.mutations) for entry in _applied(request, answer)]
        self._log(table, request, changes, present, begun_us)
        return answer

    async def check_and_mutate_row(self, body: bytes, context: Any) -> bytes:
        """CheckAndMutateRow: a record of the branch that was applied."""
        request = CheckAndMutateRow.FromString(body)
        return await self._unbroken.run(self._check_and_mutate_row(request, body, context))

    async def _check_and_mutate_row(self, request: Any, body: bytes, context: Any) -> bytes:
        async with self._tables.writing(request.table_name, stripes_of((request.row_key,))) as table:
            if table is None:
                return await self._backend.unary(DATA + "CheckAndMutateRow", body, context)
            self._require_profile(table, request, transaction=True)
            _require_shape(max(len(request.true_mutations), len(request.false_mutations)), request.row_key)
            # `|` and not `or`: both branches must be checked and resolved, because the predicate is not known yet.
            if _admitted(request.true_mutations, table) | _admitted(request.false_mutations, table):
                body = request.SerializeToString()
            either = (*request.true_mutations, *request.false_mutations)
            present = await self._present(table, [request] if deletes_row(either) else [])
            begun_us = now_us()
            answer = await self._backend.unary(DATA + "CheckAndMutateRow", body, context)
            # Only the answer says which branch was applied.
            matched = CheckAndMutateRowResponse.FromString(answer).predicate_matched
            chosen = request.true_mutations if matched else request.false_mutations
            self._log(table, request, [(request.row_key, chosen)], present, begun_us)
        return answer

    async def read_modify_write_row(self, body: bytes, context: Any) -> bytes:
        """ReadModifyWriteRow: a record of the cells that it wrote."""
        request = ReadModifyWriteRow.FromString(body)
        return await self._unbroken.run(self._read_modify_write_row(request, body, context))

    async def _read_modify_write_row(self, request: Any, body: bytes, context: Any) -> bytes:
        async with self._tables.writing(request.table_name, stripes_of((request.row_key,))) as table:
            if table is None:
                return await self._backend.unary(DATA + "ReadModifyWriteRow", body, context)
            self._require_profile(table, request, transaction=True)
            _require_shape(len(request.rules), request.row_key)
            if (refusal := unfit(request.rules, table.aggregates)) is not None:
                raise _call_error(refusal)
            begun_us = now_us()
            answer = await self._backend.unary(DATA + "ReadModifyWriteRow", body, context)
            # The answer has the cells that were written, with their times.
            cells = cells_set(ReadModifyWriteRowResponse.FromString(answer).row)
            self._log(table, request, [(request.row_key, cells)], {}, begun_us)
        return answer

    async def drop_row_range(self, body: bytes, context: Any) -> bytes:
        """DropRowRange: a record for each row that held data."""
        return await self._unbroken.run(self._drop_row_range(DropRowRange.FromString(body), body, context))

    async def _drop_row_range(self, request: Any, body: bytes, context: Any) -> bytes:
        async with self._tables.writing(request.name, EVERY_ROW) as table:
            if table is None:
                return await self._backend.unary(TABLE_ADMIN + "DropRowRange", body, context)
            # Read before the call, because the rows are gone after it.
            dropped = await self._backend.families_with_data(table.name, rows_from(request.row_key_prefix))
            begun_us = now_us()
            answer = await self._backend.unary(TABLE_ADMIN + "DropRowRange", body, context)
            stream = table.stream
            if stream is not None:
                cluster = self._profiles.cluster(_instance(table), "")
                stream.append(
                    [
                        (key, [family_deleted(name) for name in sorted(dropped[key])])
                        for key in sorted(dropped)
                    ],
                    Origin(cluster, TIEBREAKER),
                    begun_us,
                )
        return answer

    def _require_profile(self, table: Table, request: Any, *, transaction: bool = False) -> None:
        """Refuse, with a CallError, a profile that does not exist, or that does not allow row transactions."""
        try:
            profile = self._profiles.get(_instance(table), request.app_profile_id)
        except ProfileError as error:
            raise CallError(grpc.StatusCode.NOT_FOUND, str(error)) from None
        if transaction and not profile.single_cluster_routing.allow_transactional_writes:
            raise CallError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the app profile does not allow single-row transactions; they need single-cluster routing with "
                "allow_transactional_writes",
            )

    async def collect_garbage(self, name: str) -> int:
        """Remove the cells that a table's rules remove, with a record for each row; return how many records."""
        return await self._unbroken.run(self._collect_garbage(name))

    async def _collect_garbage(self, name: str) -> int:
        async with self._tables.altering(name):
            table = await self._tables.get(name)
            begun_us = now_us()
            changes = await self._condemned(table)
            for key, mutations in changes:
                # One row at a time: a mutation of the backend is atomic per row.
                request = MutateRow(table_name=table.name, row_key=key, mutations=mutations)
                await self._backend.unary(DATA + "MutateRow", request.SerializeToString())
            if table.stream is not None:
                table.stream.append(changes, Origin("", 0, GARBAGE_COLLECTION), begun_us)
        return len(changes)

    async def apply_silently(self, table: str, key: bytes, mutations: Sequence[Any]) -> None:
        """Apply mutations to a row without logging them, for a caller that logs another record."""
        request = MutateRow(table_name=table, row_key=key, mutations=mutations)
        await self._backend.unary(DATA + "MutateRow", request.SerializeToString())

    async def _condemned(self, table: Table) -> list[tuple[bytes, list[Any]]]:
        columns: dict[tuple[bytes, str, bytes], list[int]] = {}
        async for key, (family, qualifier, stamp) in self._backend.cells(table.name, rows_from(b"")):
            columns.setdefault((key, family, qualifier), []).append(stamp)
        changes: dict[bytes, list[Any]] = {}
        for (key, family, qualifier), stamps in columns.items():
            # The rule needs all cells of a column, newest first.
            for stamp in condemned(table.families[family].gc_rule, stamps, now_us()):
                changes.setdefault(key, []).append(cell_deleted(family, qualifier, stamp))
        return list(changes.items())

    async def _present(self, table: Table, deleting: Sequence[Any]) -> dict[bytes, set[str]]:
        """Return the families that now hold data in the rows of `deleting`."""
        if not deleting:
            return {}
        keys = {entry.row_key for entry in deleting}
        found = await self._backend.families_with_data(table.name, rows_with(keys))
        return {key: found.get(key, set()) for key in keys}

    def _log(
        self,
        table: Table,
        request: Any,
        changes: Sequence[tuple[bytes, Sequence[Any]]],
        present: dict[bytes, set[str]],
        begun_us: int,
    ) -> None:
        """Log applied changes, if the stream is still on."""
        stream: ChangeStream | None = table.stream
        if stream is not None:
            cluster = self._profiles.cluster(_instance(table), request.app_profile_id)
            if present:
                changes = [(key, shown(mutations, present.get(key))) for key, mutations in changes]
            stream.append(changes, Origin(cluster, TIEBREAKER), begun_us)


def _require_shape(changes: int, *keys: bytes) -> None:
    """Raise CallError for a request that `misshapen` refuses."""
    if (refusal := misshapen(changes, *keys)) is not None:
        raise _call_error(refusal)


def _admitted(mutations: Any, table: Table) -> bool:
    """Return whether timestamps were resolved; raises CallError for mutations that are refused."""
    verdict = admit(mutations, table.aggregates, now_us())
    if isinstance(verdict, Refusal):
        raise _call_error(verdict)
    return verdict


def _call_error(refusal: Refusal) -> CallError:
    return CallError(CODES[refusal.code], refusal.message)


def _sorted_out(request: Any, table: Table) -> tuple[dict[int, Refusal], bool]:
    """Return which entries are refused, and whether timestamps were resolved in the others."""
    refused, changed, now = {}, False, now_us()
    for place, entry in enumerate(request.entries):
        shapeless = misshapen(len(entry.mutations), entry.row_key)
        verdict = shapeless or admit(entry.mutations, table.aggregates, now)
        if isinstance(verdict, Refusal):
            refused[place] = verdict
        else:
            changed |= verdict
    return refused, changed


def _applied(request: Any, answer: Sequence[bytes]) -> list[Any]:
    """Return the entries of a MutateRows with an OK in the answer, in their order."""
    statuses = [entry for message in answer for entry in MutateRowsResponse.FromString(message).entries]
    if all(not entry.status.code for entry in statuses):
        return list(request.entries)
    return [request.entries[entry.index] for entry in statuses if not entry.status.code]


def _instance(table: Table) -> str:
    return table.name.partition("/tables/")[0]
