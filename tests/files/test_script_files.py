"""One rank's side of the script's files, against other ranks that are made up."""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._guards import CompileContext, compile_context

from ronde.errors import PeerLost, UsageError
from ronde.files import OF_ALL_RANKS, ScriptFiles
from ronde.files.native_writers import NATIVE_WRITERS
from ronde.files.paths import Paths, caches, paths_of_rank
from ronde.files.rank_files import ChangeOutcome


class Alone:
    """A communicator of one, which keeps what it was asked; hears `outcome` when it has one."""

    alone, world_size = False, 2

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.calls: list[tuple[str, Any]] = []
        self.outcome: Any = None

    def _note(self, name: str, value: Any) -> None:
        self.calls.append((name, value))

    def barrier(self) -> None:
        self._note("barrier", None)

    def broadcast_object(self, value: Any) -> Any:
        self._note("broadcast", value)
        return value if self.outcome is None else self.outcome


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


class One:
    """One rank of two, with a folder of both that is not exempt."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.ranks = Alone(rank)
        self.told = folder / "told"
        self.script_files = ScriptFiles(
            comm=self.ranks,  # pyright: ignore[reportArgumentType]
            paths=paths_of_rank(str(folder / "exempt")),
            shared=str(folder),
        )

    def names(self) -> list[str]:
        """Of what ranks did together."""
        return [name for name, _ in self.ranks.calls]


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[One]:
    (tmp_path / "work").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "work")
    one = One(0, tmp_path)
    one.script_files.install()
    yield one
    one.script_files.uninstall()


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[One]:
    (tmp_path / "work").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "work")
    one = One(1, tmp_path)
    one.script_files.install()
    yield one
    one.script_files.uninstall()


def test_uninstall_leaves_nothing(tmp_path: Path) -> None:
    before = (
        builtins.open,
        os.open,
        os.stat,
        shutil.rmtree,
        tempfile.mkstemp,
        torch.save,
        torch.serialization.save,
    )
    capabilities = [set(os.supports_dir_fd), set(os.supports_fd), set(os.supports_follow_symlinks)]
    finders = list(sys.meta_path)
    one = One(0, tmp_path)
    one.script_files.install()
    assert builtins.open is not before[0]
    assert torch.serialization.save is torch.save is not before[5]
    assert os.stat in os.supports_follow_symlinks
    one.script_files.uninstall()
    after = (
        builtins.open,
        os.open,
        os.stat,
        shutil.rmtree,
        tempfile.mkstemp,
        torch.save,
        torch.serialization.save,
    )
    assert after == before
    assert [set(os.supports_dir_fd), set(os.supports_fd), set(os.supports_follow_symlinks)] == capabilities
    assert sys.meta_path == finders
    (tmp_path / "plain").write_text("plain")
    assert one.ranks.calls == []


def _in_thread(target: Any, *args: Any) -> None:
    thread = threading.Thread(target=target, args=args)
    thread.start()
    thread.join()


def test_a_file_of_torch_is_replaced_when_the_new_one_is_whole(main: One) -> None:
    seen: list[Any] = []

    class Last:
        """Pickled when much has been written."""

        def __reduce__(self) -> Any:
            seen.append(torch.load("best.pt", weights_only=False))
            if len(seen) == 2:
                raise OSError("the disk is full")
            return (int, (7,))

    torch.save(1, "best.pt")
    os.chmod("best.pt", 0o600)
    torch.save([torch.ones(100), Last()], "best.pt")
    with pytest.raises(OSError, match="the disk is full"):
        torch.save([torch.ones(100), Last()], "best.pt")
    assert seen[0] == 1
    assert torch.load("best.pt", weights_only=False)[1] == 7
    assert os.stat("best.pt").st_mode & 0o777 == 0o600
    with main.script_files.unmediated():
        assert os.listdir(".") == ["best.pt"]


def test_threads_of_rank_0_write_and_tell(main: One, tmp_path: Path) -> None:
    os.makedirs(tmp_path / "exempt")
    main.ranks.calls.clear()
    _in_thread(torch.save, {}, tmp_path / "exempt/mine.pt")
    _in_thread(torch.save, {}, "model.pt")
    _in_thread(lambda: Path("log.txt").write_text("x"))
    assert torch.load("model.pt") == torch.load(tmp_path / "exempt/mine.pt") == {}
    assert Path("log.txt").read_text() == "x"
    assert main.ranks.calls == []
    told = Path(f"{main.told}{os.path.realpath('.')}")
    assert sorted(path.name for path in told.iterdir()) == ["log.txt\x01", "model.pt\x01"]
    Path("log.txt").write_text("by all")
    assert [path.name for path in told.iterdir()] == ["model.pt\x01"]


def test_threads_of_another_rank_write_aside(other: One) -> None:
    """But not those of a library, of which nothing is known."""
    _in_thread(torch.save, {}, "model.pt")
    assert torch.load("model.pt") == {}
    with other.script_files.unmediated():
        assert os.listdir(".") == []
    namespace: dict[str, Any] = {"Path": Path, "threading": threading}
    library = "def work():\n    thread = threading.Thread(target=Path('cache').touch)\n    thread.start()\n"
    place = os.path.join(os.path.dirname(torch.__file__), "made_up.py")
    exec(compile(library + "    thread.join()\n", place, "exec"), namespace)
    namespace["work"]()
    with other.script_files.unmediated():
        assert os.listdir(".") == ["cache"]


def test_a_program_that_goes_on_is_told_of(main: One) -> None:
    for _ in range(2):
        program = subprocess.Popen(["echo", "word"], stdout=subprocess.PIPE)
        assert program.communicate()[0] == b"word\n"
    (note,) = main.script_files.notes
    assert note.startswith("'echo' was started by every rank")
    assert main.ranks.calls == []


def test_a_program_that_a_thread_starts_is_told_of(main: One) -> None:
    ended: list[int] = []
    _in_thread(lambda: ended.append(subprocess.run(["true"]).returncode))
    (note,) = main.script_files.notes
    assert note.startswith("'true' was started by every rank, because a thread")
    assert ended == [0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_program_on_what_a_thread_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    monkeypatch.chdir(tmp_path)
    one = One(rank, tmp_path)
    refused: list[str] = []

    def work() -> None:
        Path("made.txt").write_text("x")
        for command in (["cat", "made.txt"], "cat -- made.txt"):
            with pytest.raises(UsageError) as error:
                subprocess.run(command, shell=isinstance(command, str))
            refused.append(str(error.value))

    one.script_files.install()
    try:
        _in_thread(work)
    finally:
        one.script_files.uninstall()
    assert all(each.startswith("a thread of the script starts 'cat' on 'made.txt'") for each in refused)
    assert len(refused) == 2


def test_a_change_is_one_collective(main: One) -> None:
    os.makedirs("a/b/c")
    assert main.names() == ["barrier", "broadcast"]
    shutil.copytree("a", "copy")
    assert main.names() == ["barrier", "broadcast"] * 2
    shutil.rmtree("copy")
    assert main.names() == ["barrier", "broadcast"] * 3


def test_reading_is_no_collective(main: One) -> None:
    assert not os.path.exists("missing")
    assert os.listdir(".") == []
    with open(__file__) as file, open(os.devnull, "w") as null:
        null.write(file.read())
    assert main.ranks.calls == []


def test_what_is_exempt(main: One, tmp_path: Path) -> None:
    with main.script_files.unmediated():
        os.makedirs(tmp_path / "exempt")
    (tmp_path / "exempt" / "file").write_text("own")
    os.replace(tmp_path / "exempt" / "file", tmp_path / "exempt" / "other")
    folder = tempfile.mkdtemp()
    torch.save(1, os.path.join(folder, "file.pt"))
    shutil.rmtree(folder)
    assert main.ranks.calls == []


def test_the_compiler_writes_for_its_own_process(main: One) -> None:
    """It holds a lock meanwhile, for which another rank may wait instead of coming."""
    with compile_context(CompileContext(None)):
        os.makedirs("kernels")
        Path("kernels/one.cpp").write_text("own")
    assert main.ranks.calls == []
    os.makedirs("of_the_script")
    assert main.names() == ["barrier", "broadcast"]


def test_others_write_nothing_and_wait_when_they_close(other: One) -> None:
    key = os.path.realpath("file")
    other.ranks.outcome = ChangeOutcome("open (w)", os.path.abspath("file"), (key, 0))
    with open("file", "w") as file:
        file.write("text")
    assert not os.path.exists("file")
    assert other.names() == ["barrier", "broadcast", "barrier"]


def test_what_is_open_is_waited_for_when_it_is_read(main: One) -> None:
    file = open("file", "w")
    file.write("text")
    file.flush()
    descriptor = os.open("other", os.O_CREAT | os.O_WRONLY)
    main.ranks.calls.clear()
    assert os.path.getsize("file") == 4
    assert os.path.getsize("other") == 0
    assert sorted(os.listdir(".")) == ["file", "other"]
    assert main.names() == ["barrier"]  # at which rank 0 had come past both
    file.close()
    os.close(descriptor)
    assert Path("file").read_text() == "text"
    assert main.names() == ["barrier", "barrier"]


def test_a_rank_that_fails_alone_waits_for_nobody(main: One) -> None:
    with contextlib.suppress(ZeroDivisionError), open("file", "w") as file:
        main.ranks.calls.clear()
        file.write(str(1 // 0))
    assert main.ranks.calls == []
    assert Path("file").read_text() == ""
    assert main.names() == ["barrier"]
    left = open("left", "w")
    main.script_files.stop_waiting()
    main.ranks.calls.clear()
    left.close()
    assert main.ranks.calls == []


@pytest.mark.parametrize("module", NATIVE_WRITERS)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_native_code_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, module: str
) -> None:
    """Rank 0 writes it alone, wherever the path stands among the arguments."""
    monkeypatch.chdir(tmp_path)
    written: list[Any] = []
    library: Any = types.ModuleType(module)
    for name, position, argument in NATIVE_WRITERS[module]:

        def write(
            *args: Any, position: int | None = position, argument: str = argument, **given: Any
        ) -> None:
            written.append(given[argument] if position is None or argument in given else args[position])

        kind, _, method = name.rpartition(".")
        vars(library).setdefault(kind, type(kind, (), {}))
        setattr(vars(library)[kind] if kind else library, method, write)
    monkeypatch.setitem(sys.modules, module, library)
    one = One(rank, tmp_path)
    one.script_files.install()
    try:
        for name, position, argument in NATIVE_WRITERS[module]:
            call = functools.reduce(getattr, name.split("."), library)
            path, label = os.path.abspath(name), f"{module}.{name}"
            one.ranks.outcome = ChangeOutcome(label, path) if rank else None
            if position is not None:
                call(*["rows"] * position, name)
            call(*["rows"] * (position or 0), **{argument: name})
    finally:
        one.script_files.uninstall()
    names = [
        writer.name for writer in NATIVE_WRITERS[module] for _ in range(1 if writer.position is None else 2)
    ]
    assert written == ([] if rank else names)
    assert one.names() == ["barrier", "broadcast"] * len(names)


@pytest.mark.parametrize("rank", [0, 1])
def test_libraries_without_the_replaced_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Another version, or a stand-in that somebody has installed, may lack any of them."""
    others = ("safetensors.torch", "safetensors.numpy", "sqlite3", "sqlite3.dbapi2", "h5py", "wandb")
    names = (*NATIVE_WRITERS, *others, "tensorboard.summary.writer.event_file_writer")
    modules = {name: types.ModuleType(name) for name in names}
    old = modules["wandb"]  # without `Run`
    vars(old).update(init=dict, __file__=os.path.join(os.path.dirname(torch.__file__), "wandb.py"))
    before = {name: dict(vars(module)) for name, module in modules.items()}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    one = One(rank, tmp_path)
    one.script_files.install()
    after = {name: dict(vars(module)) for name, module in modules.items()}
    one.script_files.uninstall()
    assert after["wandb"].pop("init") is not before["wandb"].pop("init")
    assert after == before


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:.*Lite Interpreter is deprecated")
def test_torchscript_and_tokenizers_are_saved_by_rank_0_alone(other: One) -> None:
    """Their methods, as these libraries have them: copied from class to class, and of native types."""
    module = torch.nn.Linear(2, 2)
    traced: Any = torch.jit.trace(module, torch.ones(1, 2))
    scripted: Any = torch.jit.script(module)
    tokenizers: Any = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    saving = {
        "torch.jit.ScriptModule.save": traced.save,
        "torch.jit.RecursiveScriptModule.save": scripted.save,
        "torch.jit.RecursiveScriptModule._save_for_lite_interpreter": scripted._save_for_lite_interpreter,
        "torch.jit.ScriptFunction.save": torch.jit.script(_doubled).save,
        "tokenizers.Tokenizer.save": tokenizer.save,
        "tokenizers.models.Model.save": tokenizer.model.save,
    }
    for label, save in saving.items():
        path = os.getcwd() if label.endswith("Model.save") else os.path.abspath("file")
        other.ranks.outcome = ChangeOutcome(label, path)
        save(path)
    assert os.listdir() == []


