"""Kills for lack of memory, as control groups count them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.cluster.host_memory import kernel_lines, oom_kills


def root(tmp_path: Path, line: str, file: str, text: str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line + "\n")
    path = tmp_path / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "file", "text"),
    [
        ("0::/job/step", "job/memory.events", "low 0\noom 1\noom_kill 3\n"),
        ("4:memory:/job", "memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
    ],
)
def test_kills_are_counted(tmp_path: Path, line: str, file: str, text: str) -> None:
    assert oom_kills(root(tmp_path, line, file, text)) == 3


def test_nothing_is_counted_where_there_are_no_groups(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0


def test_a_log_that_may_not_be_read_has_no_lines(tmp_path: Path) -> None:
    assert kernel_lines(10.0, tmp_path / "missing") == ()
