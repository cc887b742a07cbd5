"""A read-only server of a model: look-ups, predictions and versions. It does not depend on the protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

import numpy as np
import torch

from ronde.errors import RondeError
from ronde.server.serving.program import NoProgram
from ronde.server.serving.snapshot import Snapshot, VersionSource

__all__ = ["LookupCounters", "NoSuchTable", "NoSuchVersion", "Replica"]


class NoSuchTable(RondeError):
    """Raised when the model has no such table."""


class NoSuchVersion(RondeError):
    """Raised when the version does not exist, or was removed."""


@dataclass
class LookupCounters:
    """Counters of look-ups, predictions included.

    Attributes:
        asked: number of ids looked up.
        found: number of these ids that had a row.
    """

    asked: int = 0
    found: int = 0


class Replica:
    """A server of one version at a time; each request sees one consistent version.

    Args:
        source: the source of versions.
        version: version to serve, pinned; None: the newest, including later ones.
        say: function that reports errors to the user.

    Raises:
        NoSuchVersion: the version does not exist.
        DamagedFile: a file is missing, or its checksum differs.

    Attributes:
        counts: counters of look-ups.
        lag: seconds from the end of a version's training step until it was served, for the last new version
            that was followed; None before the first.
        trouble: error that keeps a newer version from being served; "" without one.
    """

    def __init__(
        self,
        source: VersionSource,
        version: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._source, self._say = source, say
        self._pinned = version
        self._changing = threading.Lock()
        self._following: threading.Thread | None = None
        self._ends = threading.Event()
        self.counts = LookupCounters()
        self._counting = threading.Lock()
        self.lag: float | None = None
        self.trouble = ""
        self._snapshot = source.load(self._known(version))
        self._newest = max(source.versions(), default=0)
        for table in self._snapshot.tables.values():  # compile now, not at the first request
            table.look_up(np.zeros(1, np.int64))

    @property
    def snapshot(self) -> Snapshot:
        """The version that is served now. Keep it to make several requests of one version."""
        return self._snapshot

    @property
    def pinned(self) -> int | None:
        """The pinned version; None: the newest is served."""
        return self._pinned

    def versions(self) -> list[int]:
        """Return the versions that `roll_back` accepts."""
        return self._source.versions()

    def look_up(
        self, table: str, ids: np.ndarray[Any, Any], snapshot: Snapshot | None = None
    ) -> np.ndarray[Any, Any]:
        """Return the row of each id, or its first values if it has none.

        Args:
            table: name of the table.
            ids: int64 [n].
            snapshot: version to read; None: the one that is served.

        Returns:
            [n, dim] of float32 or float64.

        Raises:
            NoSuchTable: the model has no such table.
        """
        tables = (snapshot or self._snapshot).tables
        if table not in tables:
            names = ", ".join(sorted(tables)) or "none"
            raise NoSuchTable(f"there is no table {table!r}; the model has {names} [R744]")
        rows, found = tables[table].look_up(np.ascontiguousarray(ids, np.int64))
        with self._counting:
            self.counts.asked += len(ids)
            self.counts.found += found
        return rows

    def predict(self, inputs: Mapping[str, Any] | Sequence[Any], snapshot: Snapshot | None = None) -> Any:
        """Return the model's outputs in evaluation mode.

        Args:
            inputs: tensors or nested lists of numbers, by name, or all in order.
            snapshot: version to use; None: the one that is served.

        Returns:
            Tensors, in the structure that the model returns.

        Raises:
            NoProgram: the model could not be exported.
            Unfit: the model does not accept these inputs.
        """
        used = snapshot or self._snapshot
        if used.program is None:
            raise NoProgram(f"this model has no program to predict by: {used.no_program} [R745]")

        def look_up(table: str, ids: torch.Tensor) -> torch.Tensor:
            rows = self.look_up(table, ids.detach().reshape(-1).cpu().numpy(), used)
            return torch.from_numpy(rows).view(*ids.shape, rows.shape[1])

        return used.program.predict(inputs, used.dense, look_up)

    def roll_back(self, version: int) -> None:
        """Pin a version and serve it.

        Raises:
            NoSuchVersion: the version does not exist.
            DamagedFile: a file is missing or damaged; the present version stays.
        """
        with self._changing:
            if version != self._snapshot.version:
                self._snapshot = self._source.load(self._known(version))
            self._pinned = version

    def follow(self) -> None:
        """Serve the newest version, and newer ones as they appear."""
        with self._changing:
            self._pinned = None
        self.refresh()

    def refresh(self) -> bool:
        """Serve the newest version unless one is pinned; return whether it changed.

        An unreadable version is skipped: the present one stays, and `trouble` holds the error.
        """
        with self._changing:
            if self._pinned is not None:
                return False
            newest = max(self._source.versions(), default=0)
            if newest <= self._snapshot.version:
                return False
            try:
                self._snapshot = self._source.load(newest, self._snapshot)
            except Exception as error:  # any error of a new version: keep serving this one
                self._complain(newest, error)
                return False
            if newest > self._newest:
                self.lag = time() - self._snapshot.time
            self._newest = max(newest, self._newest)
            self.trouble = ""
            return True

    def start(self, interval: float) -> None:
        """Refresh every `interval` seconds, on a thread."""
        self._following = threading.Thread(
            target=self._follow, args=(interval,), name="ronde-replica", daemon=True
        )
        self._following.start()

    def close(self) -> None:
        """Stop looking for newer versions."""
        self._ends.set()
        if self._following is not None:
            self._following.join()

    def _follow(self, interval: float) -> None:
        while not self._ends.wait(interval):
            self.refresh()

    def _known(self, version: int | None) -> int:
        versions = self._source.versions()
        if not versions:
            raise NoSuchVersion("nothing is published there yet [R743]")
        if version is None:
            return versions[-1]
        if version not in versions:
            there = ", ".join(map(str, versions))
            raise NoSuchVersion(f"there is no version {version}; there are {there} [R743]")
        return version

    def _complain(self, version: int, error: Exception) -> None:
        trouble = f"version {version} cannot be served, {self._snapshot.version} still is: {error} [R740]"
        if trouble != self.trouble:
            self.trouble = trouble
            self._say(trouble)
