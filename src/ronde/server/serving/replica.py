"""A read-only server of a model, whatever the protocol: look-ups, predictions, and of which version."""

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
from ronde.server.serving.snapshot import Snapshot, Source

__all__ = ["Counts", "NoSuchTable", "NoSuchVersion", "Replica"]


class NoSuchTable(RondeError):
    """A table that the model has not."""


class NoSuchVersion(RondeError):
    """A version that is not there, or not any more."""


@dataclass
class Counts:
    """Of all look-ups so far, those of predictions among them.

    Attributes:
        asked: ids.
        found: those that had a row.
    """

    asked: int = 0
    found: int = 0


class Replica:
    """Serves one version at a time, of which every request sees parameters and rows.

    Args:
        source: where versions come from.
        version: the one that is served, without following; None is the newest, and those that come.
        say: hears sentences about what goes wrong.

    Raises:
        NoSuchVersion: there is none.
        DamagedFile: a file of it is not what was written.

    Attributes:
        counts: ids that were looked up.
        lag: seconds from the end of the training step of a version until it was served; of the last one that
            came while a run was followed. None before.
        trouble: why a newer version is not served, "" if nothing is wrong.
    """

    def __init__(
        self, source: Source, version: int | None = None, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._source, self._say = source, say
        self._pinned = version
        self._changing = threading.Lock()
        self._following: threading.Thread | None = None
        self._ends = threading.Event()
        self.counts = Counts()
        self._counting = threading.Lock()
        self.lag: float | None = None
        self.trouble = ""
        self._snapshot = source.load(self._known(version))
        self._newest = max(source.versions(), default=0)
        for table in self._snapshot.tables.values():  # compiled now, not for whoever asks first
            table.look_up(np.zeros(1, np.int64))

    @property
    def snapshot(self) -> Snapshot:
        """What is served now. Whoever makes several requests of one version keeps it."""
        return self._snapshot

    @property
    def pinned(self) -> int | None:
        """The version that is served whatever comes; None: the newest is."""
        return self._pinned

    def versions(self) -> list[int]:
        """Versions to which `roll_back` can go."""
        return self._source.versions()

    def look_up(
        self, table: str, ids: np.ndarray[Any, Any], snapshot: Snapshot | None = None
    ) -> np.ndarray[Any, Any]:
        """The row of each id; the first values of those without one.

        Args:
            table: its name.
            ids: int64 [n].
            snapshot: of which version; None is the one that is served.

        Returns:
            [n, dim] of float32 or float64.

        Raises:
            NoSuchTable: the model has none of that name.
        """
        tables = (snapshot or self._snapshot).tables
        if table not in tables:
            names = ", ".join(sorted(tables)) or "none"
            raise NoSuchTable(f"there is no table {table!r}; the model has {names}")
        rows, found = tables[table].look_up(np.ascontiguousarray(ids, np.int64))
        with self._counting:
            self.counts.asked += len(ids)
            self.counts.found += found
        return rows

    def predict(self, inputs: Mapping[str, Any] | Sequence[Any], snapshot: Snapshot | None = None) -> Any:
        """What the model returns, in evaluation.

        Args:
            inputs: by name, or all in order: tensors, or nested lists of numbers.
            snapshot: of which version; None is the one that is served.

        Returns:
            Tensors, in whatever structure the model returns them.

        Raises:
            NoProgram: the model could not be exported.
            Unfit: the model was not made for these inputs.
        """
        used = snapshot or self._snapshot
        if used.program is None:
            raise NoProgram(f"this model has no program to predict by: {used.no_program}")

        def look_up(table: str, ids: torch.Tensor) -> torch.Tensor:
            rows = self.look_up(table, ids.detach().reshape(-1).cpu().numpy(), used)
            return torch.from_numpy(rows).view(*ids.shape, rows.shape[1])

        return used.program.predict(inputs, used.dense, look_up)

    def roll_back(self, version: int) -> None:
        """Serve this version, until another is asked for.

        Raises:
            NoSuchVersion: it is not there.
            DamagedFile: a file of it is not what was written; what is served stays.
        """
        with self._changing:
            if version != self._snapshot.version:
                self._snapshot = self._source.load(self._known(version))
            self._pinned = version

    def follow(self) -> None:
        """Serve the newest version, and those that come."""
        with self._changing:
            self._pinned = None
        self.refresh()

    def refresh(self) -> bool:
        """Serve the newest version, unless another is pinned; whether there was a newer one.

        A version that cannot be read is passed over: what is served stays, and `trouble` says why.
        """
        with self._changing:
            if self._pinned is not None:
                return False
            newest = max(self._source.versions(), default=0)
            if newest <= self._snapshot.version:
                return False
            try:
                self._snapshot = self._source.load(newest, self._snapshot)
            except Exception as error:  # whatever is wrong with a version, this one is served
                self._complain(newest, error)
                return False
            if newest > self._newest:
                self.lag = time() - self._snapshot.time
            self._newest = max(newest, self._newest)
            self.trouble = ""
            return True

    def start(self, interval: float) -> None:
        """Look for newer versions each so many seconds, on a thread."""
        self._following = threading.Thread(
            target=self._follow, args=(interval,), name="ronde-replica", daemon=True
        )
        self._following.start()

    def close(self) -> None:
        """Look for newer versions no more."""
        self._ends.set()
        if self._following is not None:
            self._following.join()

    def _follow(self, interval: float) -> None:
        while not self._ends.wait(interval):
            self.refresh()

    def _known(self, version: int | None) -> int:
        versions = self._source.versions()
        if not versions:
            raise NoSuchVersion("nothing is published there yet")
        if version is None:
            return versions[-1]
        if version not in versions:
            there = ", ".join(map(str, versions))
            raise NoSuchVersion(f"there is no version {version}; there are {there}")
        return version

    def _complain(self, version: int, error: Exception) -> None:
        trouble = f"version {version} cannot be served, {self._snapshot.version} still is: {error}"
        if trouble != self.trouble:
            self.trouble = trouble
            self._say(trouble)
