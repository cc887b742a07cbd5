"""The recorder sees what a script does, changes none of it, and keeps the user's files as they are."""

from __future__ import annotations

import copy
import dataclasses
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import ronde
from ronde.verify import scratch as scratches
from ronde.verify.call_sites import Sites
from ronde.verify.clauses.verdict import Status
from ronde.verify.fast_clock import PACE
from ronde.verify.halves import InHalves
from ronde.verify.proof import judge
from ronde.verify.record import Twin, Writer, read_record
from ronde.verify.report import to_text
from ronde.verify.runs import FinishedRun, Job, run_on_ranks, run_plain
from ronde.verify.twins import TWINS, noise_of
from support.warm import WarmHost

SCRIPT = """
import random
import shutil
import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

class Reading(torch.nn.Linear):
    def forward(self, x):
        self.seen = x.sum().item()  # of this rank's rows, so not the script's
        return super().forward(x)

scale = float(open("data/scale.txt").read())
model = Reading(3, 1)
other = torch.nn.Linear(1, 1)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other)]
loader = DataLoader(TensorDataset(torch.randn(10, 3)), batch_size=4, shuffle=True)
print(len(loader), "batches")
for epoch in range(3):
    for x, in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = other(model(x * scale)).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    if loss > 0:
        print(f"{loss:.4f}", loss.item(), random.random(), numpy.random.rand())
with open("log.txt", "a") as log:
    log.write("more\\n")
with open("data/new.txt", "w") as new:
    new.write(f"{loss.tolist()}\\n")
torch.save(model.state_dict(), "data/model.pt")
shutil.rmtree("old")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return made(tmp_path / "project")


@pytest.fixture(scope="module")
def plain(host: WarmHost, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run of `SCRIPT` as it is; its project is as it was before."""
    folder = tmp_path_factory.mktemp("plain")
    project = made(folder / "project")
    before = contents(project)
    run = record(host, project, folder / "run")
    assert contents(project) == before
    return run


def made(place: Path) -> Path:
    for name in ("data", "old"):
        (place / name).mkdir(parents=True)
    (place / "data" / "scale.txt").write_text("2.0")
    (place / "old" / "kept.txt").write_text("kept")
    (place / "log.txt").write_text("before\n")
    (place / "train.py").write_text(SCRIPT)
    return place


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def record(host: WarmHost, project: Path, place: Path, steps: int = 1000, **more: Any) -> FinishedRun:
    run = run_plain(
        Job(script="train.py", steps=steps, directory=project),
        place,
        starter=host.start,
        **more,
    )
    assert run.exit_code == 0, run.stderr
    return run


def test_what_a_script_does_is_recorded(plain: FinishedRun) -> None:
    (record_of,) = plain.records
    assert len(record_of.batches) == len(record_of.ids) == 9
    assert [step.optimizer for step in record_of.steps[:3]] == ["SGD 1", "SGD 2", "SGD 1"]
    assert len(record_of.steps) == 18
    assert list(record_of.steps[0].parameters) == ["weight", "bias"]
    reads = [(read.call, read.where) for read in record_of.reads]
    assert reads[0] == ("len(loader)", "train.py:18")
    assert [call for call, _ in reads[1:4]] == ["__bool__", "__format__", "item"]
    assert reads[-1][0] == "tolist"
    assert all(norm is not None for each in record_of.gradients for norm in each.norms.values())
    assert sorted(plain.files) == ["data/model.pt", "data/new.txt", "log.txt"]
    assert record_of.opened == {"log.txt": 1, "data/new.txt": 1, "data/model.pt": 1}
    assert not record_of.stopped
    assert plain.files["log.txt"].read_text() == "before\nmore\n"


def test_a_run_ends_after_its_steps(host: WarmHost, project: Path, tmp_path: Path) -> None:
    run = record(host, project, tmp_path / "run", steps=5)
    assert len(run.records[0].steps) == 5
    assert run.records[0].stopped
    assert not run.files


STARTING = """
import subprocess, sys, threading
subprocess.run([sys.executable, "-c", "0"])
for _ in range(2):
    threading.Thread(target=print).start()
"""


