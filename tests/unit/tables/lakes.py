"""One table as its sink and another program see it, for each format whose rows are replaced without rewriting files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from penstock.event import ChangeEvent, Op, Version
from penstock.io.columnar import upkeep
from penstock.io.columnar.arrow_rows import new_table_schema
from penstock.io.columnar.open_file import OpenFile
from penstock.io.delta import vector_commit
from penstock.io.delta.folder import LocalFolder
from penstock.io.delta.snapshot_files import SnapshotFiles as DeltaFiles
from penstock.io.delta.table_log import AddedFile
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg import commit, row_delta
from penstock.io.iceberg.snapshot_files import SnapshotFiles as IcebergFiles
from penstock.io.iceberg.target import IcebergTarget
from tests.support.catalogs import catalog_in
from tests.unit.tables.histories import SCHEMA
from tests.unit.tables.test_delta import publish
from tests.unit.tables.test_snapshot_rows import row

COLUMNS = ("id", "amount")


class Lake(ABC):
    """A table in `folder`, and the sink that writes it."""

    valid: ClassVar[Mapping[str, str]]
    """By mode: which rows are those of the source; `all` takes every row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def driver(self, mode: Any = "current", **options: Any) -> Any:
        """Return the target of a driver that starts."""

    @abstractmethod
    def read(self, columns: Sequence[str], where: str) -> pa.Table:
        """Return rows, as another program reads them. `where` is in the language of the format."""

    @abstractmethod
    def data_files(self) -> list[str]:
        """Return the paths of the files with rows."""

    @abstractmethod
    def replaced(self) -> list[int]:
        """Return how many rows of each file are replaced, without the files that have none."""

    @abstractmethod
    def has_been_tidied(self) -> bool:
        """Tell whether the upkeep has rewritten files."""

    @abstractmethod
    def copy_row(self, key: int) -> None:
        """Let another program append a copy of a row."""

    @abstractmethod
    def low_limits(self, patch: pytest.MonkeyPatch) -> None:
        """Set limits that a history of some rows reaches."""

    @abstractmethod
    def without_upkeep(self, patch: pytest.MonkeyPatch) -> None:
        """Let no commit rewrite files."""

    @abstractmethod
    def before_upkeep(self, patch: pytest.MonkeyPatch, call: Callable[[], None]) -> None:
        """Make a call each time before files are rewritten."""

    def rows(self, *columns: str, mode: str = "current") -> list[tuple[Any, ...]]:
        """Return the rows of the source, sorted."""
        read = self.read(columns or COLUMNS, self.valid[mode])
        return sorted(tuple(each.values()) for each in read.to_pylist())


