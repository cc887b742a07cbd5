"""While a model is tried, nothing of it is printed or written, and the script's other threads go on."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from pathlib import Path

import pytest

from ronde.boundary.guards import Refusal, apart


def test_a_thread_that_captures_what_it_prints_takes_nothing_from_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As around pycocotools: it puts back, when it is done, what it has found."""
    captured, over = threading.Event(), threading.Event()
    heard = io.StringIO()

    def capture() -> None:
        with contextlib.redirect_stdout(heard):
            print("captured")
            captured.set()
            assert over.wait(60)
            print("captured still")

    other = threading.Thread(target=capture)
    with apart({}):
        other.start()
        assert captured.wait(60)
    over.set()
    other.join()
    print("printed")
    assert heard.getvalue() == "captured\ncaptured still\n"
    assert capsys.readouterr().out == "printed\n"


def test_other_threads_print_and_write_while_a_model_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def report() -> None:
        with open(tmp_path / "report.txt", "w") as file:
            file.write("a loss")
        print("reported")
        print("reported", file=sys.stderr)

    told: dict[str, str] = {}
    other = threading.Thread(target=report)
    with apart(told):
        print("tried")
        other.start()
        other.join()
        with pytest.raises(Refusal, match="it opens a file for writing"):
            open(tmp_path / "tried.txt", "w")
    assert (tmp_path / "report.txt").read_text() == "a loss"
    assert told["what it prints"] == "tried\n"
    assert capsys.readouterr() == ("reported\n", "reported\n")
