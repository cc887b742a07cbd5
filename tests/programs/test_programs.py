"""The list of programs of public code is in order, and their runner tells what is so."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from programs import listing, page
from programs.listing import Program
from programs.outcome import Outcome, printed_apart
from programs.run import row, run
from programs.standins import known, provide
from support.warm import WarmHost

SCRIPT = """\
import torch
from torchvision import datasets, transforms
from torch.utils.data import DataLoader
import gym
env = gym.make("CartPole-v1")
print(len(env.reset()), len(env.step(1)), len(open("input.txt").read()) > 1000)
data = datasets.MNIST("data", transform=transforms.ToTensor())
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, 16, shuffle=True):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}")
"""


def _program(sha256: str, **fields: object) -> Program:
    program = Program(
        repository="owner/name",
        path="folder/train.py",
        commit="0" * 40,
        sha256=sha256,
        field="images",
        arguments="",
        steps=5,
        standins=("digits:96", "gym", "text:input.txt"),
        beside=(),
    )
    return dataclasses.replace(program, **fields)


def test_the_list_is_in_order() -> None:
    programs = listing.read()
    names = [(program.repository.lower(), program.path) for program in programs]
    assert names == sorted(set(names))
    assert len(names) >= 120
    for program in programs:
        assert re.fullmatch("[0-9a-f]{40}", program.commit), program
        assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in program.files().values()), program
        assert program.field, program
        assert program.steps > 0, program
        assert all(known(standin) for standin in program.standins), program
        assert program.words is not None


def test_the_page_has_a_row_for_each_program_of_the_list() -> None:
    rows = page.read()
    assert [(row.program, row.entry) for row in rows] == [(each.name, each.entry) for each in listing.read()]
    for each in rows:
        assert (each.ran == page.NOT_RUN) == (not each.ranks) == (not each.date), each
        assert re.fullmatch(r"(\d{4}-\d\d-\d\d)?", each.date), each


def test_a_row_goes_when_its_line_changes(tmp_path: Path) -> None:
    file = tmp_path / "results.md"
    file.write_text("# Before\n\n<!-- written by tests/programs/run.py -->\n<!-- end -->\nbehind\n")
    kept, changed = _program("0" * 64, path="kept.py"), _program("0" * 64, path="changed.py")
    outcomes = {2: Outcome(law="holds", worst=1e-16, steps=5), 3: Outcome(law="holds", worst=2e-16, steps=5)}
    page.write([kept, changed], [row(kept, outcomes), row(changed, outcomes)], file)
    assert [(each.ranks, each.worst) for each in page.read(file)] == [("2, 3", "2e-16")] * 2
    page.write([kept, dataclasses.replace(changed, steps=6)], [], file)
    assert [each.ran for each in page.read(file)] == ["holds", page.NOT_RUN]
    assert file.read_text().startswith("# Before")
    assert file.read_text().endswith("<!-- end -->\nbehind\n")


def test_the_worst_outcome_is_told() -> None:
    outcomes = {2: Outcome(law="holds", worst=0.0, steps=5), 3: Outcome(law="BROKEN", worst=0.1, steps=5)}
    told = row(_program("0" * 64), outcomes)
    assert (told.ran, told.worst) == ("BROKEN", "0.1")


def test_a_checkout_must_have_the_contents_of_the_commit(tmp_path: Path) -> None:
    checkout = tmp_path / "owner" / "name" / "folder"
    program = _program(hashlib.sha256(SCRIPT.encode()).hexdigest())
    assert "no owner/name/folder/train.py" in program.missing(tmp_path)
    checkout.mkdir(parents=True)
    (checkout / "train.py").write_text(SCRIPT)
    assert not program.missing(tmp_path)
    (checkout / "train.py").write_text(SCRIPT + "\n")
    assert "is not that of commit" in program.missing(tmp_path)


def test_a_clone_tells_by_the_commit(tmp_path: Path) -> None:
    clone = tmp_path / "owner" / "name"
    (clone / "folder").mkdir(parents=True)
    (clone / "folder" / "train.py").write_text(SCRIPT)

    def git(*words: str) -> str:
        author = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org"}
        committer = {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}
        environment = {**os.environ, **author, **committer}
        return subprocess.run(
            ["git", "-C", str(clone), *words], check=True, capture_output=True, text=True, env=environment
        ).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    program = _program(hashlib.sha256(SCRIPT.encode()).hexdigest(), commit=git("rev-parse", "HEAD"))
    (clone / "folder" / "train.py").write_text("another")
    assert not program.missing(tmp_path)
    assert program.contents(tmp_path, program.path) == SCRIPT.encode()


@pytest.mark.soak
def test_a_program_is_run_with_its_standins(tmp_path: Path, host: WarmHost) -> None:
    folder = tmp_path / "owner" / "name" / "folder"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    program = _program(hashlib.sha256(SCRIPT.encode()).hexdigest())
    outcome = run(program, tmp_path, ranks=2, plan="ddp", starter=host.start)
    assert outcome.law == "holds", outcome.report
    assert outcome.steps == 5
    assert outcome.worst is not None
    assert outcome.worst < 1e-12
    assert outcome.end is not None
    assert outcome.end.end == "one piece"
    assert "holds: largest difference" in outcome.line
    called = dataclasses.replace(program, arguments="-c 'import train'")
    assert run(called, tmp_path, ranks=2, plan="ddp", starter=host.start).law == "holds"


def test_one_that_fails_in_plain_python_is_not_called_broken(tmp_path: Path, host: WarmHost) -> None:
    folder = tmp_path / "owner" / "name" / "folder"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("import no_such_package\n")
    outcome = run(_program("1", standins=()), tmp_path, ranks=2, plan="ddp", starter=host.start)
    assert "no_such_package" in outcome.law
    assert outcome.end is None


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "owner" / "name" / "folder"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("while True: pass\n")
    with WarmHost(seconds=0.5) as host:
        outcome = run(_program("1", standins=()), tmp_path, ranks=2, plan="ddp", starter=host.start)
    assert outcome.law == "plain Python took too long"


def test_printed_numbers_are_compared_at_their_places() -> None:
    assert printed_apart("loss 1.0, 2e-3", "loss 1.0, 2e-3") == 0
    assert printed_apart("loss 2.0", "loss 1.0") == pytest.approx(0.5)
    assert printed_apart("loss 1.0", "accuracy 1.0") == float("inf")
    assert printed_apart("done", "done") is None


@pytest.mark.parametrize("standin", ["gym", "gym26", "gymnasium", "torchvision", "requests", "tensorflow"])
def test_standins_are_copied_by_their_names(standin: str, tmp_path: Path) -> None:
    provide(standin, tmp_path)
    name = "gym" if standin == "gym26" else standin
    assert (tmp_path / name / "__init__.py").is_file()
    if name.startswith("gym"):
        assert ("True" in (tmp_path / name / "api.py").read_text()) == (standin != "gym")
