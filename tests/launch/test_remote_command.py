"""How hosts are reached, and what it means when they are not."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ronde.launch.remote_command import RemoteExec, agent_line, why_it_failed


def test_ssh_asks_for_no_password_and_gives_up_soon() -> None:
    words = RemoteExec(port=2222).words("me@a", "exit 0", 2)
    assert words[0] == "ssh"
    assert {"-oBatchMode=yes", "-oConnectTimeout=5"} <= set(words)
    assert words[-4:] == ["-p", "2222", "me@a", "sh -c 'exit 0'"]


def test_another_command_is_given_host_and_line_alone() -> None:
    assert RemoteExec(command=("my-ssh", "-x")).words("a", "exit 0", 2) == [
        "my-ssh",
        "-x",
        "a",
        "sh -c 'exit 0'",
    ]


def test_srun_makes_a_step_of_one_task() -> None:
    words = RemoteExec(kind="srun", command=("srun",)).words("n1", "exit 0", 2)
    assert "--nodelist=n1" in words
    assert words[-3:] == ["sh", "-c", "exit 0"]


@pytest.mark.parametrize(
    ("python", "directory", "code"),
    [(sys.executable, "/no such directory", 71), ("/no/python", "/", 72)],
)
def test_the_line_says_by_its_code_what_is_missing(python: str, directory: str, code: int) -> None:
    assert subprocess.run(["sh", "-c", agent_line(python, directory, {})]).returncode == code


def test_nothing_in_the_directory_stands_for_a_module(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    line = agent_line(sys.executable, str(tmp_path), {"PYTHONPATH": ":".join(sys.path)})
    assert subprocess.run(["sh", "-c", line], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (
            255,
            "me@a: Permission denied (publickey).",
            "asks for a password; give it your key: ssh-copy-id -p 22",
        ),
        (
            255,
            "Host key verification failed.",
            "is not known yet; look at its key once, by hand: ssh -p 22 a",
        ),
        (
            255,
            "ssh: Could not resolve hostname a: Name or service not known",
            "cannot be resolved on this host",
        ),
        (255, "ssh: connect to host a port 22: Connection refused", "runs no ssh server on this port"),
        (255, "ssh: connect to host a port 22: Connection timed out", "is not reached by ssh: .*timed out"),
        (71, "", "has no directory /here; start in one that is on every host"),
        (72, "", "has no /bin/python; install the same environment there"),
        (1, "/bin/python: Error: No module named 'ronde'", "has no ronde for /bin/python; install it there"),
        (127, "sh: 1: env: not found", "no agent came up on a: sh: 1: env: not found; try: ssh -p 22 a true"),
    ],
)
def test_why_a_host_takes_no_part(code: int, said: str, words: str) -> None:
    import re

    trouble = why_it_failed("a", code, [said], RemoteExec(port=22), python="/bin/python", directory="/here")
    line = str(trouble)
    assert (trouble.host, trouble.check) == ("a", "reached")
    assert re.search(words, line), line
    assert "\n" not in line
    assert shlex.quote("a") in line
