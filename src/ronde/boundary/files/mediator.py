"""Puts file mediation into a process, and takes it out again."""

from __future__ import annotations

import builtins
import functools
import gc
import glob
import importlib
import io
import multiprocessing.util
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from ronde.boundary.caller import called_by_script
from ronde.boundary.files.aside import Aside
from ronde.boundary.files.background import sharing
from ronde.boundary.files.beginnings import Beginnings
from ronde.boundary.files.keeping import Keeping
from ronde.boundary.files.late_patches import LatePatches
from ronde.boundary.files.mediation import Mediation
from ronde.boundary.files.meeting import Meeting
from ronde.boundary.files.native_writers import NATIVE_WRITERS, NativeWriter
from ronde.boundary.files.null_file import NullRecords
from ronde.boundary.files.opening import Opening
from ronde.boundary.files.operation import OPERATIONS
from ronde.boundary.files.operations import Operations
from ronde.boundary.files.paths import Paths
from ronde.boundary.files.private_copy import Mirrors
from ronde.boundary.files.programs import PROGRAMS, WAITS, once, waiting
from ronde.boundary.files.programs_of_threads import ProgramsOfThreads
from ronde.boundary.files.reading import QUESTIONS, asking, starting
from ronde.boundary.files.saving import Saving
from ronde.boundary.files.temporary import MAKERS, making, remove_all
from ronde.boundary.files.trackers import patch_wandb
from ronde.boundary.files.unix_sockets import UnixSockets
from ronde.boundary.patches import Patches
from ronde.trace.temporary_folder import TemporaryFolders
from ronde.trace.told_count import ToldCount

__all__ = ["FileMediator"]

# Python's `Py_TPFLAGS_IMMUTABLETYPE`.
_IMMUTABLE_TYPE = 1 << 8
_CAPABILITIES = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")


