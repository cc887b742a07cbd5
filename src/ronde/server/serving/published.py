"""Reader of the versions that a run publishes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file as load_tensors

from ronde.server.serving.durable import DamagedFile
from ronde.server.serving.manifest import VersionManifest, path_of, versions_in
from ronde.server.serving.program import Program
from ronde.server.serving.snapshot import Snapshot
from ronde.server.table.frozen import FrozenLayout, FrozenTable

__all__ = ["Published", "read_dense", "read_program"]

_DTYPES = {"I64": np.int64, "F32": np.float32, "F64": np.float64, "I8": np.int8}


class Published:
    """A `Source` with the versions in a run's folder, during the run or after.

    Args:
        folder: `published` in a run's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program: tuple[str, Program] | None = None

    def versions(self) -> list[int]:
        return versions_in(self._folder)

    def load(self, version: int, near: Snapshot | None = None) -> Snapshot:
        """Load a version: from a whole version and deltas, or from `near` and deltas.

        Raises:
            DamagedFile: a file is missing, or its checksum differs; no state was changed.
        """
        if near is not None and near.version < version:
            try:
                return self._make(self._chain(version, near.version), near)
            except DamagedFile:
                return self._make(self._chain(version, None), None)
        return self._make(self._chain(version, None), None)

    def _chain(self, version: int, near: int | None) -> list[VersionManifest]:
        """Return the manifests from the oldest needed one to that of `version`."""
        chain = [VersionManifest.read(path_of(self._folder, version))]
        while True:
            first = chain[0]
            if near is None and (first.whole or not first.tables):
                return chain
            if first.follows is None:
                raise DamagedFile(f"version {version} needs rows of a version that was removed [R741]")
            if first.follows == near:
                return chain
            chain.insert(0, VersionManifest.read(path_of(self._folder, first.follows)))

    def _make(self, chain: Sequence[VersionManifest], near: Snapshot | None) -> Snapshot:
        last = chain[-1]
        kinds = [each.whole if near is None and each is chain[0] else each.delta for each in chain]
        for manifest, names in zip(chain, kinds, strict=True):
            manifest.check(self._folder, *names)
        last.check(self._folder, last.dense, *filter(None, [last.program]))
        shapes = {name: entry.shape for name, entry in last.tables.items()}
        # Read everything before any row is changed: damage then changes nothing.
        parts = [_read(self._folder / name, shapes) for names in kinds for name in names]
        dense = read_dense(self._folder / last.dense)
        program = self._program_of(last)
        tables = {
            name: near.tables[name] if near is not None and name in near.tables else FrozenTable(shape)
            for name, shape in shapes.items()
        }
        for part in parts:
            for name in tables.keys() & part.keys():
                tables[name] = tables[name].changed(*part[name])
        return Snapshot(
            version=last.version,
            step=last.step,
            time=last.time,
            tables=tables,
            dense=dense,
            program=program,
            no_program=last.no_program,
        )

    def _program_of(self, manifest: VersionManifest) -> Program | None:
        if not manifest.program:
            return None
        key = manifest.files[manifest.program]
        if self._program is None or self._program[0] != key:
            self._program = (key, read_program(self._folder / manifest.program))
        return self._program[1]


def read_program(path: Path) -> Program:
    """Load a program; its checksum has been verified.

    Raises:
        DamagedFile: torch cannot load the file.
    """
    return Program(path)


def read_dense(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file by name.

    Raises:
        DamagedFile: the file is damaged.
    """
    try:
        return load_tensors(path)
    except (OSError, SafetensorError) as error:
        raise DamagedFile(f"{path} is damaged: {error} [R741]") from None


def _read(path: Path, shapes: dict[str, FrozenLayout]) -> dict[str, tuple[Any, Any, Any]]:
    """Return (ids, rows, removed ids) of each table in a file."""
    try:
        arrays = _arrays(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"{path} is damaged: {error} [R741]") from None
    out: dict[str, tuple[Any, Any, Any]] = {}
    for name, shape in shapes.items():
        found = [arrays.get(f"{name}/{field}") for field in ("ids", "rows", "removed")]
        if all(each is None for each in found):
            continue
        if not _fit(found, shape):
            raise DamagedFile(f"{path} is damaged: its arrays of table {name} do not fit together [R741]")
        out[name] = (found[0], found[1], found[2])
    return out


def _arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a safetensors file by name.

    The safetensors library holds the GIL while it reads (13 ms for 20 MB), which would delay requests.
    """
    with open(path, "rb", buffering=0) as file:
        content = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
        done = 0
        while count := file.readinto(content.data[done:]):
            done += count
    begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header: dict[str, Any] = json.loads(content[8:begin].tobytes())
    header.pop("__metadata__", None)
    out: dict[str, np.ndarray[Any, Any]] = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        out[name] = (
            content[begin + first : begin + last].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        )
    return out


def _fit(found: Iterable[Any], shape: FrozenLayout) -> bool:
    if any(each is None for each in found):
        return False
    ids, rows, removed = found
    whole = ids.dtype == removed.dtype == np.int64 and rows.dtype == np.dtype(shape.stored)
    return whole and ids.ndim == removed.ndim == 1 and rows.shape == (len(ids), shape.dim)
