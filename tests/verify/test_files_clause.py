"""L5 compares files by what they mean, and pairs those that are named by a clock."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import sqlite3
import struct
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from ronde.verify.clauses import files
from ronde.verify.clauses.contents import Beyond, FileComparison, compare_contents
from ronde.verify.clauses.verdict import Status, Tolerance

DOUBLE = Tolerance.strict()


def differing_contents(mine: Path, reference: Path, tolerance: Tolerance) -> str | None:
    found = compare_contents(mine, reference, tolerance)
    assert found.beyond is None
    return found.wrong or None


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


def test_lines_that_end_as_csv_writes_them_are_compared(tmp_path: Path) -> None:
    for name, loss in (("plain", "0.5"), ("again", "0.5"), ("ranks", "0.75")):
        (tmp_path / name).write_bytes(f"step,loss\r\n1,{loss}\r\n".encode())
    found = compare_contents(tmp_path / "ranks", tmp_path / "plain", DOUBLE, [tmp_path / "again"])
    assert found == FileComparison("line 2: 0.75, in plain python 0.5")


class _Slotted:
    __slots__ = ("value",)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")  # of the test's own call; of ronde's there is none
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


def _output(folder: Path, contents: dict[str, str]) -> files.RunOutput:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return files.RunOutput({name: folder / name for name in contents}, "")


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
    assert files.compare(plain, run, [], DOUBLE, [again]).divergence == found


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    plain = _output(tmp_path / "plain", {"debug.log": "started at noon"})
    again = _output(tmp_path / "again", {"debug.log": "started, twice"})
    run = _output(tmp_path / "ranks", {"debug.log": "started late"})
    verdict = files.compare(plain, run, [], DOUBLE, [again])
    assert verdict.status is Status.holds
    assert "only that it is there: two runs of plain python differ in debug.log" in verdict.compared


def _gzip(path: Path, content: bytes) -> None:
    with gzip.GzipFile(path, "wb", mtime=len(path.name)) as file:  # the time of writing lies in the file
        file.write(content)


def _bz2(path: Path, content: bytes) -> None:
    path.write_bytes(bz2.compress(content))


def _xz(path: Path, content: bytes) -> None:
    path.write_bytes(lzma.compress(content))


def _zip(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("logs/", (1990, 1, 1, 0, 0, 0)), b"")
        archive.writestr(zipfile.ZipInfo("logs/losses.txt", (1980 + len(path.name), 1, 1, 0, 0, 0)), content)


def _tar_gz(path: Path, content: bytes) -> None:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        member = tarfile.TarInfo("logs/losses.txt")
        member.size, member.mtime = len(content), len(path.name)
        archive.addfile(member, io.BytesIO(content))
    _gzip(path, inner.getvalue())


@pytest.mark.parametrize("pack", [_gzip, _bz2, _xz, _zip, _tar_gz])
def test_what_is_packed_is_compared_by_what_is_inside(
    tmp_path: Path, pack: Callable[[Path, bytes], None]
) -> None:
    contents = {"plain": 0.5, "the ranks, near": 0.5 + 1e-13, "the ranks, far": 0.75}
    for name, loss in contents.items():
        pack(tmp_path / name, f"epoch 1: loss {loss!r}\n".encode())
    plain = tmp_path / "plain"
    assert compare_contents(tmp_path / "the ranks, near", plain, DOUBLE) == FileComparison()
    wrong = compare_contents(tmp_path / "the ranks, far", plain, DOUBLE).wrong
    assert wrong.startswith(("uncompressed, ", "inside logs/losses.txt, "))
    assert wrong.endswith("line 1: 0.75, in plain python 0.5")
    (tmp_path / "damaged").write_bytes(plain.read_bytes()[:-30])
    assert compare_contents(tmp_path / "damaged", plain, DOUBLE).wrong


def test_a_compressed_pickle_is_compared_by_its_value(tmp_path: Path) -> None:
    for name, value in (("plain", 1.0), ("near", 1.0 + 1e-14), ("far", 2.0)):
        (tmp_path / name).mkdir()
        _gzip(tmp_path / name / "state.pkl.gz", pickle.dumps({"weight": torch.full((3,), value).numpy()}))
    plain = tmp_path / "plain" / "state.pkl.gz"
    assert compare_contents(tmp_path / "near" / "state.pkl.gz", plain, DOUBLE) == FileComparison()
    wrong = compare_contents(tmp_path / "far" / "state.pkl.gz", plain, DOUBLE).wrong
    assert wrong == "uncompressed, weight, entry 0: 2.0, in plain python 1.0"


def test_a_member_too_many_is_found(tmp_path: Path) -> None:
    for name, members in (("plain.zip", ["a"]), ("ranks.zip", ["a", "b"])):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for member in members:
                archive.writestr(zipfile.ZipInfo(member), "1")
    wrong = compare_contents(tmp_path / "ranks.zip", tmp_path / "plain.zip", DOUBLE).wrong
    assert wrong == "b is inside of one only"


def test_a_format_that_is_not_read_breaks_nothing_but_is_said(tmp_path: Path) -> None:
    """Rounding may be in any byte of it, so other bytes prove nothing."""
    for name, content in (("plain", b"\x08\xff\x10weights"), ("ranks", b"\x08\xff\x11weights")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(content)
    plain, run = (
        files.RunOutput({"model.onnx": tmp_path / name / "model.onnx"}, "") for name in ("plain", "ranks")
    )
    verdict = files.compare(plain, run, [], DOUBLE)
    assert verdict.status is Status.holds
    assert verdict.compared == (
        "1 files, 0 printed lines (of 1 only that it is there: model.onnx has other bytes, in a format that "
        "is not read here)"
    )


def test_a_file_that_was_cut_short_is_found_in_any_format(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"\x08\xff\x10weights")
    for content in (b"", b"\x08\xff\x10w"):
        (tmp_path / "ranks").write_bytes(content)
        found = compare_contents(tmp_path / "ranks", tmp_path / "plain", DOUBLE)
        assert found.wrong == f"{len(content)} bytes, in plain python 10 that begin alike"


def test_events_without_tensorboard_are_not_called_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ronde.verify.clauses.contents.can_read_events", lambda: False)
    for name in ("plain", "ranks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1.host.2.0").write_text(name)
    mine, reference = (tmp_path / n / "events.out.tfevents.1.host.2.0" for n in ("ranks", "plain"))
    assert compare_contents(mine, reference, DOUBLE) == FileComparison(beyond=Beyond.unread)


def _printed(text: str) -> str | None:
    """What is found where plain python prints a loss and what made it, and ranks print `text`."""
    plain = "0 tensor(1.2963, grad_fn=<NllLossBackward0>)\n<NllLossBackward0 object at 0x7f02a1>\nend 1\n"
    found = files.compare(files.RunOutput({}, plain), files.RunOutput({}, text), (), DOUBLE)
    return found.divergence or None


def test_the_graph_that_a_printed_tensor_names_is_left_out() -> None:
    end = "<MulBackward0 object at 0x7fbbc0>\nend 1\n"
    assert _printed(f"0 tensor(1.2963, grad_fn=<DivBackward0>)\n{end}") is None
    assert _printed(f"0 tensor(1.2963,\n       grad_fn=<CopySlices>)\n{end}") is None
    assert _printed(f"0 tensor(1.2863, grad_fn=<DivBackward0>)\n{end}") is not None
    assert _printed(f"0 tensor(1.2963)\n{end}") is not None
    assert _printed(f"0 tensor(1.2963, requires_grad=True)\n{end}") is not None
    assert _printed("0 tensor(1.2963, grad_fn=<DivBackward0>)\nNone\nend 1\n") is not None
