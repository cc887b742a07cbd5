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
from ronde.files.overlay import remove
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
            f = self._files.paths.renamed(f)
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
            filename = self._files.paths.renamed(filename)

            def write() -> Any:
                if self._files.is_zero:
                    return plain(tensors, filename, *args, **kwargs)
                # No null device: it renames onto its target, which for root would replace the device.
                place = self._files.mirrors.place("discarded")
                try:
                    return plain(tensors, place, *args, **kwargs)
                finally:
                    remove(place)

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
        """For `sqlite3.connect(database, ...)`: other ranks work on a mirror of the database."""

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

            located = self._files.mediated(path)
            if located is None:
                for suffix in ("-journal", "-wal", "-shm"):  # they come and go
                    self._files.place_to_write(f"{path}{suffix}")
                return at(self._files.place_to_write(path, keep=True))
            return self._mirrored("sqlite3.connect", located, lambda: at(path), at, ("-wal", "-journal"))

        return connect

    def hdf5(self, plain: Callable[..., None]) -> Callable[..., None]:
        """For `h5py.File.__init__(self, name, mode="r", ...)`."""

        @functools.wraps(plain)
        def initialize(file: Any, name: Any, mode: str | None = "r", *args: Any, **kwargs: Any) -> None:
            def at(place: Any) -> None:
                return plain(file, place, mode, *args, **kwargs)

            located = self._files.mediated(name)
            if mode in (None, "r"):
                if located is not None:
                    self._files.before_reading(located)
                    return at(self._files.mirrors.find(located) or self._files.paths.renamed(name))
                return self._files.look(name, at)
            if located is None:
                return at(self._files.place_to_write(name, keep=mode not in ("w", "w-", "x")))
            return self._mirrored("h5py.File", located, lambda: at(name), at)

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

    def _mirrored(
        self,
        label: str,
        located: str,
        genuine: Callable[[], Any],
        on_copy: Callable[[str], Any],
        companions: tuple[str, ...] = (),
    ) -> Any:
        """The library's object over the file on rank 0, over a mirror of it elsewhere."""
        made: list[Any] = []

        def mirror() -> None:
            made.append(on_copy(self._files.mirrors.make(located, companions)))

        self._files.once(label, located, lambda: made.append(genuine()), changed=lambda _: (), prepare=mirror)
        return made[0]
