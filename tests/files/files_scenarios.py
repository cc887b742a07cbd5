"""Pieces of ordinary scripts that write files. Each runs in plain Python, and on ranks with files mediated.

A scenario returns what the script would know at its end; it must be the same everywhere, and so must
the files in the working directory.
"""

# Files are opened and left to be closed as scripts do it.
# ruff: noqa: PLW1501

from __future__ import annotations

import bz2
import concurrent.futures
import contextlib
import csv
import functools
import gc
import gzip
import importlib
import io
import json
import logging
import logging.handlers
import multiprocessing
import os
import pickle
import queue
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from glob import glob
from os import makedirs
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch


class Ranks:
    """Plain Python: one process that is rank 0 of 1."""

    rank = 0
    world_size = 1

    def late(self, name: str, rank: int) -> None:
        """Let `rank` be the last to pass."""

    @contextlib.contextmanager
    def first(self, name: str, rank: int) -> Iterator[None]:
        """Let `rank` come to the end of this before any other begins; for threads, too."""
        yield

    @contextlib.contextmanager
    def last(self, name: str, rank: int) -> Iterator[None]:
        """Let all others come to the end of this before `rank` begins."""
        yield

    def total(self, number: int) -> int:
        """Sum over ranks: a collective in the middle of what a scenario does."""
        return number


Scenario = Callable[[Ranks], Any]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def answer(function: Scenario, ranks: Ranks) -> Any:
    """What the scenario returned or raised, as JSON would give it back."""
    try:
        result = function(ranks)
    except Exception as failure:
        result = [type(failure).__name__, str(failure)]
    return json.loads(json.dumps(result))


def failure_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return "nothing was raised"


@scenario
def text_is_written_once(ranks: Ranks) -> Any:
    with open("log.txt", "a", encoding="utf-8") as file:
        for line in ("ein", "zwei", "drei ü"):
            file.write(line + "\n")
        position = file.tell()
    with open("log.txt", "a", encoding="utf-8") as file:
        start = file.tell()
        file.write("vier\n")
    return [position, start, os.path.getsize("log.txt"), open("log.txt", encoding="utf-8").read()]


@scenario
def exists_is_answered_before_anyone_creates(ranks: Ranks) -> Any:
    answers = []
    for rank in (0, 1):
        name = f"best-{rank}.pt"
        ranks.late(name, rank)
        answers.append(os.path.exists(name))
        if not os.path.exists(name):
            torch.save({"epoch": rank}, name)
        ranks.late(f"again-{name}", rank)
        answers.append(os.path.exists(name))
        answers.append(torch.load(name)["epoch"])
    return answers


