"""Runs one case, and judges its explanation."""

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

from benchmarks.chaos.case import Case, script_of
from benchmarks.chaos.place import MakePlace, Place, PlaceUnavailable, ThisHost
from ronde.launch.process_cleanup import leftovers
from ronde.trace.explanation import Explanation, read_explanation
from ronde.trace.launch_record import read_launch_record

__all__ = ["Found", "judge", "run_case"]

_BEGUN_S, _MOST_S = 120.0, 60.0
# An agent without a sign of its launcher ends after a minute.
_ORPHANS_S = 75.0
_LOOK_S = 0.05
_RONDE = (sys.executable, "-m", "ronde")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Result of a case.

    Attributes:
        cause, rank, host, summary: of the explanation.
        right: cause and rank are what they should be, on several hosts the host, too.
        after: seconds from the fault to the explanation, None where there is no such moment.
        hung: the run did not end by itself, or when it was told to.
        orphans: processes that it left.
        skipped: reason why it was not run.
    """

    name: str
    outcome: str
    expected: str
    cause: str = ""
    rank: int | None = None
    host: str = ""
    summary: str = ""
    right: bool = False
    after: float | None = None
    seconds: float = 0.0
    hung: bool = False
    orphans: int = 0
    skipped: str = ""


def run_case(
    case: Case, environment: Mapping[str, str], keep: Path | None = None, *, at: MakePlace | None = None
) -> Found:
    """Run it in a folder of its own, which goes when all is right.

    Args:
        at: makes the place where its ranks are; None: this host.
        keep: folder to which the evidence of the run is copied.
    """
    expected = " or ".join(case.causes) + ("" if case.rank in (None, -1) else f", rank {case.rank}")
    blank = Found(name=case.name, outcome=case.outcome, expected=expected)
    if case.before and os.geteuid() != 0 and "mount" in case.before:
        return dataclasses.replace(blank, skipped="needs root, to mount")
    if case.needs.startswith("/") and not os.access(case.needs, os.W_OK):
        return dataclasses.replace(blank, skipped=f"{case.needs} cannot be written")
    if case.needs and not case.needs.startswith("/") and shutil.which(case.needs) is None:
        return dataclasses.replace(blank, skipped=f"{case.needs} is missing")
    here = Path(tempfile.mkdtemp(prefix="ronde-chaos-"))
    variables = {name: value.format(here=here) for name, value in case.environment}
    environment = {**environment, "CHAOS_HERE": str(here), **variables}
    (here / "train.py").write_text(script_of(case))
    made = contextlib.nullcontext(ThisHost()) if at is None or _is_of_this_host(case) else at(case, here)
    try:
        with made as place:
            found = _found(case, here, environment, blank, place)
    except PlaceUnavailable as why:
        return dataclasses.replace(blank, skipped=str(why))
    for group in Path(case.needs).parent.glob(f"{here.name}*") if case.needs.startswith("/") else ():
        group.rmdir()  # a control group of the fault's
    if keep is not None:
        _keep(case, here / "run" / "evidence", keep)
    if found.right and not found.hung and not found.orphans:
        shutil.rmtree(here, ignore_errors=True)
    return found


def _found(case: Case, here: Path, environment: Mapping[str, str], blank: Found, place: Place) -> Found:
    if case.host and not place.has_links:
        return dataclasses.replace(blank, skipped="needs hosts with links between them")
    if case.outcome == "preflight":
        return _preflight(case, here, environment, blank, place)
    if case.outcome == "refused":
        return _refused(case, here, environment, blank, place)
    return _run(case, here, environment, blank, place)


def judge(case: Case, explanation: Explanation | None, host: str = "") -> bool:
    """Compare an explanation with cause, rank and host of a case ("": any host)."""
    if explanation is None or explanation.cause not in case.causes:
        return False
    if host and explanation.host != host:
        return False
    return case.rank == -1 or explanation.rank == case.rank


def _is_of_this_host(case: Case) -> bool:
    return case.outcome == "preflight" and not case.host


def _expected_host(case: Case, place: Place) -> str:
    """The host that an explanation must name, "" for none."""
    if case.host:
        return case.host if case.host != "-" else ""
    return "" if case.rank is None or case.rank < 0 else place.host_of(case.rank, case.ranks)


def _run(case: Case, here: Path, environment: Mapping[str, str], blank: Found, place: Place) -> Found:
    directory = here / "run"
    command = _command(case, here, place)
    begun = time.monotonic()
    with (here / "output").open("wb") as output:
        run = place.start(command, here, environment, output)
        told = lambda: read_explanation(directory) is not None  # noqa: E731
        ended = lambda: run.poll() is not None  # noqa: E731
        # Ranks come up slowly where cores are busy: the time runs from the fault on.
        _until(lambda: ended() or (here / "fault").exists(), _BEGUN_S)
        if case.harm and not ended():
            place.harm(case.harm, place.launcher(run))
        came = _until(lambda: ended() or (case.outcome == "stalls" and told()))
        after = _after(here, directory)
        explanation = read_explanation(directory)
        if not ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(place.launcher(run), signal.SIGTERM)
            _until(ended, 15.0)
        hung = not came or not ended()
        if not ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(place.launcher(run), signal.SIGKILL)
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    # What a host that is cut off runs ends when it misses its launcher.
    _until(lambda: not _orphans(directory), _ORPHANS_S if case.harm else 2.0)
    orphans = _orphans(directory)
    if case.outcome == "ends":
        explanation, after = _asked(directory, here, environment, place), None
    elif explanation is None:
        explanation = read_explanation(directory)
    return dataclasses.replace(
        blank,
        cause=explanation.cause if explanation else "",
        rank=explanation.rank if explanation else None,
        host=explanation.host if explanation else "",
        summary=explanation.summary if explanation else "",
        right=judge(case, explanation, _expected_host(case, place)),
        after=after,
        seconds=round(time.monotonic() - begun, 1),
        hung=hung,
        orphans=orphans,
    )


def _command(case: Case, here: Path, place: Place) -> Sequence[str]:
    return [
        *_RONDE, "run", *place.options(case.ranks), "--seed", "1", "--timeout", "40",
        "--run-dir", str(here / "run"), "--env", "CHAOS_HERE",
        *case.options, str(here / "train.py"),
    ]  # fmt: skip


def _refused(case: Case, here: Path, environment: Mapping[str, str], blank: Found, place: Place) -> Found:
    """Ask `ronde doctor` before the run, which has to say the same and to end."""
    found = _preflight(case, here, environment, blank, place)
    begun = time.monotonic()
    run = place.start(_command(case, here, place), here, environment, subprocess.PIPE)
    try:
        _, said = run.communicate(timeout=_MOST_S)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        return dataclasses.replace(found, right=False, hung=True)
    says_so = found.summary in said.decode("utf-8", "replace")
    return dataclasses.replace(
        found,
        right=found.right and run.returncode == 1 and says_so,
        seconds=round(found.seconds + time.monotonic() - begun, 1),
    )


def _preflight(case: Case, here: Path, environment: Mapping[str, str], blank: Found, place: Place) -> Found:
    words = [*_RONDE, "doctor", *place.options(case.ranks), *case.options, "--json"]
    host = _expected_host(case, place)
    if host:
        words += ["--script", str(here / "train.py"), "--run-dir", str(here / "run")]
    if case.before:
        words = ["sh", "-c", f"{case.before}; {shlex.join(words)}"]
    if "mount" in case.before:
        words = ["unshare", "--mount", "--propagation", "private", *words]
    begun = time.monotonic()
    done = place.start(words, here, environment, subprocess.PIPE)
    out, said = done.communicate(timeout=_MOST_S)
    try:
        findings: list[dict[str, Any]] = json.loads(out)
    except ValueError:
        findings = []
    wrong = [each for each in findings if each["level"] == "wrong"]
    found = next(
        (each for each in wrong if each["check"] in case.causes and host in ("", each["host"])), None
    )
    return dataclasses.replace(
        blank,
        cause=found["check"] if found else "",
        rank=case.rank if found and host else None,
        host=found["host"] if found else "",
        summary=found["summary"] if found else said.decode("utf-8", "replace").strip()[-200:],
        right=found is not None and done.returncode == 1,
        seconds=round(time.monotonic() - begun, 1),
    )


def _asked(directory: Path, here: Path, environment: Mapping[str, str], place: Place) -> Explanation | None:
    """Ask `ronde doctor` about the run."""
    done = place.start([*_RONDE, "doctor", str(directory), "--json"], here, environment, subprocess.PIPE)
    out, _ = done.communicate(timeout=_MOST_S)
    try:
        answer = json.loads(out)
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


def _until(reached: Callable[[], bool], most: float = _MOST_S) -> bool:
    end = time.monotonic() + most
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_S)
    return True
