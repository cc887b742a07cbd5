"""Publication of model versions on a thread, while training goes on.

Each rank writes the rows that it holds, rank 0 also the model. When the parts of all ranks are durable, rank
0 writes the manifest, which publishes the version. At most one version is in progress. After a failed one,
the next version holds all rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic, sleep  # bound here, because `time` is patched for scripts
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ronde.errors import UsageError
from ronde.server.serving.durable import DamagedFile, digest, replace, sync_written
from ronde.server.serving.manifest import TableEntry, VersionManifest, path_of, versions_in
from ronde.server.table.delta import RowsOfVersion

__all__ = ["KEPT_VERSIONS", "Publication", "Version"]

#: Versions that stay on the disk, for a roll-back.
KEPT_VERSIONS = 10
_PATIENCE = 60.0
_PART = re.compile(r"\.?(delta|whole|dense|program)-\d+.*|\.\d+-rank-\d+\.json.*")
_LOOK_EVERY = 0.003


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """One rank's share of a version to write.

    Attributes:
        version, step, time, tables, no_program: the same as in `VersionManifest`.
        follows: the version to which `delta` is relative; None without a delta.
        delta, whole: rows by table; empty if they are not written.
        dense: parameters and buffers as a safetensors file; rank 0 only.
        program: a `torch.export` file, if it is to be written; rank 0 only.
    """

    version: int
    step: int
    time: float
    tables: Mapping[str, TableEntry]
    follows: int | None
    delta: Mapping[str, RowsOfVersion]
    whole: Mapping[str, RowsOfVersion]
    dense: bytes = b""
    program: bytes = b""
    no_program: str = ""


class Publication:
    """One rank's writer of published versions.

    Args:
        folder: folder shared by all ranks; created if missing, and may hold versions of an earlier run.
        rank: number of this rank.
        writers: number of ranks that hold rows, from rank 0 on.
        around: makes a context manager in which files are written.
        known: the newest version that readers know from elsewhere; this run's versions follow it.

    Attributes:
        durable: the newest version that this run has published; 0 before the first. Rank 0 only.
        begins_at: the first version of this run.
        trouble: error of the last version; "" if it was written.
        whole_bytes, delta_bytes: this rank's bytes of the last whole version, and of the deltas since.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        writers: int,
        around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        known: int = 0,
    ) -> None:
        self._folder, self._rank, self._writers, self._around = folder, rank, writers, around
        self._thread: threading.Thread | None = None
        self._program = ("", "")  # name and checksum
        self.durable = 0
        self.trouble = ""
        self.whole_bytes = self.delta_bytes = 0
        with around():
            folder.mkdir(parents=True, exist_ok=True)
            self.begins_at = max([known, *versions_in(folder)]) + 1
            if rank == 0:
                self._sweep()

    @property
    def busy(self) -> bool:
        """Return whether a version is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, version: Version) -> None:
        """Write a version on a thread, after the one before is written."""
        self.wait()
        self._thread = threading.Thread(
            target=self._work, args=(version,), name="ronde-publication", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until no version is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self, version: Version) -> None:
        with self._around():
            try:
                self._write(version)
                self.trouble = ""
            except OSError as error:
                self.trouble = f"{error.filename or self._folder}: {error.strerror or error}"

    def _write(self, version: Version) -> None:
        files: dict[str, str] = {}
        own: dict[str, list[str]] = {"delta": [], "whole": []}
        for kind, rows in (("delta", version.delta), ("whole", version.whole)):
            if rows:
                name = f"{kind}-{version.version}-rank-{self._rank}.safetensors"
                files[name] = self._save(name, rows)
                own[kind].append(name)
        self._count(version, own)
        if self._rank:
            told = json.dumps({"files": files, **own}).encode()
            replace(self._folder / self._word(version, self._rank), told)
            return
        dense = f"dense-{version.version}.safetensors"
        files[dense] = self._put(dense, version.dense)
        if version.program:
            name = f"program-{version.version}.pt2"
            self._program = (name, self._put(name, version.program))
        if self._program[0]:
            files[self._program[0]] = self._program[1]
        for rank in range(1, self._writers):
            told = self._await(self._folder / self._word(version, rank))
            files |= told["files"]
            for kind in own:
                own[kind] += told[kind]
        VersionManifest(
            version=version.version,
            step=version.step,
            time=version.time,
            tables=version.tables,
            files=files,
            dense=dense,
            program=self._program[0],
            no_program=version.no_program,
            follows=version.follows,
            delta=tuple(own["delta"]),
            whole=tuple(own["whole"]),
        ).write(self._folder)
        self.durable = version.version
        self._remove_old()

    def _word(self, version: Version, rank: int) -> str:
        """Return the name of the file by which a rank reports its durable part."""
        return f".{version.version}-rank-{rank}.json"

    def _await(self, path: Path) -> dict[str, Any]:
        until = monotonic() + _PATIENCE
        while not path.exists():
            if monotonic() > until:
                raise OSError(
                    0,
                    (
                        f"another rank has not written its part of the version for {_PATIENCE:.0f} seconds "
                        "[R733]"
                    ),
                    str(path),
                )
            sleep(_LOOK_EVERY)
        told = json.loads(path.read_bytes())
        path.unlink()
        return told

    def _save(self, name: str, rows: Mapping[str, RowsOfVersion]) -> str:
        arrays = {
            f"{table}/{field.name}": np.ascontiguousarray(getattr(part, field.name))
            for table, part in rows.items()
            for field in dataclasses.fields(part)
        }
        beside = self._folder / f".{name}"
        save_file(arrays, beside)
        found = digest(beside)
        sync_written(beside, self._folder / name)
        return found

    def _put(self, name: str, content: bytes) -> str:
        replace(self._folder / name, content)
        return digest(self._folder / name)

    def _count(self, version: Version, own: Mapping[str, list[str]]) -> None:
        def size(kind: str) -> int:
            return sum(os.stat(self._folder / name).st_size for name in own[kind])

        if version.whole:
            self.whole_bytes, self.delta_bytes = size("whole"), 0
        else:
            self.delta_bytes += size("delta")

    def _sweep(self) -> None:
        """Remove an earlier run's files that belong to no published version."""
        try:
            known = {name for manifest in self._manifests().values() for name in manifest.files}
        except UsageError:  # another ronde's format
            return
        for path in self._folder.iterdir():
            if _PART.fullmatch(path.name) and path.name not in known:
                path.unlink()

    def _manifests(self) -> dict[int, VersionManifest]:
        """Return the manifests of all undamaged versions."""
        found: dict[int, VersionManifest] = {}
        for number in versions_in(self._folder):
            with contextlib.suppress(DamagedFile):
                found[number] = VersionManifest.read(path_of(self._folder, number))
        return found

    def _remove_old(self) -> None:
        """Remove versions that are neither kept nor needed to build a kept one."""
        manifests = self._manifests()
        needed = {
            each for number in sorted(manifests)[-KEPT_VERSIONS:] for each in _made_of(number, manifests)
        }
        used = {name for number in needed for name in manifests[number].files}
        for number in manifests.keys() - needed:
            path_of(self._folder, number).unlink(missing_ok=True)
            for name in manifests[number].files.keys() - used:
                (self._folder / name).unlink(missing_ok=True)


def _made_of(number: int, manifests: Mapping[int, VersionManifest]) -> list[int]:
    """Return a version and its predecessors, back to one with all rows."""
    chain = [number]
    while not manifests[chain[-1]].whole and manifests[chain[-1]].tables:
        before = manifests[chain[-1]].follows
        if before is None or before not in manifests:
            break
        chain.append(before)
    return chain