def test_what_a_writer_needs_of_all_ranks_is_done_on_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Parameters that lie in parts come together."""
    monkeypatch.chdir(tmp_path)
    for rank in (0, 1):
        done: list[str] = []

        def save(module: object, f: str, done: list[str] = done) -> None:
            done.append("saved")

        vars(save)[OF_ALL_RANKS] = functools.partial(done.append, "gathered")
        monkeypatch.setattr(torch.jit, "save", save)
        one = One(rank, tmp_path)
        one.script_files.install()
        try:
            outcome = ChangeOutcome("torch.jit.save", os.path.abspath("file"))
            one.ranks.outcome = outcome if rank else None
            torch.jit.save(None, "file")
        finally:
            one.script_files.uninstall()
        assert done == ["gathered", *(["saved"] if rank == 0 else [])]


def test_others_raise_what_rank_0_raised(other: One) -> None:
    failure = PermissionError(13, "Permission denied", "folder")
    other.ranks.outcome = ChangeOutcome("os.mkdir", os.path.abspath("folder"), failure=failure)
    with pytest.raises(PermissionError, match="Permission denied: 'folder'"):
        os.mkdir("folder")


def test_ranks_on_different_paths(other: One) -> None:
    other.ranks.outcome = ChangeOutcome("os.remove", "/work/old.pt")
    words = r"Rank 1 came to os.mkdir .*new' while rank 0 came to os.remove '/work/old.pt'"
    with pytest.raises(PeerLost, match=words):
        os.mkdir("new")


def test_names_that_differ(other: One) -> None:
    """Files of one folder are one file, by whatever name; folders are another run's."""
    other.ranks.outcome = ChangeOutcome("os.mkdir", os.path.abspath("run-7"))
    os.mkdir("run-8")
    (note,) = other.script_files.notes
    assert note.startswith("File names differ between ranks (a time or a process id in them?)")
    with pytest.raises(PeerLost, match=r"Rank 1 came to os.mkdir .*run-8/a' while rank 0 came to os.mkdir"):
        os.mkdir("run-8/a")


