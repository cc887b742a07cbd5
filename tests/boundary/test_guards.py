"""While a model is tried, nothing of it is printed or written, and the script's other threads go on."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from ronde.boundary.guards import Refusal, apart


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
