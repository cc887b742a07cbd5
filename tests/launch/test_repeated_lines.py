"""A restart does not show again what an earlier attempt has shown."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from ronde.launch.repeated_lines import RepeatedLines, count_lines, write_position


def attempt(place: Path, pieces: Iterable[bytes], *, resumed_at: int | None = None) -> bytes:
    """What is shown of an attempt that prints these pieces."""
    lines = RepeatedLines(place, "stdout", resumed=resumed_at is not None)
    if resumed_at is not None:
        write_position(place, {"stdout": resumed_at, "stderr": 0})
    return b"".join([*map(lines.add, pieces), lines.end()])


def test_lines_between_the_checkpoint_and_the_failure_are_shown_once(tmp_path: Path) -> None:
    first = b"step 1, 0.31 s\nstep 2, 0.30 s\nstep 3, 0.30 s\nstep"
    assert attempt(tmp_path, [first]) == first
    second = [b"step 2, 0.5 s\nst", b"ep 3, 0.31 s\nstep 4, 0.1", b"2 s\n", b"step 5"]
    assert attempt(tmp_path, second, resumed_at=1) == b"\nstep 4, 0.12 s\nstep 5"
    assert attempt(tmp_path, [b"step 4, 1 s\nstep 5, 1 s\n"], resumed_at=3) == b"\nstep 5, 1 s\n"


def test_from_the_first_line_that_differs_all_is_shown(tmp_path: Path) -> None:
    attempt(tmp_path, [b"a\nTraceback (most recent call last):\nValueError\n"])
    again = b"b\nTraceback (most recent call last):\n"
    assert attempt(tmp_path, [b"a\n", again], resumed_at=0) == again
    assert attempt(tmp_path, [b"a\nb\nValueError\n"], resumed_at=0) == b"ValueError\n"


def test_a_line_that_was_not_shown_whole_is_shown(tmp_path: Path) -> None:
    attempt(tmp_path, [b"a\nhalf"])
    assert attempt(tmp_path, [b"half a line\n"], resumed_at=1) == b"\nhalf a line\n"
    attempt(tmp_path, [b"a\nb\n"])
    assert attempt(tmp_path, [b"b, and no end"], resumed_at=1) == b"b, and no end"


def test_words_of_ronde_are_no_lines_of_the_script(tmp_path: Path) -> None:
    attempt(tmp_path, [b"ronde: one\na\nronde: two\nb\n"])
    lines = RepeatedLines(tmp_path, "stdout", resumed=True)
    assert lines.add(b"said before the script is back\n") == b"said before the script is back\n"
    write_position(tmp_path, {"stdout": 0, "stderr": 0})
    assert lines.add(b"ronde: resumed at step 1\na\nb\nc\n") == b"ronde: resumed at step 1\nc\n"
    assert lines.end() == b""


def test_a_terminals_line_ends_and_progress_bars(tmp_path: Path) -> None:
    attempt(tmp_path, [b" 10%|#\r 20%|##\r\n", b"a\r\n"])
    assert attempt(tmp_path, [b" 15%|#\r 20%|##\r\n", b"a\r\nb\r\n"], resumed_at=0) == b"b\r\n"


@pytest.mark.parametrize(
    ("shown", "again"),
    [
        ("step 1 loss 0.51", "step 1 loss 0.52"),
        ("epoch 1, 8 samples, 0.3 s", "epoch 2, 8 samples, 0.3 s"),
        ("accuracy 91.2% in 3.1 s", "accuracy 91.3% in 3.1 s"),
        ("beta 0.9 scale 3 h2", "beta 0.8 scale 3 h2"),
        ("id:12345", "id:99345"),
        ("max 0.9 min 0.1", "max 0.8 min 0.1"),
        ("loss=0.5, lr=1e-3", "loss=0.25, lr=1e-3"),
    ],
)
def test_another_number_is_another_line(tmp_path: Path, shown: str, again: str) -> None:
    attempt(tmp_path, [f"{shown}\n".encode()])
    assert attempt(tmp_path, [f"{again}\n".encode()], resumed_at=0) == f"{again}\n".encode()


@pytest.mark.parametrize(
    ("shown", "again"),
    [
        ("step 1 0.31 s", "step 1 2.5 s"),
        ("step 1 12ms/step", "step 1 9ms/step"),
        ("100%|##| 8/8 [00:01<00:00,  7.12it/s]", "100%|##| 8/8 [00:11<00:00,  1.2s/it]"),
        ("2026-01-02 10:11:12,345 INFO loss 0.5", "2026-01-03 00:00:00,001 INFO loss 0.5"),
        ("epoch 1 took 3 at 1,200 tokens/s", "epoch 1 took 4.5 at 990 tokens/s"),
        ("loss 0.5, 12 images per second", "loss 0.5, 14.1 images per second"),
        ("{'runtime': 1.2, 'samples_per_second': 3.0}", "{'runtime': 2, 'samples_per_second': 4.5}"),
        ("1m 3.2s", "2m 4s"),
        ("loss 0.5 (1m3.2s)", "loss 0.5 (2m4s)"),
    ],
)  # fmt: skip
def test_times_and_rates_may_differ(tmp_path: Path, shown: str, again: str) -> None:
    attempt(tmp_path, [f"{shown}\n".encode()])
    assert attempt(tmp_path, [f"{again}\n".encode()], resumed_at=0) == b""


def test_a_position_of_an_earlier_attempt_is_not_read(tmp_path: Path) -> None:
    attempt(tmp_path, [b"a\nb\n"])
    attempt(tmp_path, [b"b\n"], resumed_at=1)
    lines = RepeatedLines(tmp_path, "stdout", resumed=True)
    assert lines.add(b"said before the script is back\n") == b"said before the script is back\n"
    write_position(tmp_path, {"stdout": 0, "stderr": 0})
    assert lines.add(b"a\nb\nc\n") == b"c\n"
    lines.end()


@pytest.mark.parametrize(("text", "lines"), [(b"", 0), (b"a\nronde: b\nc\nd", 2)])
def test_what_is_printed_unseen_is_counted(tmp_path: Path, text: bytes, lines: int) -> None:
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(file, text)
    assert count_lines(file) == lines
    os.close(file)
