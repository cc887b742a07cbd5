"""Replaces serializers: torch, safetensors, databases, HDF5, and writers in native code.

Serializing may run collectives, because a global tensor is gathered when it is pickled. So all ranks
serialize at the same time; only rank 0's bytes go to the file.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from urllib.parse import unquote

from ronde.errors import UsageError
from ronde.files.native_writers import NativeWriter
from ronde.files.rank_files import RankFiles
from ronde.files.raw_files import Sink

__all__ = ["OF_ALL_RANKS", "Serializers"]

_COMPANIONS = ("", "-wal", "-journal")
"""Suffixes of the files of a database."""
OF_ALL_RANKS = "_ronde_of_all_ranks"
"""Attribute of a function with another one, which all ranks call before rank 0 calls it alone."""


class Serializers:
    """Makes the replacement of each serializer.

    Args:
        whole: function that gathers a sharded value; collective.
    """

    def __init__(self, files: RankFiles, whole: Callable[[Any], Any]) -> None:
        self._files = files
        self._whole = whole

    def together(
        self,
        label: str,
        argument: str,
        instead: Callable[[], AbstractContextManager[Any]],
        plain: Callable[..., Any],
        *,
        at_once: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    ) -> Callable[..., Any]:
        """Wrap a function that all ranks carry out together.

        Args:
            argument: name of the argument with the path or the file.
            instead: context of the other ranks' target.
            at_once: context of rank 0's target, given the path.
        """
        signature = inspect.signature(plain)

        @functools.wraps(plain)
        def save(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            path = given.arguments[argument]
            located = self._files.mediated(path)
            if located is None:
                given.arguments[argument] = self._files.place_to_write(path)
                return plain(*given.args, **given.kwargs)

            def write() -> Any:
                with at_once(path) if self._files.is_zero else instead() as target:
                    given.arguments[argument] = target
                    return plain(*given.args, **given.kwargs)

            def try_open() -> None:
                is_new = not os.path.lexists(located)
                os.close(os.open(located, os.O_WRONLY | os.O_CREAT, 0o666))
                if is_new:
                    os.unlink(located)

            # Opened first: if this failed later, on rank 0 alone, the others would wait in a collective for
            # ever.
            self._files.once(label, located, try_open)
            return self._files.together(label, located, write)

        return save

    def torch_save(self, label: str, plain: Callable[..., None]) -> Callable[..., None]:
        """Wrap `torch.save`, so that it replaces the file when complete.

        A run that is killed leaves the previous file.
        """
        return self.together(label, "f", Sink, plain, at_once=_replacing)

    def save_file(self, label: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `save_file` of safetensors."""

        @contextmanager
        def instead() -> Iterator[str]:
            # Not the null device: safetensors renames its file to the target, which for root would replace
            # the device.
            place = self._files.overlay.scratch()
            try:
                yield place
            finally:
                os.unlink(place)

        return self.together(label, "filename", instead, plain)

    def native(self, writer: NativeWriter, label: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that returns a plain value and may write a folder."""

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
            # Gathered while all ranks are here: rank 0 alone could not do it.
            getattr(plain, OF_ALL_RANKS, lambda: None)()
            given = [self._whole(value) for value in args]
            named = {key: self._whole(value) for key, value in kwargs.items()}
            below = not os.path.isdir(located)  # a folder keeps the overlay's other files
            return self._files.once(label, located, lambda: plain(*given, **named), below=below)

        return write

    def connect(self, label: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `sqlite3.connect(database, ...)`; other ranks work on a copy of the database."""

        @functools.wraps(plain)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            path, query = database, ""
            if kwargs.get("uri") and str(database).startswith("file:"):
                path, _, query = unquote(str(database)).removeprefix("file:").partition("?")
            if path in ("", ":memory:") or not {"mode=ro", "mode=memory", "immutable=1"}.isdisjoint(
                query.split("&")
            ):
                return plain(database, *args, **kwargs)

            def at(place: Any) -> Any:
                return plain(place, *args, **{**kwargs, "uri": False})

            return self._kept_open(label, path, at)

        return connect

    def hdf5(self, label: str, plain: Callable[..., None]) -> Callable[..., None]:
        """Wrap `h5py.File.__init__(self, name, mode="r", ...)`."""

        @functools.wraps(plain)
        def initialize(file: Any, name: Any, mode: str | None = "r", *args: Any, **kwargs: Any) -> None:
            def at(place: Any) -> None:
                return plain(file, place, mode, *args, **kwargs)

            if mode not in (None, "r"):
                return self._kept_open(label, name, at)
            with self._files.reading(name) as place:
                return at(place)

        return initialize

    def _kept_open(self, label: str, path: Any, at: Callable[[Any], Any]) -> Any:
        """Open the file on rank 0, and this rank's copy elsewhere, with `at`.

        The copy is read in place of the file until all ranks change the file as a whole.
        """
        located = self._files.mediated(path)
        if located is None:
            return at(self._files.place_to_write(path, keep=True))
        if self._files.history is not None:
            raise UsageError(
                f"{label} of {path}: its contents at a step cannot be restored, because it is written in "
                "place; leave out --checkpoint, or write files [R515]"
            )
        made: list[Any] = []

        def copy() -> None:
            self._files.callers.branched = True
            found = self._files.overlay.resolve(located, last=True)
            places = [self._files.overlay.target(found + suffix, keep=True) for suffix in _COMPANIONS]
            made.append(at(places[0]))

        self._files.once(label, located, lambda: made.append(at(path)), changed=lambda _: (), prepare=copy)
        return made[0]


@contextmanager
def _replacing(path: Any) -> Iterator[Any]:
    """Yield a new path to write to; afterwards it replaces the file.

    Its name is the file's own, in a folder next to it: torch writes it into the archive. A path that is not a
    regular file, or whose folder cannot be written, is yielded unchanged.
    """
    name = os.path.realpath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""
    folder = f"{name}.{os.getpid()}.part"
    if not name or (os.path.exists(name) and not os.path.isfile(name)):
        yield path
        return
    try:
        os.mkdir(folder, 0o700)
    except OSError:
        yield path
        return
    place, is_new = os.path.join(folder, os.path.basename(name)), not os.path.exists(name)
    try:
        yield place
        if not is_new:
            shutil.copymode(name, place)
        os.replace(place, name)
    except BaseException:
        if is_new and os.path.exists(place):  # as `torch.save` leaves it
            os.replace(place, name)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
