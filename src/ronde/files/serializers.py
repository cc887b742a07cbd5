"""What writes a file below Python: torch, safetensors, databases, HDF5, and functions in native code.

Serializing may run collectives, because a global tensor is gathered when it is pickled. So all ranks
serialize at the same time; only rank 0's bytes go to the file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ronde.files.native_writers import NativeWriter
from ronde.files.rank_files import RankFiles
from ronde.files.raw_files import Sink

__all__ = ["OF_ALL_RANKS", "Serializers"]

OF_ALL_RANKS = "_ronde_of_all_ranks"
"""A function has another by this name, which all ranks are to call before rank 0 calls it alone."""


class Serializers:
    """Makes the form of each that the script gets.

    Args:
        whole: makes a value whole that lies in parts on the ranks; collective.
    """

    def __init__(self, files: RankFiles, whole: Callable[[Any], Any]) -> None:
        self._files = files
        self._whole = whole

    def torch_save(self, plain: Callable[..., None]) -> Callable[..., None]:
        """For `torch.save(obj, f, ...)`."""

        @functools.wraps(plain)
        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            located = self._files.mediated(f)
            if located is None:
                return plain(obj, self._files.place_to_write(f), *args, **kwargs)
            target = f if self._files.is_zero else Sink()
            return self._save(
                "torch.save", located, lambda: plain(obj, target, *args, **kwargs), lambda: plain(None, f)
            )

        return save

    def file_save(self, label: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """For `save_file(tensors, filename, ...)` of safetensors."""

        @functools.wraps(plain)
        def save(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            located = self._files.mediated(filename)
            if located is None:
                return plain(tensors, self._files.place_to_write(filename), *args, **kwargs)

            def write() -> Any:
                if self._files.is_zero:
                    return plain(tensors, filename, *args, **kwargs)
                # No null device: it renames onto its target, which for root would replace the device.
                place = self._files.overlay.scratch()
                try:
                    return plain(tensors, place, *args, **kwargs)
                finally:
                    os.unlink(place)

            return self._save(label, located, write, lambda: plain({}, filename))

        return save

    def native(self, label: str, writer: NativeWriter, plain: Callable[..., Any]) -> Callable[..., Any]:
        """For a function that returns a plain value; it may write into a folder."""

        @functools.wraps(plain)
        def write(*args: Any, **kwargs: Any) -> Any:
            at = writer.position if writer.position is not None and writer.position < len(args) else None
            path = kwargs.get(writer.argument) if at is None else args[at]
            located = self._files.mediated(path)
            if located is None:
                place = self._files.place_to_write(path)
                if at is not None:
                    args = (*args[:at], place, *args[at + 1 :])
                elif path is not None:
                    kwargs = {**kwargs, writer.argument: place}
                return plain(*args, **kwargs)
            # Gathered while all ranks are here: rank 0 alone could not.
            getattr(plain, OF_ALL_RANKS, lambda: None)()
            given = [self._whole(value) for value in args]
            named = {key: self._whole(value) for key, value in kwargs.items()}
            below = not os.path.isdir(located)  # there it stands beside what threads have
            return self._files.once(label, located, lambda: plain(*given, **named), below=below)

        return write

    def connect(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """For `sqlite3.connect(database, ...)`: other ranks work on a copy of the database."""

        @functools.wraps(plain)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            is_uri = bool(kwargs.get("uri")) and str(database).startswith("file:")
            path, query = database, ""
            if is_uri:
                path, _, query = str(database).removeprefix("file:").partition("?")
            if path in ("", ":memory:") or any(
                flag in query for flag in ("mode=ro", "mode=memory", "immutable=1")
            ):
                return plain(database, *args, **kwargs)

            def at(place: Any) -> Any:
                name = database if place is path else f"file:{quote(place)}?{query}" if is_uri else place
                return plain(name, *args, **kwargs)

            if self._files.mediated(path) is None:
                for suffix in ("-journal", "-wal", "-shm"):  # they come and go
                    self._files.place_to_write(f"{path}{suffix}")
            return self._kept_open("sqlite3.connect", path, at, ("-wal", "-journal"))

        return connect

    def hdf5(self, plain: Callable[..., None]) -> Callable[..., None]:
        """For `h5py.File.__init__(self, name, mode="r", ...)`."""

        @functools.wraps(plain)
        def initialize(file: Any, name: Any, mode: str | None = "r", *args: Any, **kwargs: Any) -> None:
            def at(place: Any) -> None:
                return plain(file, place, mode, *args, **kwargs)

            if mode not in (None, "r"):
                return self._kept_open("h5py.File", name, at)
            with self._files.reading(name) as place:
                return at(place)

        return initialize

    def _save(self, label: str, located: str, write: Callable[[], Any], complain: Callable[[], Any]) -> Any:
        """Let all ranks serialize together, when rank 0 has found that it can write at all.

        Found out later, the others would be left alone in the collectives of serializing.

        Args:
            complain: fails as `write` would where the file cannot be opened.
        """

        def try_open() -> None:
            try:
                os.close(os.open(located, os.O_WRONLY | os.O_CREAT, 0o666))
            except OSError:
                complain()

        self._files.once(label, located, try_open)
        return self._files.together(label, located, write)

    def _kept_open(
        self, label: str, path: Any, at: Callable[[Any], Any], companions: tuple[str, ...] = ()
    ) -> Any:
        """What `at` makes over the file on rank 0, and over this rank's copy elsewhere.

        The copy is read in place of the file until all ranks change that as a whole.

        Args:
            companions: suffixes of files beside it that belong to it.
        """
        located = self._files.mediated(path)
        if located is None:
            return at(self._files.place_to_write(path, keep=True))
        made: list[Any] = []

        def copy() -> None:
            self._files.callers.branched = True
            found = self._files.overlay.resolve(located, last=True)
            for suffix in companions:
                self._files.overlay.target(found + suffix, keep=True)
            made.append(at(self._files.overlay.target(found, keep=True)))

        self._files.once(label, located, lambda: made.append(at(path)), changed=lambda _: (), prepare=copy)
        return made[0]
