"""A server comes back as it was, whatever of its files is torn, damaged or missing."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import ronde.server.journal
from ronde.errors import RondeError
from ronde.server.framing import write
from ronde.server.parameter_server import ParameterServer
from ronde.server.record import Record
from ronde.server.shard import ServerShard
from ronde.server.snapshot import name_of, snapshots
from ronde.server.storage import Storage, recover
from ronde.server.transport.wire import Message, Opcode, WireError
from server.records import same, shard, some_records


def fed(directory: Path, records: Sequence[Record], *, at: Sequence[int] = (), **options: Any) -> ServerShard:
    """A shard to which records were applied through a log, with snapshots after so many of them."""
    made = shard()
    storage = Storage(directory, made, **options)
    for number, record in enumerate(records, 1):
        storage.append(record)
        made.apply(record)
        if number in at:
            storage.begin_snapshot()
            storage.wait()
    storage.close()
    return made


def back(directory: Path, said: list[str] | None = None) -> ServerShard:
    made = shard()
    recover(directory, made, (said if said is not None else []).append)
    return made


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("at", [(), (5,), (5, 12), (5, 12, 20), (20,)])
def test_a_server_comes_back_as_it_was(tmp_path: Path, at: tuple[int, ...]) -> None:
    made = fed(tmp_path, some_records(20), at=at)
    assert same(back(tmp_path), made)
    more = some_records(30)[20:]
    again = fed(tmp_path, more)
    assert same(again, fed(tmp_path / "other", some_records(30)))
    assert same(back(tmp_path), again)


def test_the_last_two_snapshots_and_their_logs_are_kept(tmp_path: Path) -> None:
    fed(tmp_path, some_records(20), at=(5, 9, 14))
    assert files(tmp_path) == [f"log-{9:012d}", f"log-{14:012d}", "manifest.json", name_of(9), name_of(14)]


@pytest.mark.parametrize("sync", ["always", "group", "never"])
def test_the_disk_is_asked_as_the_user_says(
    tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "fdatasync", asked.append)
    made = shard()
    storage = Storage(tmp_path, made, sync=sync)  # pyright: ignore[reportArgumentType]
    for record in some_records(5):
        storage.append(record)
        storage.tick()
    assert len(asked) == (5 if sync == "always" else 0)
    monkeypatch.setattr(ronde.server.journal, "_GROUP_S", 0.0)
    storage.tick()
    assert len(asked) == {"always": 5, "group": 1, "never": 0}[sync]
    storage.close()


def test_a_change_that_was_written_half_is_taken_off(tmp_path: Path) -> None:
    made = fed(tmp_path, some_records(9))
    fed(tmp_path, some_records(10)[9:])
    log = tmp_path / f"log-{0:012d}"
    os.truncate(log, log.stat().st_size - 3)
    said: list[str] = []
    assert same(back(tmp_path, said), made)
    assert "the last change is incomplete" in said[0]
    said.clear()
    assert same(back(tmp_path, said), made)
    assert said == []
    assert same(fed(tmp_path, some_records(10)[9:]), fed(tmp_path / "other", some_records(10)))


def test_a_log_that_is_damaged_before_its_end_is_refused(tmp_path: Path) -> None:
    fed(tmp_path, some_records(9))
    spoil(tmp_path / f"log-{0:012d}", 40)
    with pytest.raises(RondeError, match=r"is damaged at byte 0 .* changes follow that were confirmed"):
        back(tmp_path)


def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    fed(tmp_path, some_records(20), at=(5, 9))
    (tmp_path / name_of(9)).unlink()
    assert len(back(tmp_path).marks) == 1
    (tmp_path / f"log-{5:012d}").unlink()
    with pytest.raises(RondeError, match="has no changes 5 to 8"):
        back(tmp_path)


def test_a_damaged_snapshot_is_answered_by_the_one_before(tmp_path: Path) -> None:
    made = fed(tmp_path, some_records(20), at=(5, 12))
    spoil(tmp_path / name_of(12), 200)
    said: list[str] = []
    assert same(back(tmp_path, said), made)
    assert f"{name_of(12)} is damaged" in said[0]
    assert snapshots(tmp_path) == [5]
    fed(tmp_path, some_records(23)[20:], at=(3,))
    assert snapshots(tmp_path) == [23, 5]


def test_without_a_whole_snapshot_the_log_from_the_beginning_does(tmp_path: Path) -> None:
    made = fed(tmp_path, some_records(20), at=(5,))
    spoil(tmp_path / name_of(5), 200)
    assert same(back(tmp_path), made)


def test_no_whole_snapshot_and_no_whole_log_is_refused(tmp_path: Path) -> None:
    fed(tmp_path, some_records(20), at=(5, 9, 12))
    spoil(tmp_path / name_of(9), 200)
    spoil(tmp_path / name_of(12), 200)
    for _ in range(2):
        with pytest.raises(RondeError, match=r"no snapshot in .* is whole"):
            back(tmp_path)


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    made = fed(tmp_path, some_records(20), at=(5, 12))
    (tmp_path / "manifest.json").write_text("{")
    said: list[str] = []
    assert same(back(tmp_path, said), made)
    assert "manifest.json cannot be read" in said[0]


def test_snapshots_alone_survive_without_a_log(tmp_path: Path) -> None:
    made = fed(tmp_path, some_records(20), durability="snapshot")
    assert files(tmp_path) == ["manifest.json", name_of(20)]
    assert same(back(tmp_path), made)


def test_a_snapshot_comes_when_changes_are_many(tmp_path: Path) -> None:
    made = shard()
    said: list[str] = []
    storage = Storage(tmp_path, made, least=4000, tell=said.append)
    for record in some_records(20):
        storage.append(record)
        made.apply(record)
        storage.tick()
    storage.wait()
    storage.close()
    assert snapshots(tmp_path)
    assert "it held this server up for" in said[0]
    assert same(back(tmp_path), made)


def test_a_full_disk_changes_nothing_and_room_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a record fits: it is taken off, nobody is told that it was made, and the next one may be."""
    said: list[str] = []
    made = shard()
    storage = Storage(tmp_path, made, tell=said.append)
    server = ParameterServer(made, storage, workers=1)
    answers: list[Message] = []

    def ask(sequence: int) -> None:
        record = some_records(sequence)[-1]
        message = Message(record.operation, record.meta, record.arrays, sequence=sequence)
        answers.clear()
        server.handle(message, answers.append)

    ask(1)
    size = (tmp_path / f"log-{0:012d}").stat().st_size

    def full(descriptor: int, buffers: Sequence[Any]) -> int:
        write(descriptor, buffers[:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ronde.server.journal, "write", full)
    for _ in range(2):
        ask(2)
        assert answers[0].operation is Opcode.REFUSED
        assert answers[0].meta["kind"] == "storage"
        assert str(tmp_path) in answers[0].meta["why"]
        assert "No space left on device" in answers[0].meta["why"]
    assert made.marks == {0: 1}
    assert (tmp_path / f"log-{0:012d}").stat().st_size == size
    assert len(said) == 1
    monkeypatch.undo()
    ask(2)
    assert answers[0].operation is Opcode.DONE
    assert "again" in said[1]
    storage.close()
    assert same(back(tmp_path), made)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The system itself writes a part of a record; what is left is taken off."""
    made = shard()
    storage = Storage(tmp_path, made)
    records = some_records(12)
    for record in records[:8]:
        storage.append(record)
        made.apply(record)
    log = tmp_path / f"log-{0:012d}"
    size = log.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
    try:
        with pytest.raises(RondeError, match="cannot be written"):
            storage.append(records[8])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert log.stat().st_size == size
    for record in records[8:]:
        storage.append(record)
        made.apply(record)
    storage.close()
    assert same(back(tmp_path), made)


def test_what_an_earlier_life_of_a_worker_sent_is_refused() -> None:
    server = ParameterServer(shard(), None, workers=1)
    answers: list[Message] = []
    server.handle(Message(Opcode.HELLO, {"workers": 1}, incarnation=2), answers.append)
    with pytest.raises(WireError, match="has been started again"):
        server.handle(Message(Opcode.INIT, {}, [], sequence=1, incarnation=1), answers.append)


def test_who_left_stays_away_after_a_restart(tmp_path: Path) -> None:
    made = shard()
    storage = Storage(tmp_path, made)
    server = ParameterServer(made, storage, workers=2, rule="bounded")
    server.handle(Message(Opcode.LEAVE, worker=1), lambda answer: None)
    storage.close()
    assert made.left == {1}
    assert back(tmp_path).left == {1}


def spoil(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_directory_is_of_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ronde.server.storage._LOCK_S", 0.0)
    storage = Storage(tmp_path, shard())
    with pytest.raises(RondeError, match="another server uses"):
        Storage(tmp_path, shard())
    storage.close()
    Storage(tmp_path, shard()).close()
