"""L5 compares files by what they mean, and pairs those that are named by a clock."""

from __future__ import annotations

import pickle
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from ronde.verify.clauses import files
from ronde.verify.clauses.contents import differing_contents
from ronde.verify.clauses.verdict import Status, Tolerance

DOUBLE = Tolerance.of("float64")


def _database(path: Path, loss: float) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE epochs (epoch INTEGER, loss REAL)")
        database.execute("INSERT INTO epochs VALUES (1, ?)", (loss,))
    return path


def test_databases_are_compared_by_their_rows(tmp_path: Path) -> None:
    reference = _database(tmp_path / "plain.db", 0.5)
    assert differing_contents(_database(tmp_path / "near.db", 0.5 + 1e-13), reference, DOUBLE) is None
    wrong = differing_contents(_database(tmp_path / "far.db", 0.6), reference, DOUBLE)
    assert wrong == "table epochs[0][1]: 0.6, in plain python 0.5"


class _Slotted:
    __slots__ = ("value",)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_torchscript_module_is_compared_by_its_state(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1).double()

    def saved(name: str) -> Path:
        traced: Any = torch.jit.trace(model, torch.ones(3, 2, dtype=torch.float64))
        traced.save(str(tmp_path / name))
        return tmp_path / name

    reference, again = saved("plain.pt"), saved("again.pt")
    assert differing_contents(again, reference, DOUBLE) is None
    with torch.no_grad():
        model.bias.add_(1)
    wrong = differing_contents(saved("far.pt"), reference, DOUBLE)
    assert wrong is not None
    assert wrong.startswith("state.bias, entry 0")


def test_an_object_of_which_nothing_is_known_is_not_compared_by_its_address(tmp_path: Path) -> None:
    for name in ("plain", "ranks"):
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps([name, _Slotted()][1:]) + name.encode())
    assert differing_contents(tmp_path / "ranks.pkl", tmp_path / "plain.pkl", DOUBLE) is None


def _events(folder: Path, loss: float) -> Path:
    event = pytest.importorskip("tensorboard.compat.proto.event_pb2").Event
    summary = pytest.importorskip("tensorboard.compat.proto.summary_pb2").Summary
    value = summary.Value(tag="loss", simple_value=loss)
    record = event(wall_time=loss, step=3, summary=summary(value=[value])).SerializeToString()
    folder.mkdir()
    path = folder / "events.out.tfevents.1.host.2.0"
    path.write_bytes(struct.pack("<Q", len(record)) + bytes(4) + record + bytes(4))
    return path


def test_event_files_are_compared_but_for_the_clock(tmp_path: Path) -> None:
    reference = _events(tmp_path / "plain", 0.5)
    assert differing_contents(_events(tmp_path / "near", 0.5 + 5e-8), reference, DOUBLE) is None
    wrong = differing_contents(_events(tmp_path / "far", 0.75), reference, DOUBLE)
    assert wrong is not None
    assert wrong.startswith("event 1 (step 3)")
    assert "0.75, in plain python 0.5" in wrong


def _output(folder: Path, contents: dict[str, str]) -> files.Output:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return files.Output({name: folder / name for name in contents}, "")


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({"run-3/a.txt": "1.5", "best.txt": "1"}, ""),
        ({"run-3/a.txt": "1.7", "best.txt": "1"}, "file run-1/a.txt, line 1: 1.7, in plain python 1.5"),
        ({"best.txt": "1"}, "file run-1/a.txt, or one named like it, is not written on ranks"),
        (
            {"run-3/a.txt": "1.5", "run-4/a.txt": "1.5", "best.txt": "1"},
            "file run-4/a.txt is written on ranks only",
        ),
        ({"run-3/a.txt": "1.5"}, "file best.txt is not written on ranks"),
    ],
)
def test_files_named_by_the_clock_are_paired(tmp_path: Path, written: dict[str, str], found: str) -> None:
    plain = _output(tmp_path / "plain", {"run-1/a.txt": "1.5", "best.txt": "1"})
    again = _output(tmp_path / "again", {"run-2/a.txt": "1.5", "best.txt": "1"})
    run = _output(tmp_path / "ranks", written)
    assert files.compare(plain, run, [], DOUBLE, again).divergence == found


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    plain = _output(tmp_path / "plain", {"debug.log": "started at noon"})
    again = _output(tmp_path / "again", {"debug.log": "started, twice"})
    run = _output(tmp_path / "ranks", {"debug.log": "started late"})
    verdict = files.compare(plain, run, [], DOUBLE, again)
    assert verdict.status is Status.holds
    assert "only that they are there: two runs of plain python differ in debug.log" in verdict.compared