class FileMediator:
    """Makes a file that the script writes be written once, and every rank see the same files.

    **A mutation is a meeting**: when the script's main thread opens a file for writing, makes,
    moves or removes something, all ranks come together, so that what they asked before was answered
    from the state before; the main rank (0) alone does it, the others get a file that takes no
    bytes; the outcome, a failure too, is that of the main rank on all. A rank that reads back what
    it wrote waits until the main rank has come as far. Threads of the script cannot meet: on other
    ranks they write aside, where only their rank finds it.

    Args:
        meeting: the other ranks.
        rank, world_size: this one, and how many there are; 0 writes.
        paths: which of them are mediated; learns which this rank makes for itself.
        told: how often threads of the main rank have told of a change, where ranks share memory.
        temporary: where this rank keeps files of its own.
    """

    def __init__(
        self,
        *,
        meeting: Meeting,
        rank: int,
        world_size: int,
        paths: Paths,
        told: ToldCount | None = None,
        temporary: TemporaryFolders | None = None,
    ) -> None:
        temporary = temporary or TemporaryFolders()
        self._mirrors = Mirrors(temporary)
        self._keeping = Keeping(meeting, rank=rank, world_size=world_size, temporary=temporary)
        self._installed = False
        beginnings = Beginnings(meeting, self._keeping.place, told)
        self._mediation = Mediation(
            meeting=meeting,
            rank=rank,
            world_size=world_size,
            paths=paths,
            aside=Aside(self._make_root, beginnings),
            beginnings=beginnings,
        )
        self._programs = ProgramsOfThreads(self._mediation)
        self._patches = Patches()
        self._late: LatePatches | None = None
        self._replaced: dict[int, tuple[Any, Any]] = {}

    def _make_root(self) -> str:
        """The folder of what threads write aside; the mirrors' end is its end."""
        root = self._mirrors.place("threads")
        os.mkdir(root)
        self._mediation.paths.add_private(root)
        return root

    @property
    def waiting_for(self) -> str | None:
        """What this rank is waiting for at this moment, in words."""
        return self._mediation.waiting_for

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about what was made right without being asked."""
        return self._mediation.notes

    def install(self) -> None:
        """Replace the functions, also where modules imported so far hold them under names of their own."""
        self._installed = True
        self._mediation.publications.start()
        gc.callbacks.append(self._mediation.on_collection)
        tempfile.gettempdir()  # found by writing a file into candidates: not the script's doing
        self._patch_opening()
        operations = Operations(self._mediation, self._mirrors)
        for operation in OPERATIONS:
            owner = importlib.import_module(operation.module)
            if hasattr(owner, operation.name):
                self._replace(owner, operation.name, functools.partial(operations.mediated, operation))
        for name in QUESTIONS:
            self._replace(os, name, functools.partial(asking, self._mediation))
        for name in MAKERS:
            self._replace(tempfile, name, functools.partial(making, self._mediation))
        self._patch_threads()
        UnixSockets(self._mediation).install(self._patches)
        child = functools.partial(starting, self._mediation)
        for owner, name in ((os, "fork"), (multiprocessing.util, "spawnv_passfds")):
            self._replace(owner, name, child)
        self._replace(
            subprocess.Popen, "__init__", functools.partial(sharing, self._mediation, self._programs)
        )
        for module, name in PROGRAMS:
            run = functools.partial(once, self._mediation, self._programs, f"{module}.{name}")
            self._replace(importlib.import_module(module), name, run)
        for module, path in WAITS:
            kind, _, name = path.partition(".")
            owner = getattr(importlib.import_module(module), kind)
            self._patches.set(owner, name, waiting(self._mediation, path, getattr(owner, name)))
        saving = Saving(self._mediation, self._mirrors)
        self._replace(torch, "save", saving.torch_save)
        self._patch_pathlib()
        self._patch_capabilities()
        self._patch_borrowed_names()
        self._patch_numpy_openers()
        self._late = LatePatches(self._late_table(saving))
        self._late.install()

    def uninstall(self) -> None:
        """Put everything back; files still open stay what they are."""
        if self._late is not None:
            self._late.uninstall()
            self._late = None
        self._patches.restore()
        if self._mediation.on_collection in gc.callbacks:
            gc.callbacks.remove(self._mediation.on_collection)
        for capability in _CAPABILITIES:
            functions = getattr(os, capability)
            functions.difference_update([replacement for _, replacement in self._replaced.values()])
        self._replaced.clear()
        self._mediation.publications.stop()
        self._mirrors.remove_all()
        self._mediation.aside.clear()
        if self._installed:
            self._programs.leave()
            self._keeping.leave()
        self._installed = False

    def remove_temporary(self) -> None:
        """Remove what the script made by `tempfile` and left: the main rank's is the one to be found."""
        if not self._mediation.is_main:
            with self._mediation.unmediated():
                remove_all(self._mediation.paths.left)

    def in_step(self) -> bool:
        """Whether the code that runs now is the script's own, which all ranks run together."""
        return self._mediation.governs()

    def is_elsewhere(self) -> bool:
        """Whether this thread opens a file just now that lies elsewhere than its name says."""
        return self._mediation.is_elsewhere()

    @contextmanager
    def unmediated(self) -> Iterator[None]:
        """Inside, this rank's file operations are its own and no meetings: for ronde's own files, and
        for code that the ranks do not run in step, such as loading different samples."""
        with self._mediation.unmediated():
            yield

    def _replace(
        self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        original = getattr(owner, name)
        replacement = make(original)
        self._patches.set(owner, name, replacement)
        self._replaced[id(original)] = (original, replacement)

    def _patch_opening(self) -> None:
        opening = Opening(
            self._mediation,
            self._mirrors,
            original_open=builtins.open,
            original_os_open=os.open,
            original_os_close=os.close,
        )

        def plainly(method: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
            # A function, as the original is: classes that keep it as an attribute bind neither.
            @functools.wraps(original)
            def function(*args: Any, **kwargs: Any) -> Any:
                return method(*args, **kwargs)

            return function

        self._replace(builtins, "open", functools.partial(plainly, opening.open))
        self._patches.set(io, "open", builtins.open)
        self._replace(os, "open", functools.partial(plainly, opening.os_open))
        self._replace(os, "close", functools.partial(plainly, opening.os_close))

    def _patch_threads(self) -> None:
        plain: Callable[[threading.Thread], None] = threading.Thread.start
        mediation, programs = self._mediation, self._programs

        @functools.wraps(plain)
        def start(thread: threading.Thread) -> None:
            mediation.remember(thread)
            if called_by_script():
                programs.remember(thread)
            plain(thread)

        self._patches.set(threading.Thread, "start", start)

    def _patch_pathlib(self) -> None:
        """Paths hold functions of `os` in a class: of their own in Python 3.10, of glob's from 3.13 on."""
        owners = (getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None))
        for owner in filter(None, owners):
            for name, value in list(vars(owner).items()):
                found = self._replaced.get(id(getattr(value, "__func__", value)))
                if found is not None:
                    self._patches.set(owner, name, staticmethod(found[1]))

    def _patch_capabilities(self) -> None:
        """What `os` says its functions can do (as sets of functions) holds for the replacements too."""
        for capability in _CAPABILITIES:
            functions = getattr(os, capability)
            functions.update([new for old, new in self._replaced.values() if old in functions])

    def _patch_borrowed_names(self) -> None:
        """`from shutil import rmtree` in a module imported so far, `bz2._builtin_open` and their like."""
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType) or module.__name__.split(".")[0] in (
                "ronde",
                "posix",
                "_io",
            ):
                continue
            for name, value in list(vars(module).items()):
                found = self._replaced.get(id(value))
                if found is not None:
                    self._patches.set(module, name, found[1])

    def _patch_numpy_openers(self) -> None:
        """`numpy.savetxt` opens through a table that was made when numpy was imported."""
        openers = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
        if openers is not None:
            table = {kind: self._replacement(opener) for kind, opener in openers._file_openers.items()}
            self._patches.set(openers, "_file_openers", table)

    def _replacement(self, function: Any) -> Any:
        found = self._replaced.get(id(function))
        return function if found is None else found[1]

    def _late_table(self, saving: Saving) -> dict[str, Callable[[ModuleType], None]]:
        def safetensors(module: ModuleType) -> None:
            label = f"{module.__name__}.save_file"
            self._patches.set(module, "save_file", saving.file_save(label, {}, vars(module)["save_file"]))

        def sqlite(module: ModuleType) -> None:
            connect = saving.connect(vars(module)["connect"])
            self._patches.set(module, "connect", connect)
            self._patches.set(sys.modules["sqlite3.dbapi2"], "connect", connect)

        def hdf5(module: ModuleType) -> None:
            file = vars(module)["File"]
            self._patches.set(file, "__init__", saving.hdf5(file.__init__))

        def tensorboard(module: ModuleType) -> None:
            if not self._mediation.is_main:
                # Its thread opens the file again and again, when it pleases: no place for meetings.
                self._patches.set(module, "RecordWriter", NullRecords)

        def by_main_alone(writers: Iterable[NativeWriter], module: ModuleType) -> None:
            for name, position, argument in writers:
                *path, last = name.split(".")
                owner = functools.reduce(getattr, path, module)
                original = getattr(owner, last, None)  # not every version of the library has each
                if original is None or not _can_be_set(owner):
                    continue
                write: Any = saving.by_main_alone(f"{module.__name__}.{name}", position, argument, original)
                is_static = isinstance(vars(owner).get(last), staticmethod)
                self._patches.set(owner, last, staticmethod(write) if is_static else write)

        return {
            **{name: functools.partial(by_main_alone, writers) for name, writers in NATIVE_WRITERS.items()},
            "safetensors.torch": safetensors,
            "safetensors.numpy": safetensors,
            "sqlite3": sqlite,
            "h5py": hdf5,
            "tensorboard.summary.writer.event_file_writer": tensorboard,
            "wandb": functools.partial(patch_wandb, self._mediation, self._patches),
        }


def _can_be_set(owner: Any) -> bool:
    """Whether its attributes can be replaced: those of a class of native code need not."""
    return not isinstance(owner, type) or not owner.__flags__ & _IMMUTABLE_TYPE