def test_failure_that_does_not_travel(main: One) -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("odd")

    class Unsaveable:
        def __reduce__(self) -> Any:
            raise Odd(1, 2)

    with pytest.raises(Odd):
        torch.save(Unsaveable(), "file.pt")
    shared = main.ranks.calls[-1][1]
    assert isinstance(shared.failure, RuntimeError)
    assert str(shared.failure) == "Odd: odd"


def test_paths() -> None:
    paths = Paths(["/cache", "/run/"])
    assert all(paths.is_exempt(path) for path in ("/cache", "/cache/x/y", "/run/x", "/dev/shm/x"))
    assert not any(paths.is_exempt(path) for path in ("/cached", "/home", "/"))
    paths.add_private("/tmp/own")
    assert paths.is_private("/tmp/own/file")
    assert not paths.is_private("/cache/x")
    assert paths.locate(b"/nowhere/../run") == "/run"
    assert paths.locate(3) is None


def test_caches_follow_the_environment() -> None:
    folders = caches({"HF_HOME": "/models"})
    assert "/models" in folders
    assert os.path.expanduser("~/.cache") in folders
    assert any(os.path.basename(folder).startswith("torchinductor_") for folder in folders)


def test_safetensors_of_other_ranks_takes_no_device(other: One) -> None:
    """It writes beside its target and renames, which for root would replace the null device by a file."""
    from safetensors.torch import save_file

    other.ranks.outcome = ChangeOutcome("safetensors.torch.save_file", os.path.abspath("file"))
    save_file({"a": torch.ones(2)}, "file")
    assert os.listdir(".") == []
    assert Path(os.devnull).is_char_device()