def test_where_a_script_starts_processes_and_threads_is_recorded(
    host: WarmHost, project: Path, tmp_path: Path
) -> None:
    """Those of its loader are not among them."""
    script = project / "train.py"
    script.write_text(STARTING + SCRIPT.replace("batch_size=4", "batch_size=4, num_workers=1"))
    run = record(host, project, tmp_path / "run", steps=5)
    assert run.records[0].starts == {"process": ("train.py:3",), "thread": ("train.py:5",)}


WAITING = """
import queue, threading
thread = threading.Thread(target=queue.Queue().get)
thread.start()
"""


def test_a_run_ends_after_its_steps_though_a_thread_waits_for_more(
    host: WarmHost, project: Path, tmp_path: Path
) -> None:
    script = project / "train.py"
    script.write_text(WAITING + script.read_text())
    run = record(host, project, tmp_path / "run", steps=5)
    assert run.records[0].stopped


def test_plain_python_equals_itself(
    host: WarmHost, plain: FinishedRun, project: Path, tmp_path: Path
) -> None:
    proof = judge(Job(script="train.py"), plain, record(host, project, tmp_path / "again"), ranks=1)
    assert [(each.status, each.divergence) for each in proof.verdicts] == [(Status.holds, "")] * 6


@pytest.mark.parametrize(
    ("old", "new", "clause", "divergence"),
    [
        ("batch_size=4", "batch_size=5", "L1", "rank 0, index batch 1: "),
        ("lr=0.1", "lr=0.10001", "L2", "rank 0, step 1 (SGD 1), parameter "),
        (
            "loss.item(), ",
            "float(loss), ",
            "L4",
            "__float__ at train.py:28, in plain python item at train.py:28",
        ),
        ("random.random()", "0.5", "L6", "rank 0, after step 7: random's generator"),
        ("'log.txt'", "'log2.txt'", "L5", "file log.txt is not written on ranks"),
    ],
)
def test_a_changed_script_is_caught(
    old: str,
    new: str,
    clause: str,
    divergence: str,
    host: WarmHost,
    plain: FinishedRun,
    project: Path,
    tmp_path: Path,
) -> None:
    text = SCRIPT.replace('"log.txt"', "'log.txt'")
    assert old in text
    (project / "train.py").write_text(text.replace(old, new))
    other = record(host, project, tmp_path / "b")
    proof = judge(Job(script="train.py"), plain, other, ranks=1)
    found = {each.clause: each for each in proof.verdicts}[clause]
    assert found.status is Status.broken
    assert divergence in found.divergence


def test_twins_measure_the_noise_floor(host: WarmHost, project: Path, tmp_path: Path) -> None:
    """Only where a clause seems broken; what they show of rounding is then allowed."""
    job = Job(script="train.py", double=False, directory=project)
    plain = run_plain(job, tmp_path / "plain", starter=host.start)
    assert judge(job, plain, plain, ranks=1, start=lambda _: pytest.fail("not needed")).floor is None
    (project / "train.py").write_text(SCRIPT.replace("lr=0.1", "lr=0.1 + 1e-4"))
    other = run_plain(job, tmp_path / "other", starter=host.start)
    (project / "train.py").write_text(SCRIPT)
    started: dict[str, FinishedRun] = {}

    def start(twin: Twin) -> FinishedRun:
        started[twin] = run_plain(job, tmp_path / twin, twin=twin, like=plain, starter=host.start)
        return started[twin]

    proof = judge(job, plain, other, ranks=1, start=start)
    assert not proof.holds
    assert list(started) == ["again", *TWINS, "turned"]
    # A model that reads its rows and returns one row each can be computed in parts.
    assert started["halves"].records[0].in_parts[0] > 0
    apart = {twin: noise_of(plain, [run]).floor for twin, run in started.items()}
    assert apart["again"] == 0 < apart["up"] < 1e-5, apart
    assert proof.floor == max(apart[twin] for twin in TWINS)
    assert f"noise floor: {proof.floor:.1e}, by 3 twins" in to_text(proof)


