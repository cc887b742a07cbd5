"""Faults in real runs: some of `python -m benchmarks.chaos` each day, and all of them in the long tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos.case import Case, script_of
from benchmarks.chaos.faults import CASES
from benchmarks.chaos.faults_of_hosts import CASES_OF_HOSTS
from benchmarks.chaos.place import MakePlace, Place, Stubs, ThisHost
from benchmarks.chaos.report import are_right, report_of
from benchmarks.chaos.running import Found, judge, run_case
from benchmarks.chaos.two_hosts import two_hosts
from ronde.bench.machine import Machine
from ronde.bench.reading import read_report
from ronde.bench.table import table
from ronde.testing import forked
from ronde.trace.evidence import read_evidence
from ronde.trace.explanation import Explanation, read_explanation

NAMED = {case.name: case for case in CASES}
DAILY = ("kill -9", "sleep", "extra collective on one rank")
# Ways in which ranks die, and one in which they part. A stall is in tests/launch/test_hosts.py, SIGKILL in
# tests/launch/test_two_hosts.py.
DAILY_ON_TWO_HOSTS = (
    "SIGTERM from outside",
    "module missing",
    "os._exit(3)",
    "segfault",
    "uneven data",
)
STUBS = Stubs()


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(pytest.param(name, ThisHost(), id=name) for name in DAILY),
        *(pytest.param(name, STUBS, id=f"{name}, two hosts") for name in DAILY_ON_TWO_HOSTS),
    ],
)
def test_a_fault_is_explained(name: str, place: Place, tmp_path: Path) -> None:
    case = NAMED[name]
    (tmp_path / "train.py").write_text(script_of(case))
    timeout = "4" if case.outcome == "stalls" else "60"
    words = ["run", *place.options(case.ranks), "--seed", "1", "--timeout", timeout, "--run-dir", "run"]
    environment = {**os.environ, "CHAOS_HERE": str(tmp_path)}
    done = forked.run([*words, "train.py"], directory=tmp_path, environment=environment)
    assert done.returncode not in (0, None), done.stderr
    found = read_explanation(tmp_path / "run")
    host = place.host_of(case.rank, case.ranks) if case.rank is not None else ""
    assert judge(case, found, host), (found, done.stderr)
    assert found is not None
    if not found.told:
        assert f"cause: {found.summary}" in done.stderr
    frozen = read_evidence(tmp_path / "run", "failure")
    assert frozen is not None
    assert len(frozen.ranks) == case.ranks
    again = forked.run(["doctor", "run"], directory=tmp_path)
    assert again.returncode == 1
    assert again.stdout.startswith(f"cause: {found.summary}"), again.stderr


@pytest.mark.soak
@pytest.mark.parametrize("on_two_hosts", [False, True], ids=["one host", "two hosts"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_fault_is_explained(case: Case, on_two_hosts: bool) -> None:
    if on_two_hosts and case.outcome == "preflight":
        pytest.skip("found before a run, on one host")
    check_explained(case, (lambda case, here: contextlib.nullcontext(STUBS)) if on_two_hosts else None)


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.parametrize("case", CASES_OF_HOSTS, ids=lambda case: case.name)
def test_every_fault_of_hosts_is_explained(case: Case) -> None:
    check_explained(case, two_hosts)


def check_explained(case: Case, at: MakePlace | None) -> None:
    found = run_case(case, os.environ, at=at)
    if found.skipped:
        pytest.skip(found.skipped)
    assert found.right, found
    assert not found.hung, found
    assert not found.orphans, found


def test_there_are_enough_faults_and_each_has_a_name_of_its_own() -> None:
    named = {case.name for case in (*CASES, *CASES_OF_HOSTS)}
    assert len(named) == len(CASES) + len(CASES_OF_HOSTS)
    assert len(CASES) >= 30
    assert len(CASES_OF_HOSTS) >= 10
    assert not [name for name in named if "," in name]  # which --cases has between them


def test_a_script_is_python(tmp_path: Path) -> None:
    for case in (*CASES, *CASES_OF_HOSTS):
        compile(script_of(case), case.name, "exec")


def test_a_case_is_judged_by_cause_and_rank() -> None:
    case = Case(name="x", causes=("killed", "died"), rank=1)
    assert judge(case, Explanation(cause="died", rank=1, summary=""))
    assert not judge(case, Explanation(cause="died", rank=0, summary=""))
    assert not judge(case, Explanation(cause="sleeps", rank=1, summary=""))
    assert not judge(case, None)
    assert judge(case, Explanation(cause="died", rank=1, summary="", host="two"), "two")
    assert not judge(case, Explanation(cause="died", rank=1, summary="", host="one"), "two")


def test_the_report_and_its_table() -> None:
    good = Found(
        name="a", outcome="fails", expected="killed, rank 1", cause="killed", rank=1, right=True, after=0.3
    )
    bad = Found(name="b", outcome="stalls", expected="sleeps, rank 1", cause="lock", rank=1, after=8.6)
    left_out = Found(name="c", outcome="preflight", expected="disk", skipped="needs root, to mount")
    assert not are_right([good, bad, left_out])
    assert are_right([good])
    machine = Machine(cpu="x", cores=2, memory_gib=1.0, load=0.0, python="3", torch="2")
    made = report_of(machine, [good, bad, left_out])
    assert read_report(made.to_json()) == made
    assert [" ".join(line.split()) for line in table(made).splitlines()[3:]] == [
        "a killed 1 yes 0.3000",
        "b lock 1 no: sleeps, rank 1 8.600",
        "c none left out: needs root, to mount",
        "",
        "1 of 2 right (50%)",
        "a failure is noticed after 0.3 s at most",
        "a stall is explained after 8.6 s at most",
        "0 hung, 0 processes left",
    ]


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ronde", "doctor", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"ronde: error[R610]: {tmp_path} is not a run directory of ronde run")


def test_the_docs_list_every_fault() -> None:
    told = (Path(__file__).parents[2] / "docs" / "reference" / "doctor.md").read_text()
    cases = (*CASES, *CASES_OF_HOSTS)
    assert [case.name for case in cases if f"| {case.name} |" not in told] == []
