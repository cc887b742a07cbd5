from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.samples import report, result
from ronde.bench.kinds import KINDS, read_report
from ronde.bench.machine import Machine, cpu_model
from ronde.errors import UsageError

MLP = result("mlp", ronde=[110, 90, 98], ddp=[100, 100, 100], fabric=[55, 45, 49])


def test_json_and_back() -> None:
    written = report(MLP)
    assert read_report(written.to_json()) == written


def test_json_holds_the_figures_and_what_it_takes_to_repeat_them() -> None:
    fields = json.loads(report(MLP, versions={"ddp": "torch 2.13.0", "fabric": "fabric 2.6"}).to_json())
    assert fields["machine"]["cpu"] == "Example 9000"
    assert fields["machine"]["memory_gib"] == 15.6
    assert fields["versions"]["fabric"] == "fabric 2.6"
    (measured,) = fields["results"]
    assert measured["figures"]["ddp"]["ratio"]["median"] == 0.98
    assert measured["figures"]["fabric"]["ratio_of_medians"] == 2.0
    assert measured["commands"]["fabric"] == "python fabric"
    assert [each["samples"]["ronde"]["samples_per_second"] for each in measured["rounds"]] == [110, 90, 98]


RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks" / "results"
OLDER = {"2026-11-21-dp-2-cores.json": "dp", "2026-11-21-overhead-2-cores.json": "overhead"}


# What a module prints that is no command of `ronde bench`.
OF_MODULES = {"chaos", "checkpoints", "kills", "log", "planner"}
REPORTS = [
    path
    for path in sorted(RESULTS.glob("*.json"))
    if json.loads(path.read_text()).get("kind") not in OF_MODULES
]


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_reports_that_the_documentation_shows(path: Path) -> None:
    text = path.read_text()
    if path.name not in OLDER:
        assert read_report(text).results
        return
    kind = OLDER[path.name]
    with pytest.raises(UsageError) as refused:
        read_report(text)
    assert str(refused.value) == (
        f"this report of ronde bench {kind} has an older form, which this version does not read; measure "
        f"anew: ronde bench {kind} --json FILE [R850]"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_form_of_every_kind_is_named(kind: str) -> None:
    with pytest.raises(UsageError, match=f"this report of ronde bench {kind} has an older form"):
        read_report(json.dumps({"kind": kind, "machine": {}, "results": [{"of": "before"}]}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": 3}', '{"machine": {}, "results": []}'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a report of ronde bench; give a file that --json has written"):
        read_report(text)


def test_the_processors_name_is_linuxs(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Example 9000\nmodel name\t: other\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Example 9000"
    assert cpu_model(tmp_path / "absent") != ""


def test_this_machine_is_described() -> None:
    here = Machine.here()
    assert here.cores >= 1
    assert here.memory_gib > 0
    assert here.torch[0].isdigit()
