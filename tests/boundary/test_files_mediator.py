"""One rank's side of file mediation, against a meeting that is made up."""

from __future__ import annotations

import _socket
import builtins
import functools
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._guards import CompileContext, compile_context

from ronde.boundary.files import OF_ALL_RANKS, FileMediator, StoreMeeting
from ronde.boundary.files.mediation import Outcome
from ronde.boundary.files.native_writers import NATIVE_WRITERS
from ronde.boundary.files.paths import Paths, caches, paths_of_rank
from ronde.errors import PeerLost


class Alone:
    """A meeting of one, which keeps what it was asked, and answers `share` by `outcome` when it has one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.outcome: Any = None
        self.seen: list[str | None] = []
        self.mediator: FileMediator | None = None

    def _note(self, name: str, value: Any) -> None:
        self.calls.append((name, value))
        self.seen.append(self.mediator.waiting_for if self.mediator else None)

    def barrier(self) -> None:
        self._note("barrier", None)

    def share(self, value: Any) -> Any:
        self._note("share", value)
        return value if self.outcome is None else self.outcome

    def publish(self, key: str, count: int) -> None:
        self._note("publish", (key, count))

    def wait(self, key: str, count: int) -> None:
        self._note("wait", (key, count))

    def tell(self, key: str, text: str) -> None:
        self._note("tell", (key, text))

    def told(self, key: str) -> str | None:
        return None


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


class One:
    """A mediator of one rank, its meeting, and a folder that is not exempt."""

    def __init__(self, rank: int, exempt: tuple[str, ...] = ()) -> None:
        self.meeting = Alone()
        self.mediator = FileMediator(
            meeting=self.meeting, rank=rank, world_size=2, paths=paths_of_rank(*exempt)
        )
        self.meeting.mediator = self.mediator

    def names(self) -> list[str]:
        """Of what ranks did together; not the words that they left."""
        return [name for name, _ in self.meeting.calls if name != "tell"]


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[One]:
    monkeypatch.chdir(tmp_path)
    one = One(0, (str(tmp_path / "exempt"),))
    one.mediator.install()
    yield one
    one.mediator.uninstall()


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[One]:
    monkeypatch.chdir(tmp_path)
    one = One(1)
    one.mediator.install()
    yield one
    one.mediator.uninstall()


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
    one = One(0)
    one.mediator.install()
    assert builtins.open is not before[0]
    assert torch.serialization.save is torch.save is not before[5]
    assert os.stat in os.supports_follow_symlinks
    one.mediator.uninstall()
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
    assert one.meeting.calls == []


def _in_thread(target: Any, *args: Any) -> None:
    thread = threading.Thread(target=target, args=args)
    thread.start()
    thread.join()


def test_threads_of_the_main_rank_write(main: One) -> None:
    os.makedirs("exempt")
    main.meeting.calls.clear()
    _in_thread(torch.save, {}, "exempt/mine.pt")
    _in_thread(torch.save, {}, "model.pt")
    _in_thread(lambda: Path("log.txt").write_text("x"))
    assert torch.load("model.pt") == torch.load("exempt/mine.pt") == {}
    assert Path("log.txt").read_text() == "x"
    place = os.path.realpath(".")
    assert [
        call for call in main.meeting.calls if not call[1][0].startswith("over")
    ] == [  # what was not there before, for the threads of other ranks
        ("tell", (f"change {number}", json.dumps([f"{place}/{name}", None, False])))
        for number, name in enumerate(("model.pt", "log.txt"))
    ]


def test_threads_of_another_rank_write_aside(other: One) -> None:
    """But not those of a library, of which nothing is known."""
    _in_thread(torch.save, {}, "model.pt")
    assert torch.load("model.pt") == {}
    with other.mediator.unmediated():
        assert os.listdir(".") == []
    namespace: dict[str, Any] = {"Path": Path, "threading": threading}
    library = "def work():\n    thread = threading.Thread(target=Path('cache').touch)\n    thread.start()\n"
    place = os.path.join(os.path.dirname(torch.__file__), "made_up.py")
    exec(compile(library + "    thread.join()\n", place, "exec"), namespace)
    namespace["work"]()
    with other.mediator.unmediated():
        assert os.listdir(".") == ["cache"]


def test_a_program_whose_output_is_read_is_told_of(main: One) -> None:
    for _ in range(2):
        program = subprocess.Popen(["echo", "word"], stdout=subprocess.PIPE)
        assert program.communicate()[0] == b"word\n"
    (note,) = main.mediator.notes
    assert note.startswith("'echo' was started by every rank")
    assert main.meeting.calls == []


def test_temporary_files_that_are_left_are_the_main_ranks(main: One, other: One) -> None:
    """The second to be installed is asked first: both make what the script makes."""
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    folder = tempfile.mkdtemp()
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(b"left")
    kept = [path, folder, file.name]
    main.mediator.remove_temporary()
    assert all(map(os.path.exists, kept))
    other.mediator.remove_temporary()
    assert not any(map(os.path.exists, kept))


def test_a_mutation_is_one_meeting(main: One) -> None:
    os.makedirs("a/b/c")
    assert main.names() == ["barrier", "share"]
    shutil.copytree("a", "copy")
    assert main.names() == ["barrier", "share"] * 2
    shutil.rmtree("copy")
    assert main.names() == ["barrier", "share"] * 3
    assert main.meeting.seen[0] == f"all ranks to os.makedirs {os.path.abspath('a/b/c')!r}"
    assert main.mediator.waiting_for is None


def test_reading_is_no_meeting(main: One) -> None:
    assert not os.path.exists("missing")
    assert os.listdir(".") == []
    with open(__file__) as file, open(os.devnull, "w") as null:
        null.write(file.read())
    assert main.meeting.calls == []


def test_what_is_exempt(main: One, tmp_path: Path) -> None:
    with main.mediator.unmediated():
        os.makedirs(tmp_path / "exempt")
    (tmp_path / "exempt" / "file").write_text("own")
    os.replace(tmp_path / "exempt" / "file", tmp_path / "exempt" / "other")
    folder = tempfile.mkdtemp()
    torch.save(1, os.path.join(folder, "file.pt"))
    shutil.rmtree(folder)
    assert main.meeting.calls == []


def test_the_compiler_writes_for_its_own_process(main: One) -> None:
    """It holds a lock meanwhile, for which another rank may wait instead of coming to a meeting."""
    with compile_context(CompileContext(None)):
        os.makedirs("kernels")
        Path("kernels/one.cpp").write_text("own")
    assert main.meeting.calls == []
    os.makedirs("of_the_script")
    assert main.names() == ["barrier", "share"]


def test_others_write_nothing(other: One) -> None:
    other.meeting.outcome = Outcome(operation="open (w)", path=os.path.abspath("file"), value=("key", 0))
    with open("file", "w") as file:
        file.write("text")
    assert not os.path.exists("file")
    # Nobody opened it, but everything written to it is waited for before it is read.
    assert "wait" not in other.names()
    key = os.path.realpath("file")
    other.meeting.outcome = Outcome(operation="open (w)", path=os.path.abspath("file"), value=(key, 0))
    with open("file", "w") as file:
        file.write("text")
    assert not os.path.exists("file")
    assert other.meeting.calls[-1] == ("wait", (key, 1 << 32))
    assert other.meeting.seen[-1] == f"all ranks to close {os.path.abspath('file')!r}"


@pytest.mark.parametrize("module", NATIVE_WRITERS)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_native_code_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, module: str
) -> None:
    """The main rank writes it alone, wherever the path stands among the arguments."""
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
    one = One(rank)
    one.mediator.install()
    try:
        for name, position, argument in NATIVE_WRITERS[module]:
            call = functools.reduce(getattr, name.split("."), library)
            path, label = os.path.abspath(name), f"{module}.{name}"
            one.meeting.outcome = Outcome(operation=label, path=path, value=None) if rank else None
            if position is not None:
                call(*["rows"] * position, name)
            call(*["rows"] * (position or 0), **{argument: name})
    finally:
        one.mediator.uninstall()
    names = [
        writer.name for writer in NATIVE_WRITERS[module] for _ in range(1 if writer.position is None else 2)
    ]
    assert written == ([] if rank else names)
    assert one.names() == ["barrier", "share"] * len(names)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_and_tokenizers_are_saved_by_the_main_rank_alone(other: One) -> None:
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
        other.meeting.outcome = Outcome(operation=label, path=path, value=None)
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
        one = One(rank)
        one.mediator.install()
        try:
            outcome = Outcome(operation="torch.jit.save", path=os.path.abspath("file"), value=None)
            one.meeting.outcome = outcome if rank else None
            torch.jit.save(None, "file")
        finally:
            one.mediator.uninstall()
        assert done == ["gathered", *(["saved"] if rank == 0 else [])]


def test_others_raise_what_the_main_rank_raised(other: One) -> None:
    failure = PermissionError(13, "Permission denied", "folder")
    other.meeting.outcome = Outcome(operation="os.mkdir", path=os.path.abspath("folder"), failure=failure)
    with pytest.raises(PermissionError, match="Permission denied: 'folder'"):
        os.mkdir("folder")


def test_ranks_on_different_paths(other: One) -> None:
    other.meeting.outcome = Outcome(operation="os.remove", path="/work/old.pt")
    words = r"Rank 1 came to os.mkdir .*new' while the main rank came to os.remove '/work/old.pt'"
    with pytest.raises(PeerLost, match=words):
        os.mkdir("new")


def test_main_tells_flushes_late_and_closes_at_once(main: One, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ronde.boundary.files.publications._DELAY", 60.0)
    key = os.path.realpath("file")
    file = open("file", "w")
    file.write("text")
    file.flush()
    assert main.names() == ["barrier", "share"]
    assert os.path.getsize("file") == 4  # the main rank reads it too: now is the time to tell
    assert main.meeting.calls[-1] == ("publish", (key, 1))
    file.close()
    assert main.meeting.calls[-1] == ("publish", (key, 1 << 32))


def test_failure_that_does_not_travel(main: One, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("odd")

    class Unsaveable:
        def __reduce__(self) -> Any:
            raise Odd(1, 2)

    with pytest.raises(Odd):
        torch.save(Unsaveable(), "file.pt")
    shared = main.meeting.calls[-1][1]
    assert isinstance(shared.failure, RuntimeError)
    assert str(shared.failure) == "Odd: odd"


class PollingStore:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str, /) -> None:
        self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        return all(key in self.values for key in keys)


class LocalComm:
    def __init__(self) -> None:
        self.store = PollingStore()

    def barrier(self) -> None: ...

    def broadcast_object(self, value: Any, /, source: int = 0) -> Any:
        return (value, source)


def test_store_meeting() -> None:
    comm = LocalComm()
    meeting = StoreMeeting(comm, timeout=0.05)
    meeting.publish("/a", 5)
    meeting.wait("/a", 4)
    meeting.wait("/a", 5)
    assert meeting.share("outcome") == ("outcome", 0)
    with pytest.raises(PeerLost, match="did not finish writing '/a' within"):
        meeting.wait("/a", 6)
    with pytest.raises(PeerLost, match="'/b'"):
        meeting.wait("/b", 1)


def test_paths() -> None:
    paths = Paths(["/cache", "/run/"])
    assert all(paths.is_exempt(path) for path in ("/cache", "/cache/x/y", "/run/x", "/dev/shm/x"))
    assert not any(paths.is_exempt(path) for path in ("/cached", "/home", "/"))
    paths.add_private("/tmp/own")
    assert paths.is_private("/tmp/own/file")
    assert not paths.is_private("/cache/x")
    paths.add_alias("/nowhere/run-1/a/b", "/nowhere/run-0/a/b")
    assert paths.locate("/nowhere/run-1/c") == "/nowhere/run-0/c"
    assert paths.renamed(b"/nowhere/run-1/c") == b"/nowhere/run-0/c"
    assert paths.renamed("/nowhere/run-10") == "/nowhere/run-10"
    assert paths.locate(3) is None


def test_caches_follow_the_environment() -> None:
    folders = caches({"HF_HOME": "/models"})
    assert "/models" in folders
    assert os.path.expanduser("~/.cache") in folders
    assert any(os.path.basename(folder).startswith("torchinductor_") for folder in folders)


def test_unix_sockets_of_multiprocessing_are_left_alone(other: One) -> None:
    """Their paths are new on every rank, and spawned processes are told them."""
    with Listener(family="AF_UNIX") as listener:
        assert stat.S_ISSOCK(os.stat(str(listener.address)).st_mode)
    assert "share" not in other.names()


def test_a_unix_socket_of_another_ranks_thread(other: One) -> None:
    """It is nowhere among the files, and reached all the same; no rank is met."""

    def serve() -> None:
        with Listener("a.sock") as listener, Client("a.sock") as client, listener.accept() as accepted:
            client.send("own")
            heard.append(accepted.recv())

    heard: list[str] = []
    _in_thread(serve)
    assert heard == ["own"]
    assert os.listdir() == []
    assert other.names() == []


def test_a_unix_socket_of_another_program(other: One) -> None:
    server = _socket.socket(socket.AF_UNIX)  # which no patch of ours knows
    server.bind("theirs.sock")
    server.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("theirs.sock")
        assert client.getpeername() == "theirs.sock"
    with socket.socket(socket.AF_UNIX) as client:
        assert client.connect_ex(b"theirs.sock") == 0
    server.close()