class DeltaLake(Lake):
    """A Delta table whose rows are replaced by deletion vectors."""

    valid: ClassVar = {
        "current": "not _penstock_deleted",
        "history": "_penstock_valid_to is null",
        "all": "true",
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "t"

    def driver(self, mode: Any = "current", **options: Any) -> Any:
        options = {"deletion_vectors": True, "tombstone_seconds": 1000, **options}
        return DeltaTarget(str(self.path), mode, "evolve", **options)

    def read(self, columns: Sequence[str], where: str) -> pa.Table:
        query = f"select {', '.join(columns)} from t where {where}"
        return pa.table(QueryBuilder().register("t", self.table()).execute(query))

    def data_files(self) -> list[str]:
        return [each.path for each in self.files()]

    def replaced(self) -> list[int]:
        return [each.deletion_vector.cardinality for each in self.files() if each.deletion_vector]

    def has_been_tidied(self) -> bool:
        return "OPTIMIZE" in self.operations()

    def copy_row(self, key: int) -> None:
        write_deltalake(self.path, self.read(["*"], f"id = {key}"), mode="append")

    def low_limits(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(vector_commit, "GROUP_ROWS", 3)
        _low_upkeep(patch)

    def without_upkeep(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(vector_commit, "files_to_rewrite", lambda files: [])

    def before_upkeep(self, patch: pytest.MonkeyPatch, call: Callable[[], None]) -> None:
        _before(patch, vector_commit, "rows_of_new_files", call)

    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def files(self) -> list[AddedFile]:
        folder = LocalFolder(str(self.path))
        return DeltaFiles(str(self.path), self.table(), folder).stored

    def entry(self) -> list[dict[str, Any]]:
        """Return the actions of the newest version."""
        text = (self.path / "_delta_log" / f"{self.table().version():020d}.json").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def operations(self) -> list[str]:
        return [str(each["operation"]) for each in reversed(self.table().history())]

    def vectors(self) -> set[str]:
        return {each.name for each in (self.path / "_penstock_vectors").glob("*.bin")}


class IcebergLake(Lake):
    """A catalogue in SQLite, and the sink of its table `shop.t`, whose rows are replaced by position deletes."""

    valid: ClassVar = {
        "current": "_penstock_deleted == false",
        "history": "_penstock_valid_to is null",
        "all": "id >= 0",
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(exist_ok=True)
        self.properties = catalog_in(folder)

    def driver(self, mode: Any = "current", **options: Any) -> Any:
        options = {"tombstone_seconds": 1000, **options}
        return IcebergTarget("shop.t", "test", mode, "evolve", self.properties, **options)

    def read(self, columns: Sequence[str], where: str) -> pa.Table:
        return self.table().scan(row_filter=where).to_arrow().select(columns)

    def data_files(self) -> list[str]:
        return self.files()[0]

    def replaced(self) -> list[int]:
        return [len(each) for each in IcebergFiles(self.table()).gone.values()]

    def has_been_tidied(self) -> bool:
        snapshots = self.table().snapshots()
        return "replace" in [each.summary.operation.value for each in snapshots if each.summary]

    def copy_row(self, key: int) -> None:
        self.table().append(self.table().scan(row_filter=f"id == {key}").to_arrow())

    def low_limits(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(commit, "GROUP_ROWS", 3)
        patch.setattr(row_delta, "DELETE_FILES", 3)
        patch.setattr(row_delta, "MANIFESTS", 3)
        _low_upkeep(patch)

    def without_upkeep(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(commit, "entries_to_rewrite", lambda files: [])

    def before_upkeep(self, patch: pytest.MonkeyPatch, call: Callable[[], None]) -> None:
        _before(patch, commit, "rewritten", call)

    def catalog(self) -> Any:
        return load_catalog("test", **self.properties)

    def table(self) -> Table:
        table: Table = self.catalog().load_table("shop.t")
        return table

    def created(self, **options: Any) -> Table:
        """Create the table as another program does."""
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists("shop")
        table: Table = catalog.create_table("shop.t", schema=new_table_schema(SCHEMA, "current"), **options)
        return table

    def files(self) -> tuple[list[str], list[str]]:
        """Return the paths of data files, and of files with position deletes."""
        files = IcebergFiles(self.table())
        paths = ([each.data_file.file_path for each in some] for some in (files.data, files.deletes))
        return next(paths), next(paths)


FORMATS: dict[str, type[Lake]] = {"Delta": DeltaLake, "Iceberg": IcebergLake}


def update(key: int, amount: int, version: int, **more: Any) -> ChangeEvent:
    return row(key, amount, Version(version), **{"op": Op.UPDATE, **more})


def published(
    lake: Lake, epochs: Sequence[Sequence[ChangeEvent]], first: int = 2, mode: Any = "current", **options: Any
) -> None:
    """Publish epochs by one driver; `first` is the number of the first one."""
    driver = lake.driver(mode, **options)
    for number, events in enumerate(epochs, first):
        publish(driver, list(events), number)


def opened_files(patch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the files that are opened from now on."""
    paths: list[str] = []
    original = OpenFile.__init__

    def watched(self: OpenFile, path: str, *arguments: Any) -> None:
        paths.append(path)
        original(self, path, *arguments)

    patch.setattr(OpenFile, "__init__", watched)
    return paths


def read_columns(patch: pytest.MonkeyPatch) -> list[tuple[str, ...] | None]:
    """Return a list of the columns that are read of row groups from now on."""
    read: list[tuple[str, ...] | None] = []
    original = OpenFile.rows

    def watched(self: OpenFile, number: int, columns: Any, places: Any = None) -> Any:
        read.append(None if columns is None else tuple(columns))
        return original(self, number, columns, places)

    patch.setattr(OpenFile, "rows", watched)
    return read


def _low_upkeep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(upkeep, "GROUP_ROWS", 4)
    patch.setattr(upkeep, "TOGETHER", 3)
    patch.setattr(upkeep, "WORN_ROWS", 4)


def _before(patch: pytest.MonkeyPatch, module: Any, name: str, call: Callable[[], None]) -> None:
    original = getattr(module, name)

    def watched(*arguments: Any) -> Any:
        call()
        return original(*arguments)

    patch.setattr(module, name, watched)
