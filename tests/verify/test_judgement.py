"""Nothing is called broken where plain python does not repeat itself, or rounding takes it as far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy
import pytest

from ronde.errors import UsageError
from ronde.verify.clauses.verdict import Status
from ronde.verify.proof import Proof, judge, verify
from ronde.verify.record import Twin, Writer, read_record
from ronde.verify.report import to_text
from ronde.verify.runs import FinishedRun, Job
from ronde.verify.twins import TWINS
from support.warm import WarmHost

JOB = Job(script="train.py")
PLAIN = [("a", 1.0, 1.0), ("b", 2.0, 1.0), ("a", 3.0, 1.0), ("b", 4.0, 1.0)]


def run_of(
    place: Path,
    steps: Sequence[tuple[str, float, float]],
    *,
    code: int = 0,
    out: str = "",
    starts: Mapping[str, str] | None = None,
) -> FinishedRun:
    """A run of steps: the parameter that each updates, its value then, and what the script reads then."""
    place.mkdir()
    writer = Writer(str(place), 0)
    for what, where in (starts or {}).items():
        writer.event("start", what=what, where=where)
    for step, (name, value, read) in enumerate(steps, 1):
        parameters = {name: writer.store(numpy.array([value, 1.0]))}
        writer.event("gradients", step=step, norms={name: 1.0})
        writer.event("step", step=step, optimizer="SGD 1", parameters=parameters, random={"torch": "x"})
        writer.event("read", call="item", where=f"train.py:{7 if read > 0 else 9}", value=read)
    return FinishedRun(records=(read_record(place, 0),), files={}, stdout=out, stderr="", exit_code=code)


def other(step: int, name: str = "", value: float = 0.0, read: float = 1.0) -> list[tuple[str, float, float]]:
    """The plain run's steps with another one."""
    steps = list(PLAIN)
    steps[step - 1] = (name or steps[step - 1][0], value or steps[step - 1][1], read)
    return steps


class Judged:
    """Judges a run on ranks; twins are the plain run where they are not given."""

    def __init__(self, folder: Path, plain: FinishedRun, **twins: FinishedRun) -> None:
        self.folder, self.plain, self.twins = folder, plain, twins
        self.started: list[Twin] = []

    def start(self, twin: Twin) -> FinishedRun:
        self.started.append(twin)
        return self.twins.get(twin, self.plain)

    def __call__(self, run: FinishedRun) -> Proof:
        return judge(JOB, self.plain, run, ranks=1, start=self.start)


def test_what_no_run_of_plain_python_does_is_broken(tmp_path: Path) -> None:
    judged = Judged(tmp_path, run_of(tmp_path / "plain", PLAIN))
    proof = judged(run_of(tmp_path / "ranks", other(2, value=2.1)))
    assert not proof.holds
    assert judged.started == ["again", *TWINS, "turned"]
    assert "noise floor: 0.0e+00, by 3 twins" in to_text(proof)


@pytest.mark.parametrize("code", [0, 1], ids=["others", "failed"])
@pytest.mark.parametrize(
    ("again", "told"),
    [
        (other(3, value=3.5), "differ in step 3 (SGD 1), parameter a: "),
        (other(2, read=1.5), "differ in train.py:7, item (value 2): 1.5, in the first run 1.0; "),
        (other(2, name="a"), "differ in step 2 (SGD 1): other parameters than in the first run: a, b; "),
        (other(4, read=-1.0), "differ in value 4: item at train.py:9, in the first run item at train.py:7; "),
        (PLAIN[:3], "differ in 3 values read, in the first run 4; the first that only one has: "),
    ],
)
def test_plain_python_that_does_not_repeat_itself_is_no_reference(
    tmp_path: Path, again: list[tuple[str, float, float]], told: str, code: int
) -> None:
    """Whatever the ranks did; the repeat alone is run, and says where it parts first."""
    judged = Judged(tmp_path, run_of(tmp_path / "plain", PLAIN), again=run_of(tmp_path / "again", again))
    with pytest.raises(UsageError, match="plain python does not repeat itself") as refused:
        judged(run_of(tmp_path / "ranks", other(1, value=9.0), code=code))
    assert told in str(refused.value)
    assert "it starts no process and no thread" in str(refused.value)
    assert judged.started == ["again"]


def test_what_may_have_made_it_so_is_named(tmp_path: Path) -> None:
    starts = {"process": "train.py:22", "thread": "data.py:5"}
    plain = run_of(tmp_path / "plain", PLAIN, starts=starts)
    judged = Judged(tmp_path, plain, again=run_of(tmp_path / "again", other(3, value=3.5)))
    told = "the processes started at train.py:22 and the threads started at data.py:5 run at their own pace"
    with pytest.raises(UsageError, match=told):
        judged(run_of(tmp_path / "ranks", other(1, value=9.0)))


