"""What the script does with files, on one rank: put into the process, and taken out again."""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import io
import multiprocessing.util
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.files.changes import CHANGES, Changes
from ronde.files.history import FileHistory
from ronde.files.native_writers import NATIVE_WRITERS, NativeWriter
from ronde.files.opening import Opening
from ronde.files.paths import Paths
from ronde.files.programs import PROGRAMS, WAITS, once, starting, waiting
from ronde.files.questions import QUESTIONS, asking
from ronde.files.rank_files import RankFiles
from ronde.files.replacements import Replacements
from ronde.files.serializers import Serializers
from ronde.files.temporary import MAKERS, making
from ronde.files.trackers import patch_tensorboard, patch_wandb
from ronde.patching.late_patches import LatePatches, found_in
from ronde.patching.patches import Patches
from ronde.trace.temporary_folder import TemporaryFolders

__all__ = ["ScriptFiles"]

_IMMUTABLE_TYPE = 1 << 8
"""Python's `Py_TPFLAGS_IMMUTABLETYPE`."""


class ScriptFiles:
    """Makes a file that the script writes be written once, and every rank see the same files.

    **A change is collective**: when the script's main thread opens a file for writing, makes, moves or
    removes something, all ranks come together, so that what they asked before was answered from the state
    before; rank 0 alone does it, the others get a file that takes no bytes; the outcome, a failure too, is
    rank 0's on all. When a file is closed, ranks wait for rank 0. Threads and forked processes of the script
    are not in step: those of rank 0 change the real files, those of other ranks a tree over them, which their
    rank reads first.

    Args:
        comm: to the other ranks; rank 0 writes.
        paths: which of them are mediated; learns which this rank makes for itself.
        whole: makes a value whole that lies in parts on the ranks; collective.
        temporary: where this rank keeps files of its own.
        shared: a folder of all ranks of this host, in which rank 0's threads tell what they make.
        apart: ranks are not in step: rank 0 changes the real files, others a tree of their own over them.

    Attributes:
        notes: sentences for the user about what was made right without being asked.
        in_step, unmediated, for_itself: of `Callers`.
    """

    def __init__(
        self,
        *,
        comm: Comm,
        paths: Paths,
        whole: Callable[[Any], Any] = lambda value: value,
        temporary: TemporaryFolders | None = None,
        shared: str | None = None,
        apart: bool = False,
    ) -> None:
        self._apart = apart
        self._files = RankFiles(comm, paths, temporary or TemporaryFolders(), shared, apart=apart)
        self.notes = self._files.notes
        self.in_step = self._files.callers.in_step
        self.unmediated = self._files.callers.unmediated
        self.for_itself = self._files.callers.for_itself
        self._serializers = Serializers(self._files, whole)
        self._patches = Patches()
        self._plain_open: Callable[..., int] = os.open
        self._late = LatePatches(self._of_libraries())

    def install(self) -> None:
        """Replace the functions, also where modules imported so far hold them under names of their own."""
        files, replacements = self._files, Replacements(self._patches)
        files.stopped = False
        collection = files.callers.on_collection
        gc.callbacks.append(collection)
        self._patches.undo(lambda: gc.callbacks.remove(collection))
        tempfile.gettempdir()  # found by writing a file into candidates: not the script's doing
        opening = Opening(files, builtins.open, os.open)
        replacements.set(builtins, "open", functools.partial(_function, opening.open))
        self._patches.set(io, "open", builtins.open)
        replacements.set(os, "open", functools.partial(_function, opening.os_open))
        changes = Changes(files)
        for change in CHANGES:
            owner = importlib.import_module(change.module)
            if hasattr(owner, change.name):
                replacements.set(owner, change.name, functools.partial(changes.replacing, change))
        for name in QUESTIONS:
            replacements.set(os, name, functools.partial(asking, files))
        for name in MAKERS:
            replacements.set(tempfile, name, functools.partial(making, files))
        replacements.set(torch, "save", functools.partial(self._serializers.torch_save, "torch.save"))
        self._install_starting(replacements)
        replacements.spread()
        self._late.install()
        self._patches.undo(self._late.uninstall)

    def remember(self) -> FileHistory:
        """From now on changes are recorded, so that the script can be brought back to a step."""
        history = self._files.history = self._files.history or FileHistory()
        if self._apart:
            self._files.overlay.unborn = history.hides
        return history

    def end_replay(self, sizes: dict[str, int]) -> None:
        """The script is where it was: its files are the real ones from now on."""
        history = self._files.history
        assert history is not None
        with self.unmediated():
            history.end_replay(sizes, self._plain_open if self._files.is_zero else None)
            if self._apart:  # what it has saved on its way back is not what it had saved
                self._files.overlay.remove_all()

    def uninstall(self) -> None:
        """Put everything back; files still open stay what they are."""
        self._files.stopped = True
        self._patches.restore()
        self._files.overlay.remove_all()

    def stop_waiting(self) -> None:
        """The script is at its end, maybe on this rank alone: what it leaves open is nobody's concern."""
        self._files.stopped = True

    def _install_starting(self, replacements: Replacements) -> None:
        """What starts threads, processes and programs."""
        files = self._files
        start_thread: Callable[[threading.Thread], None] = threading.Thread.start

        @functools.wraps(start_thread)
        def start(thread: threading.Thread) -> None:
            files.callers.starts(thread)
            start_thread(thread)

        def forking(plain: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(plain)
            def fork(*args: Any, **kwargs: Any) -> Any:
                files.before_child()
                files.callers.starts()
                with self.unmediated():
                    files.overlay.folder()  # the process has the same
                return plain(*args, **kwargs)

            return fork

        self._patches.set(threading.Thread, "start", start)
        replacements.set(os, "fork", forking)
        replacements.set(multiprocessing.util, "spawnv_passfds", forking)
        replacements.set(subprocess.Popen, "__init__", functools.partial(starting, files))
        for module, name in PROGRAMS:
            run = functools.partial(once, files, f"{module}.{name}")
            replacements.set(importlib.import_module(module), name, run)
        for module, path in WAITS:
            kind, _, name = path.partition(".")
            owner = getattr(importlib.import_module(module), kind)
            self._patches.set(owner, name, waiting(files, path, getattr(owner, name)))

    def _of_libraries(self) -> dict[str, Callable[[ModuleType], None]]:
        """What is replaced in modules when they are imported."""
        serializers, patches = self._serializers, self._patches

        def replacing(make: Callable[[str, Any], Any], path: str) -> Callable[[ModuleType], None]:
            def patch(module: ModuleType) -> None:
                found = found_in(module, path)
                if found is None or (isinstance(found[0], type) and found[0].__flags__ & _IMMUTABLE_TYPE):
                    return
                owner, name, plain = found
                made = make(f"{module.__name__}.{path}", plain)
                is_static = isinstance(vars(owner).get(name), staticmethod)
                patches.set(owner, name, staticmethod(made) if is_static else made)

            return patch

        def native(writers: tuple[NativeWriter, ...], module: ModuleType) -> None:
            for writer in writers:
                replacing(functools.partial(serializers.native, writer), writer.name)(module)

        return {
            **{name: functools.partial(native, writers) for name, writers in NATIVE_WRITERS.items()},
            "safetensors.torch": replacing(serializers.save_file, "save_file"),
            "safetensors.numpy": replacing(serializers.save_file, "save_file"),
            "sqlite3.dbapi2": replacing(serializers.connect, "connect"),
            "sqlite3": replacing(serializers.connect, "connect"),
            "h5py": replacing(serializers.hdf5, "File.__init__"),
            "tensorboard.summary.writer.event_file_writer": functools.partial(
                patch_tensorboard, self._files, patches
            ),
            "wandb": functools.partial(patch_wandb, self._files, patches),
        }


def _function(method: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function, as the original is: classes that keep it as an attribute bind neither."""

    @functools.wraps(plain)
    def function(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return function
