"""Keeps a run's writes inside its scratch directory, and records files opened for writing.

The scratch directory shows the user's files through symbolic links. An audit hook is called before
python opens, renames or removes anything: it then puts a real file or directory in the place of the
link that is about to be written through, so the user's own files stay as they are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from ronde.patching.torch_internals import zipfile_writer
from ronde.verify.record import Writer

__all__ = ["Unmediated", "WriteRecorder", "unfold"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events whose paths (at these positions) lose or change an entry of their directory.
_CHANGES = {
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
}


# Context past ronde's own mediation of files, used for the copies that are made below.
Unmediated = Callable[[], contextlib.AbstractContextManager[object]]


class WriteRecorder:
    """Installs the audit hook, in a process of its own: python cannot remove one."""

    def __init__(
        self,
        writer: Writer,
        scratch: str,
        tree: str,
        unmediated: Unmediated,
    ) -> None:
        self._writer = writer
        self._unmediated = unmediated
        self._scratch = os.path.realpath(scratch)
        self._root = os.path.realpath(tree)
        self._busy = False

    def install(self) -> None:
        sys.addaudithook(self._audit)
        # torch.save writes through C++, which no audit event shows.
        opener: Any = zipfile_writer
        original = opener.__init__
        recorder = self

        def opened(self: Any, name: str) -> None:
            recorder.about_to_write(name, keep=False)
            original(self, name)

        opener.__init__ = opened

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITING and isinstance(path, (str, bytes)):
                self.about_to_write(os.fsdecode(path), keep=not flags & os.O_TRUNC)
        elif event in _CHANGES:
            for position in _CHANGES[event]:
                if isinstance(args[position], (str, bytes, os.PathLike)):
                    self._unfolded(os.fsdecode(args[position]), whole=event == "shutil.rmtree")

    def about_to_write(self, path: str, *, keep: bool) -> None:
        """Prepare a file that is about to be opened for writing; `keep` its contents."""
        if self._busy:
            return
        place = self._unfolded(path, whole=False)
        if place is None:
            return
        self._busy = True
        try:
            with self._unmediated():
                _replace_link(place, keep=keep)
            if self._writer.active:
                self._writer.event("opened", path=os.path.relpath(place, self._scratch))
        finally:
            self._busy = False

    def _unfolded(self, path: str, *, whole: bool) -> str | None:
        """Return the place under the scratch directory that `path` names, its directories made real.

        None outside of it.
        """
        if self._busy:
            return None
        place = os.path.normpath(os.path.join(os.getcwd(), path))
        if not place.startswith(self._root + os.sep):
            return None
        self._busy = True
        try:
            with self._unmediated():
                unfold(self._root, place if whole else os.path.dirname(place))
        finally:
            self._busy = False
        return place


def _replace_link(place: str, *, keep: bool) -> None:
    if not os.path.islink(place):
        return
    source = os.path.realpath(place)
    os.unlink(place)
    if keep and os.path.isfile(source):
        shutil.copyfile(source, place)


def unfold(root: str, directory: str) -> None:
    """Turn each linked directory from `root` to `directory` into a real one of links."""
    place = root
    for part in os.path.relpath(directory, root).split(os.sep):
        if part == ".":
            return
        place = os.path.join(place, part)
        if not os.path.isdir(place):
            return
        if os.path.islink(place):
            source = os.path.realpath(place)
            try:
                os.unlink(place)
                os.mkdir(place)
            except FileNotFoundError:  # another rank does the same, which does not happen in a correct run
                continue
            for name in os.listdir(source):
                os.symlink(os.path.join(source, name), os.path.join(place, name))