@scenario
def failures_are_the_same_everywhere(ranks: Ranks) -> Any:
    open("taken", "w").close()
    os.mkdir("folder")
    actions: list[Callable[[], Any]] = [
        lambda: open("taken", "x"),
        lambda: open("missing/file", "w"),
        lambda: open("missing", "r+"),
        lambda: open("missing", "rb"),
        lambda: open("folder", "w"),
        lambda: open("file", "wz"),
        lambda: open("file", "w", encoding="no-such-encoding"),
        lambda: open("file", "wb", encoding="utf-8"),
        lambda: open("file", "w", buffering=0),
        lambda: open("file", "w", closefd=False),
        lambda: open(1.5, "w"),  # pyright: ignore[reportCallIssue, reportArgumentType]
        lambda: os.mkdir("folder"),
        lambda: os.makedirs("folder"),
        lambda: os.remove("missing"),
        lambda: os.rmdir("missing"),
        lambda: os.rename("missing", "other"),
        lambda: os.replace("taken", "folder"),
        lambda: os.open("taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        lambda: shutil.copy("missing", "other"),
        lambda: shutil.copyfile("taken", "taken"),
        lambda: shutil.rmtree("missing"),
        lambda: Path("folder").mkdir(),
        lambda: Path("missing").unlink(),
        lambda: torch.save(lambda: 0, "lambda.pt"),
        lambda: np.save("missing/array.npy", np.zeros(2)),
    ]
    failures = [failure_of(action) for action in actions]
    os.remove("lambda.pt")  # torch leaves a broken file behind, as plain `open` does for a bad encoding
    Path("file").unlink(missing_ok=True)
    return [failures, sorted(os.listdir("."))]


@scenario
def best_checkpoint_is_saved_and_loaded(ranks: Ranks) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    best = float("inf")
    for epoch, loss in enumerate([3.0, 2.0, 2.5, 1.0]):
        with torch.no_grad():
            model.weight += epoch
        if loss < best:
            best = loss
            torch.save({"model": model.state_dict(), "epoch": epoch}, "best.pt")
    checkpoint = torch.load("best.pt", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    legacy = Path("legacy.pt")
    torch.save(model.state_dict(), legacy, _use_new_zipfile_serialization=False)
    with open("handle.pt", "wb") as file:
        torch.save(model.state_dict(), file)
    sums = [float(torch.load(path)["weight"].sum()) for path in ("handle.pt", legacy)]
    os.remove("legacy.pt")  # carries addresses
    return [checkpoint["epoch"], sums]


@scenario
def scripted_module_is_saved(ranks: Ranks) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(torch.nn.ReLU()), "scripted.pt")
        loaded = torch.jit.load("scripted.pt")
    with torch.autograd.profiler.profile() as profile:
        loaded(torch.zeros(2))
    assert profile is not None
    profile.export_chrome_trace("trace.json")
    found = sorted(os.listdir("."))
    os.remove("scripted.pt")  # its records carry names that differ from run to run
    os.remove("trace.json")
    return [loaded(torch.tensor([-1.0, 1.0])).tolist(), found]


class Gathers:
    """Pickles by a collective, as a global tensor does."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def __reduce__(self) -> Any:
        return (int, (self.ranks.total(1) // self.ranks.world_size,))


@scenario
def pickling_may_run_collectives(ranks: Ranks) -> Any:
    torch.save({"value": Gathers(ranks)}, "gathered.pt")
    with open("gathered.pkl", "wb") as file:
        pickle.dump(Gathers(ranks), file)
    missing = failure_of(lambda: torch.save(Gathers(ranks), "missing/gathered.pt")) == "nothing was raised"
    with open("gathered.pkl", "rb") as file:
        return [torch.load("gathered.pt", weights_only=False), pickle.load(file), missing]


@scenario
def csv_is_appended(ranks: Ranks) -> Any:
    for epoch in range(3):
        fresh = not os.path.exists("metrics.csv")
        with open("metrics.csv", "a", newline="") as file:
            writer = csv.DictWriter(file, ["epoch", "loss"])
            if fresh:
                writer.writeheader()
            writer.writerow({"epoch": epoch, "loss": 1 / (epoch + 1)})
        ranks.late(f"csv-{epoch}", 1)
    with open("metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


@scenario
def folder_is_cleared_and_made_anew(ranks: Ranks) -> Any:
    seen = []
    for attempt in range(2):
        if os.path.isdir("out"):
            rmtree("out")
        makedirs("out/logs", exist_ok=True)
        makedirs("out/logs", exist_ok=True)
        seen.append(sorted(os.listdir("out")))
        Path("out", f"{attempt}.txt").write_text(str(attempt))
        ranks.late(f"clear-{attempt}", attempt)
    return [seen, sorted(os.listdir("out")), glob("out/*.txt")]


@scenario
def temporary_files_are_private(ranks: Ranks) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rank").write_text(str(ranks.rank))
        torch.save(ranks.rank, os.path.join(folder, "best.pt"))
        own = (
            Path(folder, "rank").read_text()
            == str(ranks.rank)
            == str(torch.load(os.path.join(folder, "best.pt")))
        )
        shutil.copy(os.path.join(folder, "best.pt"), os.path.join(folder, "copy.pt"))
        own = own and torch.load(os.path.join(folder, "copy.pt")) == ranks.rank
    with tempfile.NamedTemporaryFile("w+", suffix=".txt") as file:
        file.write(str(ranks.rank))
        file.flush()
        own = own and Path(file.name).read_text() == str(ranks.rank)
    with tempfile.TemporaryFile() as file, tempfile.SpooledTemporaryFile(max_size=1) as spooled:
        file.write(b"12")
        spooled.write(b"12")
        own = own and file.tell() == spooled.tell() == 2
    return [own, os.path.exists(folder)]


@scenario
def temporary_file_is_moved_into_place(ranks: Ranks) -> Any:
    with tempfile.NamedTemporaryFile("w", dir=".", suffix=".tmp", delete=False) as file:
        file.write("whole")
    os.replace(file.name, "final.txt")
    folder = tempfile.mkdtemp(dir=".")
    Path(folder, "inside").write_text("inside")
    shutil.move(folder, "moved")
    return [Path("final.txt").read_text(), sorted(os.listdir(".")), os.listdir("moved")]


@scenario
def temporary_file_in_a_folder_of_choice_is_made_once(ranks: Ranks) -> Any:
    os.mkdir("results")
    with tempfile.NamedTemporaryFile("w", dir="results", suffix=".txt", delete=False) as file:
        file.write("kept")
    descriptor, path = tempfile.mkstemp(".bin", "low-", "results")
    os.write(descriptor, b"low")
    os.close(descriptor)
    names = sorted(os.listdir("results"))
    contents = [Path(file.name).read_text(), Path(path).read_text()]
    os.rename(file.name, "results/kept")
    os.rename(path, "results/low")
    # What is named after that is each rank's own again: a socket of multiprocessing's, say.
    number = zlib.crc32(tempfile.mktemp().encode())
    alone = ranks.world_size == 1 or ranks.total(number) != ranks.world_size * number
    return [len(names), [Path(name).suffix for name in names], contents, os.path.basename(path)[:4], alone]


@scenario
def programs_that_go_on(ranks: Ranks) -> Any:
    """Each rank has its own, of what has been written."""
    Path("in.txt").write_text("line\n")
    with subprocess.Popen(["cat", "in.txt"], stdout=subprocess.PIPE, text=True) as program:
        answers: list[Any] = [program.communicate()[0]]
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    sleeper.terminate()
    answers += [program.returncode, sleeper.wait(), sleeper.poll()]
    return [*answers, failure_of(lambda: subprocess.Popen(["no-such-program-here"]))]


@scenario
def programs_of_threads_on_temporary_files(ranks: Ranks) -> Any:
    """Each rank has its own, and what the program makes of it."""
    found: list[Any] = []

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "in").write_text("held")
            subprocess.run(["cp", f"{folder}/in", f"{folder}/out"], check=True)
            subprocess.run(["cp", "in", "again"], check=True, cwd=folder)
            found.extend(Path(folder, name).read_text() for name in ("out", "again"))

    in_thread(work)
    return found


@scenario
def json_is_read_back(ranks: Ranks) -> Any:
    ranks.late("json", 0)
    json.dump({"lr": 0.1, "text": "ü"}, open("config.json", "w"), indent=1)  # closed by its last reference
    size = os.path.getsize("config.json")
    config = json.load(open("config.json"))
    file = open("open.txt", "w")
    file.write("first\n")
    file.flush()
    half = open("open.txt").read().startswith("first\n")  # others may be late and see more of an open file
    file.write("second\n")
    file.close()
    return [config, size, half, open("open.txt").read(), os.stat("open.txt").st_size]


@scenario
def main_rank_may_be_slow_to_close(ranks: Ranks) -> Any:
    with open("slow.txt", "w") as file:
        file.write("all of it")
        if ranks.rank == 0 and ranks.world_size > 1:
            time.sleep(0.3)
    first = open("slow.txt").read()
    descriptor = os.open("descriptor.txt", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"by number")
    if ranks.rank == 0 and ranks.world_size > 1:
        time.sleep(0.3)
    os.close(descriptor)
    second = open("descriptor.txt").read()
    with os.fdopen(os.open("fdopen.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("by file")
        os.fsync(file.fileno())
        if ranks.rank == 0 and ranks.world_size > 1:
            time.sleep(0.3)
    return [first, second, open("fdopen.txt").read(), oct(os.stat("fdopen.txt").st_mode)]


@scenario
def what_reads_by_itself_finds_a_closed_file(ranks: Ranks) -> Any:
    with open("native.bin", "wb") as file:
        file.write(bytes(range(200)))
        ranks.late("native", 0)
    return torch.from_file("native.bin", size=200, dtype=torch.uint8).sum().item()


@scenario
def one_rank_alone_reads_back(ranks: Ranks) -> Any:
    with open("a.txt", "w") as file:
        file.write("a")
    # As in a sliced loader: ranks read different files, or none. Nothing here may be collective.
    text = open("a.txt").read() if ranks.rank == ranks.world_size - 1 else "a"
    return text


@scenario
def paths_by_pathlib(ranks: Ranks) -> Any:
    folder = Path("runs") / "1" / "deep"
    folder.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "note.txt"
    path.write_text("note\n")
    path.write_bytes(path.read_bytes() * 2)
    (folder / "touched").touch()
    (folder / "touched").touch(exist_ok=True)
    (folder / "link").symlink_to("note.txt")
    linked = (folder / "link").read_text()
    path.rename(folder / "renamed.txt")
    (folder / "renamed.txt").replace(folder / "replaced.txt")
    (folder / "replaced.txt").chmod(0o600)
    (folder / "touched").unlink()
    (folder / "link").unlink()
    (Path("runs") / "2").mkdir()
    (Path("runs") / "2").rmdir()
    names = sorted(str(found) for found in Path("runs").rglob("*"))
    return [linked, names, oct((folder / "replaced.txt").stat().st_mode)]


@scenario
def save_is_atomic(ranks: Ranks) -> Any:
    values = []
    for step in range(3):
        with open("state.tmp", "wb") as file:
            pickle.dump(step, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace("state.tmp", "state.pkl")
        ranks.late(f"atomic-{step}", step % 2)
        with open("state.pkl", "rb") as file:
            values.append(pickle.load(file))
    return values


@scenario
def logging_to_a_file(ranks: Ranks) -> Any:
    logger = logging.Logger("scenario")
    handler = logging.FileHandler("train.log")
    rotating = logging.handlers.RotatingFileHandler("rotating.log", maxBytes=40, backupCount=2)
    logger.addHandler(handler)
    logger.addHandler(rotating)
    for step in range(10):
        logger.warning("step %d loss %.3f", step, 1 / (step + 1))
    before = open("train.log").read()
    handler.close()
    rotating.close()
    return [before, sorted(os.listdir("."))]


@scenario
def archives(ranks: Ranks) -> Any:
    with gzip.GzipFile("a.gz", "wb", mtime=0) as file:
        file.write(b"gzip" * 10)
    with bz2.open("a.bz2", "wt") as file:
        file.write("bzip2")
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("one"), "1")
        archive.write("a.gz")
    os.utime("a.bz2", (0, 0))
    with tarfile.open("a.tar", "w") as archive:
        archive.add("a.bz2")
    shutil.unpack_archive("a.tar", "unpacked")
    made = shutil.make_archive("made", "tar", "unpacked")
    os.remove("made.tar")
    os.remove("a.tar")
    os.remove("a.zip") if zipfile.ZipFile("a.zip").namelist() == ["one", "a.gz"] else None
    return [
        gzip.open("a.gz").read().decode(),
        bz2.open("a.bz2", "rt").read(),
        os.path.basename(made),
        glob("**/*"),
    ]


@scenario
def text_layer_over_bytes(ranks: Ranks) -> Any:
    text = io.TextIOWrapper(open("wrapped.txt", "wb"), encoding="utf-16", newline="\r\n")
    text.write("one\ntwo\n")
    where = text.tell()
    text.close()
    return [where, open("wrapped.txt", "rb").read().hex()]


@scenario
def numpy_arrays(ranks: Ranks) -> Any:
    array = np.arange(12.0).reshape(3, 4)
    np.save("array.npy", array)
    np.savez("arrays.npz", a=array, b=array + 1)
    np.savetxt("array.txt", array, fmt="%.1f")
    array.tofile("array.bin")
    with open("two.npy", "wb") as file:
        np.save(file, array)
        middle = file.tell()
        np.save(file, array + 1)
    mapped = np.memmap("mapped.bin", dtype="f4", mode="w+", shape=(4,))
    mapped[:] = ranks.world_size / ranks.world_size
    mapped.flush()
    total = float(mapped.sum())
    with np.load("arrays.npz") as arrays:
        back = float(arrays["b"].sum())
    os.remove("arrays.npz")  # it carries the time
    return [middle, total, back, float(np.load("array.npy").sum()), float(np.loadtxt("array.txt").sum())]


@scenario
def files_are_updated_in_place(ranks: Ranks) -> Any:
    with open("data.bin", "w+b") as file:
        file.write(b"0123456789")
        file.seek(2)
        first = file.read(3).decode()
    with open("data.bin", "r+b") as file:
        file.seek(5)
        file.write(b"abc")
        file.seek(0)
        second = file.read().decode()
        file.truncate(9)
    with open("data.bin", "a+") as file:
        file.write("end")
        file.seek(0)
        third = file.read()
    descriptor = os.open("data.bin", os.O_RDWR)
    fourth = os.read(descriptor, 4).decode()
    os.write(descriptor, b"XY")
    os.close(descriptor)
    with open("raw.bin", "wb", buffering=0) as file:
        file.write(b"now")
        fifth = open("raw.bin").read()
    return [first, second, third, fourth, open("data.bin").read(), fifth]


@scenario
def a_database(ranks: Ranks) -> Any:
    connection = sqlite3.connect("runs.db")
    connection.execute("create table runs (step int)")
    connection.executemany("insert into runs values (?)", [(1,), (2,)])
    connection.commit()
    connection.close()
    connection = sqlite3.connect("runs.db")
    connection.execute("insert into runs select max(step) + 1 from runs")
    connection.commit()
    rows = connection.execute("select step from runs order by step").fetchall()
    connection.close()
    shutil.copy("runs.db", "copy.db")
    connection = sqlite3.connect("copy.db")
    copied = connection.execute("select count(*) from runs").fetchall()
    connection.close()
    return [rows, copied]


@scenario
def safetensors_files(ranks: Ranks) -> Any:
    from safetensors import numpy as of_numpy  # imported late, as by a script
    from safetensors.torch import load_file, save_file

    save_file({"a": torch.arange(3.0), "n": torch.ones(2)}, "model.safetensors", metadata={"format": "pt"})
    of_numpy.save_file({"a": np.arange(3)}, "array.safetensors")
    missing = failure_of(lambda: save_file({"a": torch.arange(3.0)}, "missing/file")) == "nothing was raised"
    # A trial once was written to the null device, and renamed over it.
    return [load_file("model.safetensors")["a"].tolist(), missing, stat.S_ISCHR(os.stat(os.devnull).st_mode)]


@scenario
def names_that_differ_by_rank(ranks: Ranks) -> Any:
    """A file that is put into place is rank 0's, and one that stays is read by either name."""
    temporary, log = f"best.pt.{os.getpid()}", f"log-{os.getpid()}"
    torch.save(3, temporary)
    os.replace(temporary, "best.pt")
    Path(log).write_text("log")
    answers = [torch.load("best.pt"), Path(log).read_text(), os.path.exists(log), len(os.listdir("."))]
    os.rename(log, "log")
    return [*answers, sorted(os.listdir("."))]


@scenario
def processes_find_what_was_written(ranks: Ranks) -> Any:
    file = open("input.txt", "w")
    file.write("for the child")
    if ranks.rank == 0 and ranks.world_size > 1:
        time.sleep(0.2)
    file.close()
    read = "import sys; sys.stdout.write(open('input.txt').read())"
    output = subprocess.run([sys.executable, "-S", "-c", read], capture_output=True, text=True).stdout
    with open("second.txt", "w") as file:
        file.write("for the fork")
        if ranks.rank == 0 and ranks.world_size > 1:
            time.sleep(0.2)
    child = os.fork()
    if child == 0:
        # Workers are not in step: what they write is theirs.
        own = f"worker-{ranks.rank}.txt"
        open(own, "w").close()
        found = os.path.exists(own)
        os.remove(own)
        os._exit(0 if open("second.txt").read() == "for the fork" and found else 1)
    return [output, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


@scenario
def threads_are_left_alone(ranks: Ranks) -> Any:
    def work() -> None:
        Path(f"thread-{ranks.rank}.txt").write_text("own")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    own = Path(f"thread-{ranks.rank}.txt").read_text()
    for rank in range(ranks.world_size):
        if rank == ranks.rank:
            thread = threading.Thread(target=lambda: os.remove(f"thread-{ranks.rank}.txt"))
            thread.start()
            thread.join()
    ranks.total(1)
    return [own, os.listdir(".")]


def in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@scenario
def threads_write_once(ranks: Ranks) -> Any:
    """Rank 0's threads are late: the others find their own work done all the same."""

    def late() -> None:
        if ranks.rank == 0 and ranks.world_size > 1:
            time.sleep(0.1)

    def append() -> None:
        late()
        with open("log.txt", "a") as file:
            file.write(f"{file.name}\n")

    Path("log.txt").write_text("begun\n")
    in_thread(append)
    in_thread(append)
    answers: list[Any] = [Path("log.txt").read_text(), os.path.getsize("log.txt")]

    def save(epoch: int) -> str:
        late()
        os.makedirs("checkpoints", exist_ok=True)
        torch.save({"epoch": epoch}, f"checkpoints/{epoch}.tmp")
        os.replace(f"checkpoints/{epoch}.tmp", f"checkpoints/{epoch}.pt")
        if os.path.exists(f"checkpoints/{epoch - 2}.pt"):
            os.remove(f"checkpoints/{epoch - 2}.pt")
        return str(sorted(Path("checkpoints").iterdir()))

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answers += pool.map(save, range(4))
    answers += [sorted(os.listdir("checkpoints")), sorted(glob("**", recursive=True))]
    answers += [[entry.is_file() for entry in os.scandir("checkpoints")], os.path.isdir("checkpoints")]
    answers += [torch.load("checkpoints/3.pt"), failure_of(lambda: torch.load("checkpoints/1.pt"))]
    answers.append(failure_of(lambda: os.stat("checkpoints/0.pt")))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pool.submit(shutil.copy, "checkpoints/3.pt", "best.pt").result()
        pool.submit(shutil.rmtree, "checkpoints").result()
    answers += [torch.load("best.pt"), os.path.exists("checkpoints"), sorted(os.listdir())]
    os.rename("best.pt", "last.pt")
    return [*answers, os.path.exists("best.pt"), torch.load("last.pt")]


@scenario
def threads_fail_alike(ranks: Ranks) -> Any:
    failures: list[str] = []
    Path("taken").write_text("")
    for action in (
        lambda: open("missing/file", "w"),
        lambda: torch.save(1, "missing/file.pt"),
        lambda: os.remove("made"),
        lambda: os.mkdir("missing/folder"),
    ):
        in_thread(lambda action=action: failures.append(failure_of(action).split(":")[0]))

    def make_and_remove() -> None:
        Path("made").write_text("")
        os.remove("made")
        failures.append(failure_of(lambda: os.remove("made")))
        failures.append(failure_of(lambda: open("made")))

    in_thread(make_and_remove)
    return failures


@scenario
def threads_go_on_after_the_main_thread(ranks: Ranks) -> Any:
    """Files that both write, in turn, and what lies in folders that threads make."""

    def write(name: str, text: str, mode: str = "w") -> None:
        with open(name, mode) as file:
            file.write(text)

    def folders() -> None:
        os.makedirs("a/b")
        write("a/b/c.txt", "c")
        shutil.copytree("a", "copy")
        shutil.move("a/b/c.txt", "a/d.txt")
        descriptor = os.open("low.txt", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"low")
        os.close(descriptor)
        with sqlite3.connect("runs.db") as database:
            database.execute("CREATE TABLE runs (loss REAL)")
        database.close()
        handle, path = tempfile.mkstemp()
        os.close(handle)
        os.replace(path, "from-temporary.txt")

    def append(text: str) -> None:
        with ranks.last(f"turn-{text}", 0):
            write("turns.txt", text, "a")

    write("turns.txt", "1")
    in_thread(lambda: append("2"))
    write("turns.txt", "3", "a")
    in_thread(lambda: append("4"))
    turns = [Path("turns.txt").read_text()]
    write("turns.txt", "5")
    turns.append(Path("turns.txt").read_text())
    in_thread(folders)
    found = [str(path) for path in sorted(Path().rglob("*"))]
    os.remove("runs.db")
    return [turns, found, Path("a/d.txt").read_text(), Path("low.txt").read_text()]


def seen(name: str) -> list[Any]:
    """What all questions about a file or folder say."""
    folder, base = os.path.split(name)
    questions: list[Callable[[], Any]] = [
        lambda: [os.path.exists(name), os.path.lexists(name), os.access(name, os.R_OK)],
        lambda: [os.path.islink(name), os.path.isfile(name), os.path.isdir(name)],
        lambda: [Path(name).exists(), Path(name).is_symlink()],
        lambda: os.path.samefile(name, name),
        lambda: open(name).read(),
        lambda: os.close(os.open(name, os.O_RDONLY)),
        lambda: os.readlink(name),
        lambda: os.path.relpath(os.path.realpath(name, strict=True)),
        lambda: [stat.S_IFMT(os.stat(name).st_mode), stat.S_IFMT(os.lstat(name).st_mode)],
        lambda: sorted(os.listdir(name)),
        lambda: [
            glob(name),
            base in os.listdir(folder),
            base in [path.name for path in Path(folder).iterdir()],
        ],
        lambda: [
            [entry.is_file(), entry.is_dir(), entry.is_symlink(), entry.path]
            for entry in os.scandir(folder)
            if entry.name == base
        ],
        lambda: base in [name for _, folders, files in os.walk(folder) for name in folders + files],
    ]
    answers: list[Any] = []
    for question in questions:
        failure = failure_of(lambda question=question: answers.append(question()))
        if failure != "nothing was raised":
            answers.append(failure)
    return answers


@scenario
def threads_see_nothing_of_other_ranks_threads(ranks: Ranks) -> Any:
    """Whichever rank's thread comes first, all see the files as the main thread left them."""
    answers: list[Any] = []
    names = ("text", "link", "folder", "folder/kept", "new")

    def make(paths: list[str]) -> None:
        text, link, made, kept, _ = paths
        Path(text).write_text("text")
        os.symlink("text", link)
        os.mkdir(made)
        Path(kept).write_text("kept")

    def change(paths: list[str]) -> None:
        text, _, made, _, new = paths
        Path(text).write_text("anew")
        os.rename(made, new)
        Path(f"{new}/kept").write_text("changed")

    def in_turn(first: int, work: Callable[[list[str]], None], paths: list[str]) -> None:
        with ranks.first(f"leak-{first}-{work.__name__}", first):
            answers.append([seen(path) for path in paths])
            work(paths)
            answers.append([seen(path) for path in paths])

    for first in (0, 1):
        folder = f"folder-{first}"
        paths = [f"{folder}/{name}" for name in names]
        os.mkdir(folder)
        for work in (make, change):
            in_thread(functools.partial(in_turn, first, work, paths))
            answers.append(sorted(glob(f"{folder}/**", recursive=True)))
            answers.append([seen(path) for path in paths])
    return answers


@scenario
def threads_keep_an_index_and_the_best(ranks: Ranks) -> Any:
    """What a thread writes depends on what it finds."""

    def save(number: int, first: int) -> None:
        with ranks.first(f"index-{number}-{first}", first):
            index = json.load(open("index.json")) if os.path.exists("index.json") else []
            with open("index.json", "w") as file:
                json.dump([*index, number], file)
            if os.path.exists("best.pt"):
                os.remove("best.pt")
            torch.save(torch.ones(number), "best.pt")
            with open("log.txt", "a") as file:
                file.write(f"{number}\n")
            torch.save({"step": number}, f"{number}.tmp")
            os.replace(f"{number}.tmp", f"{number}.pt")
            if number > 1:
                os.remove(f"{number - 1}.pt")
            if Path("latest").is_symlink():
                Path("latest").unlink()
            os.symlink(f"{number}.pt", "latest")

    answers: list[Any] = []
    for number in (1, 2, 3):
        in_thread(lambda number=number: save(number, number % 2))
        answers += [json.load(open("index.json")), torch.load("best.pt").tolist(), torch.load("latest")]
        answers += [os.readlink("latest"), sorted(os.listdir("."))]
    return [*answers, Path("log.txt").read_text()]


@scenario
def threads_touch_files(ranks: Ranks) -> Any:
    """What threads say about files is read by their rank, whoever was first."""
    answers: list[Any] = []

    def told(name: str) -> list[Any]:
        return [int(os.stat(name).st_mtime), stat.S_IMODE(os.stat(name).st_mode)]

    def work(folder: str) -> None:
        done, kept, link, made = (f"{folder}/{name}" for name in ("done", "kept", "link", "made"))
        answers.append([os.path.exists(kept), os.path.exists(done)])
        Path(kept).write_text("kept")
        os.utime(kept, (50, 60))
        os.symlink("kept", link)
        answers.append(told(kept))
        Path(done).touch()
        os.utime(done, (100, 200))
        os.chmod(done, mode=0o640)
        os.utime(path=link, times=(100, 300))
        os.mkdir(made)
        os.chmod(made, 0o700)
        answers.append([told(done), told(kept), told(made)[1], os.path.islink(link)])
        shutil.copystat(src=done, dst=kept)
        os.utime(link, (1, 2), follow_symlinks=False)
        answers.append([told(kept), Path(kept).read_text(), int(os.lstat(link).st_mtime)])
        answers.append([failure_of(lambda: os.chmod("missing", 0o600)), failure_of(lambda: os.utime("none"))])

    for first in (0, 1):
        folder = f"touched-{first}"
        os.mkdir(folder)

        def in_turn(folder: str = folder, first: int = first) -> None:
            with ranks.first(f"touched-{first}", first):
                work(folder)

        in_thread(in_turn)
        answers.append([told(f"{folder}/kept"), told(f"{folder}/done"), os.listdir(f"{folder}/made")])
        os.utime(f"{folder}/link", (7, 8))
        answers.append(told(f"{folder}/kept"))
    return answers


class Kept:
    """An object in a cycle, which writes when Python's collector comes to it."""

    def __init__(self, name: str) -> None:
        self.name, self.itself = name, self

    def __del__(self) -> None:
        with open("closed.txt", "a") as file:
            file.write(f"{self.name}\n")
        os.makedirs(f"folders/{self.name}")


@scenario
def the_collector_writes_when_it_comes(ranks: Ranks) -> Any:
    """At another place on each rank, between what ranks do together."""
    gc.collect()
    gc.disable()
    try:
        for number in range(3):
            Kept(str(number))
            if ranks.rank == number % 2:
                gc.collect()
            ranks.total(1)
            Path(f"{number}.txt").write_text("in step")
        gc.collect()
    finally:
        gc.enable()
    return [sorted(Path("closed.txt").read_text().split()), sorted(glob("**", recursive=True))]


@scenario
def threads_make_links(ranks: Ranks) -> Any:
    """A link says what the script wrote, and leads there by whatever name."""
    Path("of-main").write_text("main")

    def work() -> list[Any]:
        os.makedirs("runs/1")
        Path("runs/1/weights").write_text("weights")
        os.symlink("1", "runs/latest")
        Path("runs/best").symlink_to("latest/weights")
        os.symlink("../of-main", "runs/above")
        os.symlink(os.path.abspath("runs/1"), "absolute")
        os.symlink("nowhere", "dangling")
        os.link("of-main", "second")
        failures = [failure_of(lambda: os.symlink("a", "dangling")), failure_of(lambda: os.link("no", "b"))]
        links = ("runs/latest", "runs/best", "runs/above", "dangling")
        texts = [os.readlink(path) for path in links]
        with open("runs/latest/log", "a") as file:  # through the link
            file.write("log")
        shutil.copy("runs/best", "copy")
        shutil.copy("runs/best", "runs/latest/of-copy")
        return [failures, texts, Path("runs/1/log").read_text(), Path("copy").read_text()]

    answers: list[Any] = []

    def in_turn() -> None:
        with ranks.first("links", 0):
            answers.append(work())

    in_thread(in_turn)
    files = ("runs/best", "runs/latest/weights", "absolute/weights", "runs/above", "second", "absolute/log")
    answers += [Path(path).read_text() for path in files]
    os.remove("absolute")
    Path("runs/latest/weights").write_text("by all")
    answers += [Path("runs/best").read_text(), sorted(os.listdir("runs/latest")), os.path.lexists("dangling")]
    return answers


@scenario
def folders_of_threads_and_of_the_main_thread(ranks: Ranks) -> Any:
    """One makes again what the other removed, or writes where the other made; rank 0's thread comes last."""
    os.makedirs("a/inner")
    Path("a/inner/old").write_text("old")
    answers: list[Any] = []

    def work(turn: int) -> None:
        with ranks.last(f"folders-{turn}", 0):
            answers.append(sorted(glob("**", recursive=True)))
            shutil.rmtree("a")
            answers.append([os.path.exists("a"), os.path.exists("a/inner/old")])
            os.mkdir("a")
            answers.append(
                [os.listdir("a"), failure_of(lambda: os.mkdir("a")), failure_of(lambda: os.rmdir("b"))]
            )
            answers.append(failure_of(lambda: os.makedirs("a/inner", exist_ok=True)))
            os.rmdir("a/inner")
            os.makedirs("b", exist_ok=True)
            answers.append(shutil.copy("c", "b"))
            os.rmdir("a")

    for turn in (0, 1):
        Path("c").write_text("c")
        in_thread(lambda turn=turn: work(turn))
        answers.append(sorted(glob("**", recursive=True)))
        os.makedirs("a/inner")
        os.makedirs("b", exist_ok=True)
        Path("a/inner/new").write_text("new")
        Path("b/c").write_text("of main")
        answers += [sorted(glob("**", recursive=True)), os.listdir("a/inner"), Path("b/c").read_text()]
    return answers


@scenario
def the_main_thread_sees_no_more_than_its_own_threads_made(ranks: Ranks) -> Any:
    """Rank 0 may be ahead: its thread has written what this rank's is yet to be asked for."""
    jobs: queue.Queue[str | None] = queue.Queue()

    def work() -> None:
        while (name := jobs.get()) is not None:
            Path(name).write_text(name)
            jobs.task_done()

    thread = threading.Thread(target=work)
    thread.start()
    answers = []
    for name in ("one", "two"):
        with ranks.first(name, 0):
            answers.append([os.path.exists(name), os.listdir(".")])
            jobs.put(name)
            jobs.join()
        answers.append([os.path.exists(name), Path(name).read_text()])
    jobs.put(None)
    thread.join()
    return answers


@scenario
def a_queue_writes_the_log(ranks: Ranks) -> Any:
    lines: Any = queue.Queue()
    handler = logging.FileHandler("log.txt", delay=True)
    listener = logging.handlers.QueueListener(lines, handler)
    listener.start()
    lines.put(logging.makeLogRecord({"msg": "x"}))
    listener.stop()
    handler.close()
    return Path("log.txt").read_text()


@scenario
def file_objects_look_as_ever(ranks: Ranks) -> Any:
    looks = []
    for mode in ("w", "wb", "a", "ab", "x", "w+", "r+b"):
        if mode == "x":
            os.remove("file")
        file = open("file", mode)
        looks.append([mode, type(file).__name__, file.name, file.mode])
        looks.append([file.readable(), file.writable(), file.seekable(), file.closed, file.isatty()])
        looks.append([getattr(file, "encoding", None), getattr(file, "newlines", None), file.tell()])
        file.write("text" if "b" not in mode else b"bytes")  # pyright: ignore[reportArgumentType]
        looks.append([file.tell(), file.fileno() > 2])
        if "+" not in mode:
            looks.append(failure_of(file.read))
        file.close()
        looks.append([file.closed, failure_of(lambda file=file: file.write("x"))])
    return looks


@scenario
def own_modules_by_names_of_libraries(ranks: Ranks) -> Any:
    """A project has files called so, or stand-ins for what is not installed."""
    stub = "class Run:\n    pass\ndef init(**settings):\n    return settings\n"
    modules = {"wandb": stub, "faiss": "x = 1", "polars": "class DataFrame:\n    pass", "h5py": "File = 1"}
    os.mkdir("stubs")
    for name, text in modules.items():
        Path("stubs", f"{name}.py").write_text(text)
    sys.path.insert(0, "stubs")
    before = {name: sys.modules.pop(name, None) for name in modules}
    try:
        found: list[Any] = [
            sorted(set(dir(importlib.import_module(name))) - set(dir(sys))) for name in modules
        ]
        found.append(importlib.import_module("wandb").init(project="mine"))
    finally:
        sys.path.remove("stubs")
        shutil.rmtree("stubs/__pycache__", ignore_errors=True)
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
    Path("written.txt").write_text("once")
    return found


@scenario
def locks(ranks: Ranks) -> Any:
    import fcntl

    descriptor = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    Path("guarded").write_text("once")
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    links = os.fstat(descriptor).st_nlink
    os.close(descriptor)
    return [Path("guarded").read_text(), links]


@scenario
def workers_start_by_fork(ranks: Ranks) -> Any:
    Path("samples.txt").write_text("1 2 3")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.map(os.path.getsize, ["samples.txt"])


@scenario
def programs_run_once(ranks: Ranks) -> Any:
    """What a program writes is written once; what it prints, and how it fails, is known everywhere."""
    code = "import sys; open('log.txt', 'a').write('line\\n'); print('done'); sys.exit(int(sys.argv[1]))"
    command = [sys.executable, "-S", "-c", code]
    answers: list[Any] = [subprocess.run([*command, "3"], capture_output=True, text=True).stdout]
    answers.append(subprocess.call([*command, "4"], stdout=subprocess.DEVNULL))
    answers.append(subprocess.check_output([*command, "0"], text=True))
    answers.append(
        failure_of(lambda: subprocess.check_call([*command, "5"], stdout=subprocess.DEVNULL)).count(
            "status 5"
        )
    )
    answers.append(failure_of(lambda: subprocess.run(["no-such-program-here"])))
    answers.append(os.system("echo again >> log.txt"))
    return [*answers, Path("log.txt").read_text()]


def write_slowly(job: tuple[int, str]) -> int:
    rank, path = job
    time.sleep(0.1 * rank)
    with open(path, "w") as file:
        file.write("part")
        file.flush()
        time.sleep(0.05 * rank)
        file.write("whole")
    return len(path)


@scenario
def files_of_a_pool_are_whole(ranks: Ranks) -> Any:
    """Processes of every rank write the same file: nobody reads it while another rank's are at it."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        lengths = pool.map(write_slowly, [(ranks.rank, "pool.txt")])
    found = Path("pool.txt").read_text()
    process = multiprocessing.get_context("fork").Process(
        target=write_slowly, args=((ranks.rank, "own.txt"),)
    )
    process.start()
    while process.is_alive():  # not equally often on all ranks
        process.join(0.02)
        process.join(timeout=0.02)
    process.join()
    return [lengths, found, Path("own.txt").read_text()]


@scenario
def folder_of_a_unique_name_is_made_once(ranks: Ranks) -> Any:
    folder = tempfile.mkdtemp(prefix="run_", dir=".")
    Path(folder, "log.txt").write_text("log")
    names = os.listdir(".")
    os.rename(folder, "run")
    return [len(names), names[0].startswith("run_"), os.listdir("run")]


def write_and_list(name: str) -> list[str]:
    with open(f"{name}.txt", "a") as file:
        file.write(f"{name}\n")
    return [Path(f"{name}.txt").read_text()]


@scenario
def a_pool_writes_once(ranks: Ranks) -> Any:
    """Lines that are added by processes of each rank are there once, also for the script and for threads."""
    names = ["one", "two", "three"]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        lines = pool.map(write_and_list, names)
    in_thread(lambda: lines.append(write_and_list("one")))
    os.remove("two.txt")
    return [lines, sorted(os.listdir(".")), Path("one.txt").read_text()]


@scenario
def threads_fill_a_cache(ranks: Ranks) -> Any:
    """Ranks' threads come to each file at about the same time, and none reads what another's is writing."""
    made: list[int] = []

    def sample(number: int) -> float:
        path = f"cache/{number}.npy"
        if not os.path.exists(path):
            os.makedirs("cache", exist_ok=True)
            np.save(path, np.full(100_000, float(number)))
            made.append(number)
        return float(np.load(path).sum())

    sums = []
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            sums.append(sum(pool.map(sample, range(40))))
    return [sums, sorted(made), sorted(os.listdir("cache"))]
