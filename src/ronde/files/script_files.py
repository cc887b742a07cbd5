"""Installs the mediation of a rank's file operations, and removes it again."""

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
    """Mediates file writes, so that all ranks together write each file once.

    Every rank sees the same files.

    **A change is collective**: when the script's main thread opens a file for writing, makes, moves or
    removes something, all ranks wait for each other, so that earlier queries were answered from the state
    before; rank 0 alone makes the change, the others get a file that drops its bytes; the outcome, a failure
    too, is rank 0's on all. When a file is closed, ranks wait for rank 0. Threads and forked processes of the
    script are not in step: those of rank 0 change the real files, those of other ranks an overlay, which
    their rank reads first.

    Args:
        comm: the group of all ranks; rank 0 writes.
        paths: the classifier of paths; paths that this rank makes for itself are added.
        whole: function that gathers a sharded value; collective.
        temporary: the maker of this rank's own folders.
        shared: a folder of all ranks of this host, for marks of files that rank 0's threads make.
        apart: whether ranks are not in step: rank 0 changes the real files, others an overlay of their own.

    Attributes:
        notes: sentences for the user on silent corrections.
        in_step, unmediated, for_itself: the methods of `Callers`.
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
        """Replace the functions, also under the names by which imported modules hold them."""
        files, replacements = self._files, Replacements(self._patches)
        files.stopped = False
        collection = files.callers.on_collection
        gc.callbacks.append(collection)
        self._patches.undo(lambda: gc.callbacks.remove(collection))
        # `tempfile` finds the folder by writing files into candidates, which is not the script's action
        tempfile.gettempdir()
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
        """Record changes from now on, so that a run can resume at a step."""
        history = self._files.history = self._files.history or FileHistory()
        if self._apart:
            self._files.overlay.unborn = history.hides
        return history

    def end_replay(self, sizes: dict[str, int]) -> None:
        """End the replay: the script's files are the real ones from now on."""
        history = self._files.history
        assert history is not None
        with self.unmediated():
            history.end_replay(sizes, self._plain_open if self._files.is_zero else None)
            if self._apart:  # files saved during replay differ from the earlier run's
                self._files.overlay.remove_all()

    def uninstall(self) -> None:
        """Restore all functions; files that are still open stay unchanged."""
        self._files.stopped = True
        self._patches.restore()
        self._files.overlay.remove_all()

    def stop_waiting(self) -> None:
        """Close files without barriers from now on. The script has ended, maybe on this rank alone."""
        self._files.stopped = True

    def _install_starting(self, replacements: Replacements) -> None:
        """Replace functions that start threads, processes and programs."""
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
                    files.overlay.folder()  # the process uses the same folder
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
        """Return the patches of modules, applied on their import."""
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
    """Wrap `method` as a plain function, which a class can hold without binding it."""

    @functools.wraps(plain)
    def function(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return function
