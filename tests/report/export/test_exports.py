"""Exports of a run hold its records."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from made_run import WALL, made_run
from ronde.cli import main
from ronde.errors import UsageError
from ronde.report.export.scalars import scalars_of
from ronde.report.export.write import Exports
from ronde.report.run import read_run
from ronde.trace.events import write_event
from ronde.trace.explanation import Explanation, write_explanation


def test_a_table_has_a_row_for_each_record_of_each_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, target = made_run(tmp_path / "run", slow=1, steps=40, nan_from=40), tmp_path / "steps.csv"
    with pytest.raises(SystemExit):
        main(["report", str(run), "--csv", str(target)])
    assert capfd.readouterr().err == f"ronde: note[R605]: the run is exported to {target}\n"
    assert not (run / "report.html").exists()
    with target.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 80
    third = rows[42]
    assert {name: float(third[name]) for name in ("rank", "step", "steps", "losses", "samples")} == {
        "rank": 1, "step": 3, "steps": 1, "losses": 1, "samples": 32,
    }  # fmt: skip
    assert float(third["begun"]) == pytest.approx(0.02)
    assert float(third["loss"]) == pytest.approx(2.3 * math.exp(-3 / 80) + 0.02)
    assert float(third["samples_per_second"]) == pytest.approx(3200)
    assert float(third["others_wait"]) == pytest.approx(0.001)
    assert float(rows[2]["communication"]) == pytest.approx(0.002)
    assert third["sent_shared_memory_bytes"] == str(1 << 20)
    assert math.isnan(float(rows[39]["loss"]))


def test_json_has_the_run_its_events_and_its_cause(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", steps=10, nan_from=9)
    write_explanation(Explanation(cause="oom", rank=1, summary="memory ran out"), run)
    write_event(run, "end", "rank 1 failed", exit_code=1)
    (named,) = Exports(json=tmp_path / "run.json").write(read_run(run))
    told = json.loads(Path(named).read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (told["run"], told["life"], told["cause"]["cause"]) == ("run", "failed", "oom")
    assert told["start"]["plan"] == "ddp"
    assert [each["kind"] for each in told["events"]] == ["start", "end"]
    rows = told["ranks"][1]["rows"]
    loss = told["columns"].index("loss")
    assert len(rows) == 10
    assert rows[0][loss] == pytest.approx(2.3 * math.exp(-1 / 80) + 0.02)
    assert rows[9][loss] is None


def test_curves(tmp_path: Path) -> None:
    curves = list(scalars_of(read_run(made_run(tmp_path, slow=1, steps=10))))
    of_step = {each.name: each for each in curves if each.step == 4}
    assert of_step["loss"].time == pytest.approx(WALL / 1e9 + 0.04)
    assert of_step["throughput/samples_per_second"].value == pytest.approx(3200)
    assert of_step["seconds_per_step/communication"].value == pytest.approx(0.002)
    assert of_step["waits_for_others/rank_0"].value == pytest.approx(0.2)
    assert of_step["keeps_others_waiting/rank_1"].value == pytest.approx(0.1)
    assert of_step["memory/process/rank_1"].value == 301 << 20
    assert "memory/device/rank_1" not in of_step


@pytest.mark.parametrize(
    ("option", "package"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.entities")]
)
def test_a_missing_package_is_named(
    option: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    target = {option: tmp_path if option == "tensorboard" else "file:x"}
    with pytest.raises(UsageError, match=rf"--{option} needs .*pip install 'ronde\[{option}\]'"):
        list(Exports(**target).write(read_run(made_run(tmp_path / "run", steps=3))))  # pyright: ignore[reportArgumentType]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = read_run(made_run(tmp_path / "run", steps=3))
    with pytest.raises(UsageError, match=r"cannot write --csv .*nowhere.*: No such file or directory"):
        list(Exports(csv=tmp_path / "nowhere/x.csv").write(run))


@pytest.mark.soak
def test_tensorboard_reads_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    list(Exports(tensorboard=tmp_path / "logs").write(read_run(made_run(tmp_path / "run", steps=30))))
    read = EventAccumulator(str(tmp_path / "logs/run"))
    read.Reload()
    losses = read.Scalars("loss")
    assert [each.step for each in losses] == list(range(1, 31))
    assert losses[2].value == pytest.approx(2.3 * math.exp(-3 / 80) + 0.02)
    assert losses[2].wall_time == pytest.approx(WALL / 1e9 + 0.03)
    assert "run/plan/text_summary" in read.Tags()["tensors"]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of its own imports
def test_mlflow_has_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks for it
    uri = f"file:{tmp_path}/mlruns"
    for _ in range(2):
        list(Exports(mlflow=uri).write(read_run(made_run(tmp_path / "run", steps=200))))
    client = tracking.MlflowClient(tracking_uri=uri)
    first, second = client.search_runs([client.get_experiment_by_name("ronde").experiment_id])
    assert (first.info.status, first.info.run_name, first.data.params["plan"]) == ("FINISHED", "run", "ddp")
    losses = client.get_metric_history(second.info.run_id, "loss")
    assert sorted(each.step for each in losses) == list(range(1, 201))
    with pytest.raises(UsageError, match="--mlflow nothing://here: "):
        list(Exports(mlflow="nothing://here").write(read_run(tmp_path / "run")))
