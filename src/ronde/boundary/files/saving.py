"""Serializers that write a file below Python: torch, safetensors, databases, HDF5.

Serializing may run collectives, because a global tensor is gathered when it is pickled. So all
ranks serialize at the same time; only the main rank's bytes go to the file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ronde.boundary.files.mediation import Mediation
from ronde.boundary.files.null_file import Sink
from ronde.boundary.files.private_copy import Mirrors, discard
from ronde.boundary.global_tensor import materialize

__all__ = ["OF_ALL_RANKS", "Saving"]

OF_ALL_RANKS = "_ronde_of_all_ranks"
"""A function has another by this name, which all ranks are to call before the main rank calls it alone."""


class Saving:
    """Makes the mediated form of each serializer.

    A thread of another rank than the main one serializes as well, into what this rank alone sees.
    """

    def __init__(self, mediation: Mediation, mirrors: Mirrors) -> None:
        self._mediation = mediation
        self._mirrors = mirrors

    def torch_save(self, original: Callable[..., None]) -> Callable[..., None]:
        """For `torch.save(obj, f, ...)`."""

        @functools.wraps(original)
        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            located = self._mediated_path(f)
            if located is None:
                return original(obj, self._elsewhere(f), *args, **kwargs)
            f = self._mediation.paths.renamed(f)
            return self._save(
                "torch.save",
                located,
                write=lambda: original(obj, f, *args, **kwargs),
                rehearse=lambda: original(obj, Sink(), *args, **kwargs),
                complain=lambda: original(None, f),
            )

        return save

    def file_save(self, label: str, empty: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `save_file(tensors, filename, ...)` of safetensors; `empty` is a value that it can save."""

        @functools.wraps(original)
        def save(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            located = self._mediated_path(filename)
            if located is None:
                return original(tensors, self._elsewhere(filename), *args, **kwargs)
            filename = self._mediation.paths.renamed(filename)
            return self._save(
                label,
                located,
                write=lambda: original(tensors, filename, *args, **kwargs),
                rehearse=lambda: discard(
                    lambda path: original(tensors, path, *args, **kwargs), self._mirrors.temporary.above
                ),
                complain=lambda: original(empty, filename),
            )

        return save

    def by_main_alone(
        self, label: str, position: int | None, name: str, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """For a writer that returns a plain value.

        Args:
            position, name: of the argument that is the path.
        """

        @functools.wraps(original)
        def write(*args: Any, **kwargs: Any) -> Any:
            at = position if position is not None and position < len(args) else None
            path = kwargs.get(name) if at is None else args[at]
            located = self._mediated_path(path)
            if located is None:
                place = self._elsewhere(path)
                if at is not None:
                    return original(*args[:at], place, *args[at + 1 :], **kwargs)
                return original(*args, **({**kwargs, name: place} if name in kwargs else kwargs))
            # Gathered while all ranks are here: the main rank alone could not.
            getattr(original, OF_ALL_RANKS, lambda: None)()
            given = [materialize(value) for value in args]
            named = {key: materialize(value) for key, value in kwargs.items()}
            outcome = self._mediation.meet(label, located, lambda: original(*given, **named))
            # Into a folder it may have written anything, beside what threads have there.
            (self._mediation.met_in if os.path.isdir(located) else self._mediation.met_over)(located)
            return outcome.value

        return write

    def connect(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `sqlite3.connect(database, ...)`: other ranks work on a mirror of the database."""

        @functools.wraps(original)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            is_uri = bool(kwargs.get("uri")) and str(database).startswith("file:")
            path, _, query = (
                str(database).removeprefix("file:").partition("?") if is_uri else (database, "", "")
            )
            if path in ("", ":memory:") or any(
                flag in query for flag in ("mode=ro", "mode=memory", "immutable=1")
            ):
                return original(database, *args, **kwargs)
            located = self._mediated_path(path)
            if located is None:
                place = self._elsewhere(path, keep=True)
                for suffix in ("-journal", "-wal", "-shm"):  # they come and go
                    self._mediation.place_to_write(f"{path}{suffix}")
                if place is not path:
                    database = f"file:{quote(place)}?{query}" if is_uri else place
                return original(database, *args, **kwargs)
            return self._mirrored(
                "sqlite3.connect",
                located,
                lambda: original(database, *args, **kwargs),
                lambda copy: original(f"file:{quote(copy)}?{query}" if is_uri else copy, *args, **kwargs),
                companions=("-wal", "-journal"),
            )

        return connect

    def hdf5(self, original: Callable[..., None]) -> Callable[..., None]:
        """For `h5py.File.__init__(self, name, mode="r", ...)`."""

        @functools.wraps(original)
        def initialize(file: Any, name: Any, mode: str | None = "r", *args: Any, **kwargs: Any) -> None:
            located = self._mediated_path(name)
            if located is None:
                place = (
                    self._elsewhere(name, keep=mode not in ("w", "w-", "x"))
                    if mode not in (None, "r")
                    else name
                )
                return original(file, place, mode, *args, **kwargs)
            mirror = self._mirrors.find(located)
            if mode in (None, "r"):
                if mirror is None:
                    self._mediation.before_reading(located)
                return original(file, mirror or self._mediation.paths.renamed(name), mode, *args, **kwargs)
            return self._mirrored(
                "h5py.File",
                located,
                lambda: original(file, name, mode, *args, **kwargs),
                lambda copy: original(file, copy, mode, *args, **kwargs),
            )

        return initialize

    def _save(
        self,
        label: str,
        located: str,
        *,
        write: Callable[[], Any],
        rehearse: Callable[[], Any],
        complain: Callable[[], Any],
    ) -> Any:
        """Let all ranks serialize together, when the main rank has found that it can write at all.

        Found out later, the others would be left alone in the collectives of serializing.

        Args:
            complain: fails as `write` would where the file cannot be opened.
        """
        mediation = self._mediation

        def try_open() -> None:
            try:
                os.close(os.open(located, os.O_WRONLY | os.O_CREAT, 0o666))
            except OSError:
                complain()

        mediation.meet(label, located, try_open)
        self._mirrors.forget(located)
        mediation.met_over(located)
        return mediation.together(label, located, write if mediation.is_main else rehearse)

    def _mirrored(
        self,
        label: str,
        located: str,
        genuine: Callable[[], Any],
        on_copy: Callable[[str], Any],
        companions: tuple[str, ...] = (),
    ) -> Any:
        """The library's object over the file on the main rank, over a mirror of it elsewhere."""
        mediation = self._mediation
        made: list[Any] = []
        mediation.meet(
            label,
            located,
            lambda: made.append(genuine()),
            prepare=lambda: made.append(on_copy(self._mirrors.make(located, companions))),
        )
        mediation.met_over(located)
        return made[0]

    def _elsewhere(self, path: Any, *, keep: bool = False) -> Any:
        """`path`, or where a thread of this rank writes in its stead."""
        place = self._mediation.place_to_write(path, keep=keep)
        return path if place is None else place

    def _mediated_path(self, path: Any) -> str | None:
        """Where `path` lies if it is one that the ranks meet over here and now."""
        if not self._mediation.governs():
            return None
        located = self._mediation.paths.locate(path)
        return None if located is None or self._mediation.paths.is_exempt(located) else located
