"""Exported models: one version in its own folder, in formats of other libraries.

manifest.json       version, tables, checksums
model.safetensors   parameters and buffers
program.pt2         the computation with these parameters (`torch.export.load`)
table-0.parquet     id: int64, row: fixed_size_list of float or int8; with int8 also scale: float
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import save_file

from ronde.errors import UsageError
from ronde.server.serving.durable import DamagedFile, check_digest, digest, replace, sync_written
from ronde.server.serving.manifest import TableEntry
from ronde.server.serving.published import read_dense, read_program
from ronde.server.serving.replica import NoSuchVersion
from ronde.server.serving.snapshot import Snapshot
from ronde.server.table.frozen import FrozenLayout, FrozenTable, quantized
from ronde.trace.whole_file import sync

__all__ = ["MANIFEST", "Exported", "export"]

MANIFEST = "manifest.json"
_FORMAT = 1
_DENSE, _PROGRAM = "model.safetensors", "program.pt2"
_ROWS_OF_A_GROUP = 1 << 18


def export(snapshot: Snapshot, folder: Path, *, int8: bool = False) -> None:
    """Write a version to a new folder.

    Args:
        int8: whether rows are stored as int8 with a scale each.

    Raises:
        UsageError: the folder exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already; choose another folder by --out DIR [R737]")
    beside = folder.absolute().with_name(f".{folder.absolute().name}.{os.getpid()}")
    beside.mkdir(parents=True)
    try:
        _fill(snapshot, beside, int8)
        if folder.exists():
            folder.rmdir()
        os.rename(beside, folder)
        sync(folder.absolute().parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _fill(snapshot: Snapshot, folder: Path, int8: bool) -> None:
    save_file({name: value.clone() for name, value in snapshot.dense.items()}, folder / _DENSE)
    if snapshot.program is not None:
        snapshot.program.save(folder / _PROGRAM, snapshot.dense)
    tables: dict[str, Any] = {}
    for number, (name, table) in enumerate(snapshot.tables.items()):
        file = f"table-{number}.parquet"
        stored = _write_rows(table, folder / file, int8)
        shape = table.shape
        entry = TableEntry.of(shape.dim, stored, shape.initial, shape.seed)
        tables[name] = {"file": file, **dataclasses.asdict(entry)}
    fields = {
        "format": _FORMAT,
        "version": snapshot.version,
        "step": snapshot.step,
        "time": snapshot.time,
        "no_program": snapshot.no_program,
        "tables": tables,
        "files": {path.name: digest(path) for path in sorted(folder.iterdir())},
    }
    for name in fields["files"]:
        sync_written(folder / name, folder / name)
    replace(folder / MANIFEST, json.dumps(fields, indent=1).encode())


def _write_rows(table: FrozenTable, path: Path, int8: bool) -> str:
    ids, rows, scales = table.rows()
    stored = table.shape.stored
    if int8 and stored != "int8":
        rows, scales = quantized(rows)
        stored = "int8"
    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    columns = {"id": pa.array(ids), "row": pa.FixedSizeListArray.from_arrays(flat, table.shape.dim)}
    if stored == "int8":
        columns["scale"] = pa.array(scales)
    pq.write_table(pa.table(columns), path, row_group_size=_ROWS_OF_A_GROUP)
    return stored


class Exported:
    """A `Source` with the one version that `export` wrote.

    Raises:
        DamagedFile: the manifest is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / MANIFEST
        try:
            self._fields: dict[str, Any] = json.loads(path.read_bytes())
            form = self._fields["format"]
            self._version = int(self._fields["version"])
        except OSError as error:
            raise DamagedFile(f"{path} cannot be read: {error.strerror} [R741]") from None
        except (ValueError, KeyError, TypeError):
            raise DamagedFile(f"{path} is damaged: it is not a manifest [R741]") from None
        if form != _FORMAT:
            raise UsageError(
                f"{path} has the form {form} of another ronde; this one reads form {_FORMAT} [R742]"
            )

    def versions(self) -> list[int]:
        return [self._version]

    def load(self, version: int, near: Snapshot | None = None) -> Snapshot:
        """Load the only version.

        Raises:
            DamagedFile: a file is missing, or its checksum differs.
        """
        del near
        if version != self._version:
            raise NoSuchVersion(f"there is no version {version}; there are {self._version} [R743]")
        fields = self._fields
        for name, expected in fields["files"].items():
            check_digest(self._folder / Path(name).name, expected)
        tables = {name: self._table(dict(entry)) for name, entry in fields["tables"].items()}
        program = read_program(self._folder / _PROGRAM) if _PROGRAM in fields["files"] else None
        return Snapshot(
            version=version,
            step=fields["step"],
            time=fields["time"],
            tables=tables,
            dense=read_dense(self._folder / _DENSE),
            program=program,
            no_program=fields["no_program"],
        )

    def _table(self, entry: dict[str, Any]) -> FrozenTable:
        path = self._folder / Path(entry.pop("file")).name
        shape = TableEntry(**entry).shape
        ids, rows, scales = _read_rows(path, shape)
        return FrozenTable(shape).changed(ids, rows, ids[:0], scales)


def _read_rows(path: Path, shape: FrozenLayout) -> tuple[Any, Any, Any]:
    try:
        table = pq.read_table(path)
        ids = table["id"].to_numpy()
        rows = table["row"].combine_chunks().flatten().to_numpy().reshape(len(ids), shape.dim)
        scales = table["scale"].to_numpy() if shape.stored == "int8" else None
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise DamagedFile(f"{path} is damaged: {error} [R741]") from None
    if ids.dtype != np.int64 or rows.dtype != np.dtype(shape.stored):
        raise DamagedFile(f"{path} is damaged: its columns are not what its manifest names [R741]")
    return ids, rows, scales