def test_a_script_in_double_precision_is_judged_so_unasked(
    host: WarmHost, project: Path, tmp_path: Path
) -> None:
    """Its parameters are in double precision by its own choice, and it is compared as it is."""
    (project / "train.py").write_text("import torch; torch.set_default_dtype(torch.float64)\n" + SCRIPT)
    job = Job(script="train.py", double=False, directory=project)
    plain = run_plain(job, tmp_path / "plain", starter=host.start)
    changed = (project / "train.py").read_text().replace("lr=0.1", "lr=0.1 + 1e-7")
    (project / "train.py").write_text(changed)
    other = run_plain(job, tmp_path / "other", starter=host.start)
    proof = judge(job, plain, other, ranks=1)
    assert not proof.holds
    assert to_text(proof).splitlines()[0].endswith("plan ddp, float64, 18 optimizer steps")
    assert "(allowed 1.0e-09 of the vector of all parameters)" in to_text(proof)


def test_halves_leave_running_statistics_as_one_pass_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A script evaluates with them, and what it prints then is to be the same."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(3).double()
    plain, rows = copy.deepcopy(norm), torch.randn(8, 3).double()
    plain(rows)
    monkeypatch.setattr(torch.nn.Module, "__call__", torch.nn.Module.__call__)
    InHalves(Writer(str(tmp_path), 0)).install()
    norm(rows)
    for buffer, expected in zip(norm.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(buffer, expected, rtol=1e-12)


class Drawing(torch.nn.Module):
    """Drops units, by row and by channel, and adds noise."""

    def __init__(self, *, norm: bool = False, again: bool = False, other: bool = False) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8).double(), torch.nn.Linear(8, 3).double()
        self.norm = torch.nn.BatchNorm1d(5).double() if norm else torch.nn.Identity()
        self.again, self.other = again, other

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.dropout(self.norm(self.first(x)), 0.3, train=True)
        return torch.dropout(x.flatten(0, 1), 0.2, train=True).view_as(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.hidden, x, use_reentrant=False) if self.again else self.hidden(x)
        x = self.last(x + 0.1 * torch.randn_like(x))
        return x * (1 + random.random()) if self.other else x


