"""Starting, asking and ending ranks; these here do no collectives."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ronde.bench.collectives.rank_set import RankSet, running
from ronde.errors import BenchError, UsageError

CONNECT = """
import argparse, os, socket, sys
from multiprocessing.connection import Connection
parser = argparse.ArgumentParser()
for option in ("--socket", "--ranks", "--rank"):
    parser.add_argument(option)
options = parser.parse_args()
link = socket.socket(socket.AF_UNIX)
link.connect(options.socket)
connection = Connection(link.detach())
connection.send(("done", (int(options.rank), "fake 1.0")))
"""
ECHO = """
while True:
    try:
        connection.send(("done", (options.rank, *connection.recv())))
    except EOFError:
        break
"""


@contextmanager
def ranks(code: str, count: int = 2) -> Iterator[RankSet]:
    command = (sys.executable, "-c", code)
    before = set(psutil.Process().children())  # those of other tests
    try:
        with running("Fake", command, ranks=count, launcher=(), environment=os.environ) as found:
            yield found
    finally:
        assert set(psutil.Process().children()) <= before


def test_all_ranks_answer_again_and_again() -> None:
    with ranks(CONNECT + ECHO) as found:
        assert found.version == "fake 1.0"
        for _ in range(2):
            answers = found.ask("measure", 3)
            assert sorted(answers) == [("0", "measure", (3,)), ("1", "measure", (3,))]


def test_ranks_that_do_not_start_are_quoted() -> None:
    with (
        pytest.raises(BenchError, match=r"(?s)Fake did not start: exit code 3: .*no library"),
        ranks("import sys; print('no library', file=sys.stderr); sys.exit(3)"),
    ):
        pytest.fail("nothing has started")


def test_a_rank_that_dies_is_quoted() -> None:
    dying = "connection.recv(); print('struck by lightning', file=sys.stderr); os._exit(1)"
    with (
        pytest.raises(BenchError, match=r"(?s)a rank of Fake died: .*struck by lightning"),
        ranks(CONNECT + dying) as found,
    ):
        found.ask("measure", 3)


def test_a_wrong_result_is_an_error() -> None:
    wrong = "connection.recv(); connection.send(('failed', 'BenchError: the result is wrong'))"
    with (
        pytest.raises(BenchError, match="Fake failed: BenchError: the result is wrong"),
        ranks(CONNECT + wrong) as found,
    ):
        found.ask("measure", 3)


def test_a_folder_with_a_long_name_has_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(UsageError, match="set TMPDIR to a folder with a shorter name"), ranks(CONNECT):
        pytest.fail("nothing has started")
