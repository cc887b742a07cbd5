from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.samples import report, result
from ronde.bench.machine import Machine, cpu_model
from ronde.bench.peers import PEERS
from ronde.bench.reading import KINDS, read_report
from ronde.bench.spread import Spread
from ronde.bench.table import table
from ronde.errors import UsageError

MLP = result("mlp", ronde=[110, 90, 98], ddp=[100, 100, 100], fabric=[55, 45, 49])


def test_json_and_back() -> None:
    written = report(MLP)
    assert read_report(written.to_json()) == written


def test_json_holds_every_sample_and_the_machine() -> None:
    fields = json.loads(report(MLP).to_json())
    assert (fields["form"], fields["kind"], fields["machine"]["cpu"]) == (2, "dp", "Example 9000")
    assert fields["settings"]["ddp"] == "torch 2.13.0"
    ddp, fabric = fields["results"]
    assert ddp["labels"] == {"workload": "mlp", "contender": "DDP"}
    assert ddp["samples"]["ronde"] == [110, 90, 98]
    assert ddp["samples"]["ratio"] == pytest.approx([1.1, 0.9, 0.98])
    assert fabric["samples"]["of medians"] == pytest.approx([2.0])


def test_figures_of_an_earlier_form_are_those_of_its_own_table() -> None:
    kept = json.loads((RESULTS / "2026-11-22-shm-resnet18-peers.json").read_text())
    rows = {tuple(row.labels.values()): row for row in read_report(json.dumps(kept)).results}
    for each in kept["results"]:
        for peer, figures in each["figures"].items():
            row = rows[each["workload"], PEERS[peer].title]
            assert Spread.of(row.samples["ratio"]).median == pytest.approx(figures["ratio"]["median"])
            assert row.samples["of medians"] == pytest.approx((figures["ratio_of_medians"],))


def test_collectives_of_an_earlier_form_are_compared_as_they_were() -> None:
    kept = json.loads((RESULTS / "2026-11-22-collectives-4-KB.json").read_text())
    against = kept["results"][0]["figures"]["against"]["shared-memory"]["gloo"]
    (row,) = read_report(json.dumps(kept)).results
    assert Spread.of(row.samples["ratio"]).median == pytest.approx(against["ratio"]["median"])


RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks" / "results"
OLDER = {"2026-11-21-dp-2-cores.json": "dp", "2026-11-21-overhead-2-cores.json": "overhead"}


# Reports of programs that have no table.
OF_MODULES = {"checkpoints", "kills", "log"}
REPORTS = [
    path
    for path in sorted(RESULTS.glob("*.json"))
    if json.loads(path.read_text()).get("kind") not in OF_MODULES
]


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_reports_that_the_documentation_shows(path: Path) -> None:
    text = path.read_text()
    if path.name not in OLDER:
        found = read_report(text)
        assert found.results
        assert table(found).count("\n") > len(found.results)
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