@pytest.mark.parametrize(
    ("model", "halved"), [({}, 2), ({"norm": True}, 2), ({"again": True}, 0), ({"other": True}, 0)]
)
def test_halves_are_given_the_draws_of_their_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: dict[str, bool], halved: int
) -> None:
    """Not where backward draws once more, nor what another generator has drawn."""
    drawing, rows = Drawing(**model), torch.randn(8, 5, 6).double()

    def outcome() -> list[torch.Tensor]:
        torch.manual_seed(1)
        random.seed(1)
        losses = [drawing(rows).square().mean() for _ in range(3)]
        gradients = torch.autograd.grad(sum(losses), list(drawing.parameters()))
        return [*losses, *gradients, torch.get_rng_state().double(), torch.tensor(random.random())]

    copied = copy.deepcopy(drawing.state_dict())
    plain = outcome()
    drawing.load_state_dict(copied)
    monkeypatch.setattr(torch.nn.Module, "__call__", torch.nn.Module.__call__)
    InHalves(Writer(str(tmp_path), 0)).install()
    for found, expected in zip(outcome(), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert read_record(tmp_path, 0).in_parts == (halved, 3 - halved)


def test_a_scratch_directory_shows_what_lies_around_it(tmp_path: Path) -> None:
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    (tmp_path / "work" / "shared.txt").write_text("shared")
    made = scratches.build(tmp_path / "tree", project)
    assert (made.directory / ".." / "shared.txt").read_text() == "shared"
    assert scratches.written(made) == {}
    (made.directory / "new.txt").write_text("new")
    assert list(scratches.written(made)) == ["new.txt"]
    assert os.listdir(project) == []


PLACED = """
import argparse, json, os, sys
import torch
place = os.path.dirname(os.path.abspath(__file__))
print("save to", place, "from", os.getcwd(), "by", sys.argv[0], len(place), hash(place))
json.dump({"out": f"{place}/out", "cut": f"{place:.20}"}, open("config.json", "w"))
torch.save({"args": argparse.Namespace(out=f"{place}/out"), "loss": 0.5}, f"{place}/model.pt")
"""


def test_every_run_stands_in_the_same_place(host: WarmHost, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(PLACED)
    job = Job(script="train.py", directory=tmp_path / "project")
    plain = run_plain(job, tmp_path / "runs" / "plain", starter=host.start)
    ranks = run_on_ranks(job, tmp_path / "runs" / "ranks", ranks=2, like=plain, starter=host.start)
    assert plain.exit_code == 0, plain.stderr
    assert plain.stdout == ranks.stdout
    assert judge(job, plain, ranks, ranks=2).holds
    assert list(ranks.files) == ["config.json", "model.pt"]


CLOCKED = """
import random, time, datetime
import torch
torch.manual_seed(int(time.time() * 1e6) % 2**40)
random.seed(time.time_ns())
started = datetime.datetime.now()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 2)).mean().backward()
optimizer.step()
open(started.strftime("%H%M%S%f") + ".txt", "w").write(f"{random.random()} {time.perf_counter()}")
"""


def test_a_run_that_is_like_another_has_its_clock_and_seeds(host: WarmHost, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(CLOCKED)
    job = Job(script="train.py", directory=tmp_path / "project", steps=3)
    first = run_plain(job, tmp_path / "first", starter=host.start)
    second = run_plain(job, tmp_path / "second", like=first, starter=host.start)
    assert judge(job, first, second, ranks=1).holds
    assert list(first.files) == list(second.files)
    other = run_plain(job, tmp_path / "other", starter=host.start)
    assert not judge(job, first, other, ranks=1).holds


HURRIED = """
import logging, time, torch

def run_time():  # as a library tells it, by its own clock
    return logging.LogRecord("name", 20, "path", 1, "", (), None).created

start, own = run_time(), time.perf_counter()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).mean().backward()
optimizer.step()
time.sleep(0.1)
print(f"{run_time() - start:.6f}", repr(time.perf_counter() - own))
"""


def test_the_clock_of_libraries_goes_faster_in_a_twin(host: WarmHost, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(HURRIED)
    job = Job(script="train.py", directory=tmp_path / "project")
    plain = run_plain(job, tmp_path / "plain", starter=host.start)
    second = run_plain(job, tmp_path / "second", twin="halves", like=plain, starter=host.start)
    (_, own), (library, second_own) = plain.stdout.split(), second.stdout.split()
    assert float(library) >= 0.1 * PACE  # whatever the machine does meanwhile
    assert second_own == own  # the script's own readings are replayed
    other = dataclasses.replace(plain, stdout=plain.stdout.replace("0.", "1.", 1))
    proof = judge(job, plain, other, ranks=1, start=lambda _: second)
    assert proof.holds
    assert "1 numbers left out" in str(proof.verdicts)


def test_a_script_beside_the_directory_of_the_run_is_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy lies among temporary files, as does code that libraries write under ever new names."""
    tree = tmp_path / "copy"
    sites = Sites(str(tree / "here"), str(tree))
    main = ModuleType("__main__")
    main.__file__ = str(tree / "here" / "train.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert not sites.is_temporary(str(tree / "there" / "train.py"))
    assert sites.is_temporary(str(tmp_path / "elsewhere" / "made.py"))
    main.__file__ = str(tmp_path / "elsewhere" / "train.py")
    assert not sites.is_temporary(str(tmp_path / "elsewhere" / "model.py"))


def test_of_a_script_among_temporary_files_what_lies_beside_it_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "train.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    sites = Sites(str(tmp_path / "tree"), str(tmp_path / "tree"))
    assert not sites.is_temporary(str(tmp_path / "model.py"))
    assert sites.is_temporary(str(tmp_path / "compiled" / "made.py"))


@pytest.mark.parametrize(
    "name",
    [
        "optim/trust.py",
        "parallel/compute/fused_step.py",
        "parallel/servers/frozen_variance.py",
        "shards/sharded_update.py",
    ],
)
def test_what_a_closure_reads_is_read_by_the_script(tmp_path: Path, name: str) -> None:
    """Lightning hands its whole training step to the optimizer; steps of ronde's own call it."""
    source = Path(ronde.__file__).parent / name
    assert " = closure()" in source.read_text()
    step = _function("def run(closure): return closure()", source)
    sites = Sites(str(tmp_path), str(tmp_path))
    script = _function("def run(step, read): return step(lambda: read())", tmp_path / "train.py")
    assert script(step, lambda: sites.of(sys._getframe(1))) == "train.py:1"


def _function(code: str, file: Path) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(compile(code, str(file), "exec"), names)
    return names["run"]