def test_what_plain_python_prints_differently_is_left_out(tmp_path: Path) -> None:
    """Which is no reason to compare nothing else."""
    plain = run_of(tmp_path / "plain", PLAIN, out="in /tmp/tmpab1\nloss 0.5\n")
    again = dataclasses.replace(plain, stdout="in /tmp/tmpcd2\nloss 0.5\n")
    judged = Judged(tmp_path, plain, again=again)
    proof = judged(dataclasses.replace(plain, stdout="in /tmp/tmpef3\nloss 0.5\n"))
    assert proof.holds
    assert "1 lines left out that differ between runs of plain python" in to_text(proof)
    assert "twin" not in to_text(proof)
    assert judged.started == ["again"]
    assert not judged(dataclasses.replace(plain, stdout="in /tmp/tmpef3\nloss 0.7\n")).holds


def test_twins_that_lie_further_apart_make_it_rounding(tmp_path: Path) -> None:
    """However far that is, and however large the difference."""
    plain = run_of(tmp_path / "plain", PLAIN)
    judged = Judged(tmp_path, plain, halves=run_of(tmp_path / "halves", other(4, value=5.0)))
    proof = judged(run_of(tmp_path / "ranks", other(4, value=5.5)))
    assert proof.holds, to_text(proof)
    told = "twins lie more than 1e-06 apart in 1 of 2 parameters, first in b after step 4; smaller mistakes"
    assert told in to_text(proof)
    assert judged.started == ["again", "halves"]
    assert not judged(run_of(tmp_path / "early", other(2, value=2.5))).holds


def test_where_a_twin_takes_another_course_the_comparison_ends(tmp_path: Path) -> None:
    """At a branch that rounding decides; what comes before it is compared."""
    twin = other(3, read=-1.0)
    judged = Judged(tmp_path, run_of(tmp_path / "plain", PLAIN), up=run_of(tmp_path / "up", twin))
    proof = judged(run_of(tmp_path / "ranks", other(4, read=-1.0)))
    assert proof.holds, to_text(proof)
    assert {each.clause: each.compared for each in proof.verdicts}[
        "L4"
    ] == "2 call sites, 2 steps, exit codes"
    assert "a twin does something else from step 3 on (value 3: item at train.py:9, in the" in to_text(proof)
    for early in (other(2, read=-1.0), other(2, value=2.1)):
        found = judged(run_of(tmp_path / f"early-{early[1][1]}", early))
        assert any(each.status is Status.broken for each in found.verdicts)


def test_a_twin_that_steps_other_parameters_is_a_verdict_too(tmp_path: Path) -> None:
    """An order by addresses in memory, which the repeat happened to repeat."""
    twin = other(1, name="b")
    judged = Judged(tmp_path, run_of(tmp_path / "plain", PLAIN), halves=run_of(tmp_path / "halves", twin))
    with pytest.raises(UsageError, match="plain python does not repeat itself"):
        judged(run_of(tmp_path / "ranks", other(1, name="b")))


MAKERS = """
import queue, threading
import torch
batches = queue.Queue()
first_is_there = threading.Event()


def make(maker):
    if maker:
        first_is_there.wait(0.2)  # less than the first is held back by
    batches.put(torch.full((1, 1), float(maker)))
    first_is_there.set()


for maker in range(2):
    threading.Thread(target=make, args=(maker,)).start()
among_ranks = any(name.startswith("RONDE") for name in __import__("os").environ)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2 if among_ranks else 0.1)
for step in range(2):
    model(batches.get()).mean().backward()
    optimizer.step()
"""


def test_a_proof_says_that_plain_python_does_not_repeat_itself(host: WarmHost, tmp_path: Path) -> None:
    """Whose threads come in one order: the repeat holds the first one back."""
    (tmp_path / "train.py").write_text(MAKERS)
    job = Job(script="train.py", directory=tmp_path)
    told = "the threads started at train.py:16 run at their own pace"
    with pytest.raises(UsageError, match=told):
        verify(job, ranks=2, starter=host.start)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("script", "ranks", "steps", "unrepeatable"),
    [
        ("prints_its_path", 2, 20, ""),
        ("bias_before_norm", 2, 20, ""),
        ("circles_its_optimum", 3, 200, ""),
        ("batches_of_processes", 2, 30, "the processes started at batches_of_processes.py:22"),
        ("optimizers_of_a_set", 2, 20, "other parameters than in the first run"),
    ],
)
def test_public_programs_reduced(
    script: str, ranks: int, steps: int, unrepeatable: str, host: WarmHost
) -> None:
    """Each was once said to break the law. An order by chance may be the same twice."""
    job = Job(script=f"{script}.py", steps=steps, directory=Path(__file__).parent / "cases")
    told = ""
    try:
        proof = verify(job, ranks=ranks, starter=host.start)
    except UsageError as refused:
        told = str(refused)
    else:
        assert proof.holds, to_text(proof)
    if told:
        assert unrepeatable, told
        assert "plain python does not repeat itself" in told
        assert unrepeatable in told
