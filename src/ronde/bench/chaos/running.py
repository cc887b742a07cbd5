"""Runs one case, and judges what was said about it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ronde.bench.chaos.case import Case, script_of
from ronde.launch.sweep import leftovers
from ronde.trace.explanation import Explanation, read_explanation
from ronde.trace.launch_record import read_launch_record

__all__ = ["Found", "judge", "run_case"]

_MOST_S = 60.0
_LOOK_S = 0.05
_RONDE = (sys.executable, "-m", "ronde")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What came of a case.

    Attributes:
        cause, rank, summary: of the explanation.
        right: both are what they should be.
        after: seconds from the fault to the explanation, None where there is no such moment.
        hung: the run did not end by itself, or when it was told to.
        orphans: processes that it left.
        skipped: why it was not run.
    """

    name: str
    outcome: str
    expected: str
    cause: str = ""
    rank: int | None = None
    summary: str = ""
    right: bool = False
    after: float | None = None
    seconds: float = 0.0
    hung: bool = False
    orphans: int = 0
    skipped: str = ""


def run_case(
    case: Case, environment: Mapping[str, str], keep: Path | None = None, *, on_two_hosts: bool = False
) -> Found:
    """Run it in a folder of its own, which goes when all is right.

    Args:
        on_two_hosts: whether the last rank is on another host; both are this one, each with an agent.
        keep: folder to which the evidence of the run is copied.
    """
    expected = " or ".join(case.causes) + ("" if case.rank in (None, -1) else f", rank {case.rank}")
    blank = Found(name=case.name, outcome=case.outcome, expected=expected)
    if case.before and os.geteuid() != 0 and "mount" in case.before:
        return dataclasses.replace(blank, skipped="needs root, to mount")
    if case.needs and not os.access(case.needs, os.W_OK):
        return dataclasses.replace(blank, skipped=f"{case.needs} cannot be written")
    here = Path(tempfile.mkdtemp(prefix="ronde-chaos-"))
    variables = {name: value.format(here=here) for name, value in case.environment}
    environment = {**environment, "CHAOS_HERE": str(here), **variables}
    if case.outcome == "preflight":
        found = _preflight(case, here, environment, blank)
    else:
        found = _run(case, here, environment, blank, on_two_hosts=on_two_hosts)
    for group in Path(case.needs).parent.glob(f"{here.name}*") if case.needs else ():
        group.rmdir()  # a control group of the fault's
    if keep is not None:
        _keep(case, here / "run" / "evidence", keep)
    if found.right and not found.hung and not found.orphans:
        shutil.rmtree(here, ignore_errors=True)
    return found


def judge(case: Case, explanation: Explanation | None) -> bool:
    """Whether it names the cause and the rank."""
    if explanation is None or explanation.cause not in case.causes:
        return False
    return case.rank == -1 or explanation.rank == case.rank


def _run(
    case: Case, here: Path, environment: Mapping[str, str], blank: Found, *, on_two_hosts: bool
) -> Found:
    script, directory = here / "train.py", here / "run"
    script.write_text(script_of(case))
    where = _two_hosts(case.ranks) if on_two_hosts else ("--ranks", str(case.ranks))
    command = [
        *_RONDE, "run", *where, "--seed", "1", "--timeout", "40",
        "--run-dir", str(directory),
        *case.options, str(script),
    ]  # fmt: skip
    begun = time.monotonic()
    with (here / "output").open("wb") as output:
        run = subprocess.Popen(
            command,
            cwd=here,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        told = lambda: read_explanation(directory) is not None  # noqa: E731
        ended = lambda: run.poll() is not None  # noqa: E731
        came = _until(lambda: ended() or (case.outcome == "stalls" and told()))
        after = _after(here, directory)
        explanation = read_explanation(directory)
        if not ended():
            run.send_signal(signal.SIGTERM)
            _until(ended, 15.0)
        hung = not came or not ended()
        if not ended():
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    orphans = _orphans(directory)
    if case.outcome == "ends":
        explanation, after = _asked(directory, here, environment), None
    elif explanation is None:
        explanation = read_explanation(directory)
    return dataclasses.replace(
        blank,
        cause=explanation.cause if explanation else "",
        rank=explanation.rank if explanation else None,
        summary=explanation.summary if explanation else "",
        right=judge(case, explanation),
        after=after,
        seconds=round(time.monotonic() - begun, 1),
        hung=hung,
        orphans=orphans,
    )


def _preflight(case: Case, here: Path, environment: Mapping[str, str], blank: Found) -> Found:
    words = " ".join(_RONDE) + f" doctor --ranks {case.ranks} {' '.join(case.options)} --json"
    command: Sequence[str] = ["sh", "-c", f"{case.before or ':'}; {words}"]
    if "mount" in case.before:
        command = ["unshare", "--mount", "--propagation", "private", *command]
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=here, env=dict(environment), capture_output=True, text=True, timeout=_MOST_S
    )
    try:
        findings: list[dict[str, Any]] = json.loads(done.stdout)
    except ValueError:
        findings = []
    wrong = [each for each in findings if each["level"] == "wrong"]
    found = next((each for each in wrong if each["check"] in case.causes), None)
    return dataclasses.replace(
        blank,
        cause=found["check"] if found else "",
        summary=found["summary"] if found else done.stderr.strip()[-200:],
        right=found is not None and done.returncode == 1,
        seconds=round(time.monotonic() - begun, 1),
    )


def _asked(directory: Path, here: Path, environment: Mapping[str, str]) -> Explanation | None:
    """What `ronde doctor` says of it."""
    command = [*_RONDE, "doctor", str(directory), "--json"]
    done = subprocess.run(
        command, cwd=here, env=dict(environment), capture_output=True, text=True, timeout=_MOST_S
    )
    try:
        answer = json.loads(done.stdout)
        fields = answer["explanation"]
    except (ValueError, KeyError):
        return None
    folder = directory / "evidence"
    folder.mkdir(exist_ok=True)
    (folder / "asked.json").write_text(json.dumps(answer["evidence"], indent=1))
    return Explanation(**{**fields, "evidence": tuple(fields["evidence"])})


def _keep(case: Case, evidence: Path, keep: Path) -> None:
    reason = {"stalls": "stall", "fails": "failure", "ends": "asked"}.get(case.outcome, "")
    name = re.sub(r"\W+", "-", case.name).strip("-")
    with contextlib.suppress(OSError):
        shutil.copy(evidence / f"{reason}.json", keep / f"{name}.json")


def _after(here: Path, directory: Path) -> float | None:
    """Seconds between the fault and the first evidence of it."""
    try:
        fault = (here / "fault").stat().st_mtime
    except OSError:
        return None
    times = []
    for name in ("stall", "failure"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            times.append(float(json.loads((directory / "evidence" / f"{name}.json").read_text())["time"]))
    return round(min(times) - fault, 2) if times else None


def _orphans(directory: Path) -> int:
    launched = read_launch_record(directory / "launch.json")
    return 0 if launched is None else sum(len(leftovers(node.run_id)) for node in launched.nodes)


def _two_hosts(ranks: int) -> Sequence[str]:
    """Options by which ranks are on two hosts, both of them this one, behind a command in place of ssh."""
    command = shlex.join(("sh", "-c", 'eval "$1"'))
    return ("-H", f"127.0.0.1:{ranks - 1},127.0.0.2:1", "--ssh-command", command)


def _until(reached: Callable[[], bool], most: float = _MOST_S) -> bool:
    end = time.monotonic() + most
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_S)
    return True
