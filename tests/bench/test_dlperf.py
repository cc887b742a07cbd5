"""The comparison of frameworks: one model in all, and what its table says."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import benchmarks.dlperf.measure
from bench.samples import MACHINE
from benchmarks.dlperf import environments
from benchmarks.dlperf.cases import CASES, USUAL
from benchmarks.dlperf.environments import Missing, cache_folder, interpreter_of
from benchmarks.dlperf.frameworks import FRAMEWORKS
from benchmarks.dlperf.measure import measure
from benchmarks.dlperf.table import QUANTITIES, Measured, Run, notes_of, rows_of, same_training
from ronde.bench.report import Report
from ronde.bench.table import table
from ronde.errors import BenchError, UsageError

SCRIPTS = Path(benchmarks.dlperf.measure.__file__).with_name("scripts")


class Operations:
    """Torch's operations under the names of `models.py`."""

    relu, tanh, gelu = staticmethod(F.relu), staticmethod(torch.tanh), staticmethod(F.gelu)
    linear = tied = staticmethod(F.linear)
    cross_entropy = staticmethod(
        lambda logits, targets: F.cross_entropy(logits.flatten(0, -2), targets.flatten())
    )

    def conv(self, x: Any, kernel: Any, stride: int, padding: int) -> Any:
        return F.conv2d(x, kernel, None, stride, padding)

    def batch_norm(self, x: Any, weights: Any, name: str) -> Any:
        return F.batch_norm(x, None, None, weights[name + ".weight"], weights[name + ".bias"], training=True)

    def max_pool(self, x: Any) -> Any:
        return F.max_pool2d(x, 3, 2, 1)

    def mean_of_pixels(self, x: Any) -> Any:
        return x.mean((2, 3))

    def embedding(self, rows: Any, words: Any) -> Any:
        return rows[words]

    def with_places(self, x: Any, positions: Any, segments: Any) -> Any:
        return x + positions + segments.repeat_interleave(x.size(1) // 2, dim=0)

    def layer_norm(self, x: Any, scale: Any, offset: Any) -> Any:
        return F.layer_norm(x, x.shape[-1:], scale, offset, 1e-12)

    def attention(self, mixed: Any, heads: int) -> Any:
        parts = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in mixed.chunk(3, dim=-1))
        return F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)

    def first_word(self, x: Any) -> Any:
        return x[:, 0]

    def at(self, x: Any, places: list[int]) -> Any:
        return x[:, places]

    def column(self, targets: Any, number: int) -> Any:
        return targets[:, number]

    def all_but_last(self, targets: Any) -> Any:
        return targets[:, :-1]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of torch's models, found as a script finds it."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module("torch_models")
    for name in ("torch_models", "models"):
        del sys.modules[name]


@pytest.mark.parametrize(("name", "masked"), [("tiny-resnet", 0), ("tiny-bert", 2), ("tiny-bert", 0)])
def test_functions_and_modules_are_one_model(name: str, masked: int, scripts: Any) -> None:
    case = {"model": CASES[name].model, "sizes": {**CASES[name].sizes, "masked": masked}}
    sizes = case["sizes"]
    torch.manual_seed(0)
    model = scripts.make(case)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # ones and zeros would hide what is not used
            torch.nn.init.normal_(parameter)
    weights = dict(model.state_dict())
    targets = torch.randint(sizes["classes"], (4, 1 + masked))
    if case["model"] == "resnet":
        inputs = torch.randn(4, 3, sizes["image"], sizes["image"])
    else:
        inputs = torch.randint(sizes["vocabulary"], (4, sizes["length"]))
    found = sys.modules["models"].loss(Operations(), weights, inputs, targets, case)
    torch.testing.assert_close(found, scripts.loss_of(model(inputs), targets).detach(), rtol=1e-5, atol=1e-6)


def test_resnet_50_has_its_parameters(scripts: Any) -> None:
    with torch.device("meta"):
        model = scripts.ResNet(CASES["resnet50"].sizes)
    assert sum(each.numel() for each in model.parameters()) == 25_557_032


def measured(framework: str, one: list[float], two: list[float], loss: float = 2.0) -> Measured:
    found = Measured(workload="bert-base", framework=framework)
    for speeds in zip(one, two, strict=True):
        found.add(*(Run(speed=speed, losses=(2.0, loss), version="1") for speed in speeds))
    return found


def test_a_run_is_the_mean_of_its_processes_behind_the_warm_up() -> None:
    case = dataclasses.replace(CASES["tiny-bert"], warm_up=1, steps=2, batch=8)
    told = {"version": "1", "losses": [1.0, 2.0, 3.0], "seconds": [9.0, 1.0, 1.0]}
    run = Run.of([told, {**told, "losses": [3.0, 2.0, 1.0], "seconds": [9.0, 3.0, 3.0]}], case)
    assert (run.speed, run.losses) == (4.0, (2.0, 2.0, 2.0))


def test_the_table_says_figures_and_what_cannot_be_had() -> None:
    ours, mxnet = measured("ronde", [10, 10], [18, 20]), measured("mxnet", [10, 10], [9, 10])
    paddle = measured("paddle", [10, 10], [9, 10], loss=3.0)
    for each in (mxnet, paddle):
        same_training(ours, each, CASES["bert-base"])
    found, missing = [ours, mxnet, paddle], {"tensorflow": "none is on the PATH"}
    notes = notes_of(found, ["bert-base"], ["horovod", "mxnet", "paddle", "tensorflow"], missing)
    rows = rows_of(found, ["bert-base"], missing)
    shown = table(
        Report(
            kind="dlperf",
            machine=MACHINE,
            settings={},
            quantities=QUANTITIES,
            results=tuple(rows),
            notes=notes,
        )
    )
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "bert-base ronde 10 19 1.900 (1.850 to 1.950) 0 0" in lines
    assert "bert-base MXNet 10 9.500 0.9500 (0.9250 to 0.9750) 2 (2 to 2) 0 0" in lines
    assert "bert-base Paddle: see below" in lines
    assert "bert-base TensorFlow: see below" in lines
    text = " ".join(lines)
    assert "TensorFlow cannot be had here: none is on the PATH" in text
    assert "bert-base, Paddle: it did not train alike: its losses are up to 50.0% from ronde's" in text
    assert "Horovod itself cannot be had from wheels" in text


def test_statistics_of_its_own_rows_are_no_other_training() -> None:
    ours, other = measured("ronde", [1], [1]), measured("ddp", [1], [1])
    other.two[0] = dataclasses.replace(other.two[0], losses=(2.0, 3.0))
    same_training(ours, other, CASES["resnet50"])
    assert not other.reason
    same_training(ours, other, CASES["bert-base"])
    assert "50.0%" in other.reason


def test_the_text_classification_has_the_contenders_of_the_first_seeds() -> None:
    names = {case: [name for name in FRAMEWORKS if CASES[case].has(name)] for case in USUAL}
    assert names["bert-text"] == ["ronde", "ddp", "horovod", "data-parallel"]
    assert names["bert-base"] == [name for name in FRAMEWORKS if name != "data-parallel"]


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [("ronde", 1, 1), ("ddp", 1, 2), ("tensorflow", 1, 2), ("paddle", 1, 2), ("mxnet", 1, 5)],
)
def test_processes_of_a_framework(name: str, one: int, two: int) -> None:
    """MXNet has two servers and a scheduler beside the workers."""
    start = FRAMEWORKS[name].start
    assert [len(start(("python", "script.py"), ranks, 1)) for ranks in (1, 2)] == [one, two]
    assert (SCRIPTS / FRAMEWORKS[name].file).is_file()


def test_an_environment_that_is_ready_is_used_again(tmp_path: Path) -> None:
    mxnet = FRAMEWORKS["mxnet"]
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "ready").write_text("mxnet==1.9.1\nnumpy<1.24")
    assert interpreter_of(mxnet, tmp_path, pytest.fail) == str(tmp_path / "mxnet" / "bin" / "python")
    assert cache_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/ronde/dlperf")


def test_a_framework_without_a_python_is_missing(tmp_path: Path) -> None:
    old = dataclasses.replace(FRAMEWORKS["mxnet"], pythons=(1, 2))
    with pytest.raises(Missing, match=r"need a Python between 3\.1 and 3\.2, and none is on the PATH"):
        interpreter_of(old, tmp_path, pytest.fail)
    absent = dataclasses.replace(FRAMEWORKS["fabric"], module="lightning_absent")
    with pytest.raises(Missing, match="lightning_absent is not installed; pip install"):
        interpreter_of(absent, tmp_path, pytest.fail)


def test_pip_says_why_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; print('ERROR: No matching distribution', file=sys.stderr); sys.exit(1)"
    with pytest.raises(Missing, match="pip failed: ERROR: No matching distribution"):
        environments._run(sys.executable, "-c", code)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no workload 'alexnet'"):
        measure(["alexnet"], [], rounds=1, cache=tmp_path, say=pytest.fail)
    with pytest.raises(UsageError, match="no framework 'oneflow'"):
        measure(["resnet50"], ["oneflow"], rounds=1, cache=tmp_path, say=pytest.fail)


def test_a_peer_that_fails_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(speed=1.0, losses=(2.0,), version="1")

    def run_of(framework: Any, *_: Any) -> Run:
        if framework.name == "ddp":
            raise BenchError("`python /home/x/script.py {}` ended with exit code 1: no memory [R852]")
        return run

    monkeypatch.setattr(benchmarks.dlperf.measure, "run_of", run_of)
    monkeypatch.setattr(benchmarks.dlperf.measure, "run_together", lambda *_, **__: ("", 0.0))
    said: list[str] = []
    report = measure(["tiny-bert"], ["ddp"], rounds=2, cache=tmp_path, say=said.append)
    assert [row.labels["framework"] for row in report.results] == ["ronde", "DDP: see below"]
    assert "tiny-bert, DDP: it has failed: ended with exit code 1: no memory [R852]" in report.notes
    assert sum(line.startswith("ddp failed in this round and ran once more") for line in said) == 2


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_tiny_model_is_compared_on_one_process_and_on_two(tmp_path: Path) -> None:
    report = measure(["tiny-bert"], ["ddp"], rounds=1, cache=tmp_path, say=lambda _: None)
    ours, ddp = report.results
    assert (ours.labels["framework"], ddp.labels["framework"]) == ("ronde", "DDP")
    for row in (ours, ddp):
        assert row.samples["loss apart"] < (1e-5,)
        assert row.samples["on two"] < (1e-3,)
    assert ddp.samples["ronde over it"] == pytest.approx(
        [ours.samples["two processes"][0] / ddp.samples["two processes"][0]]
    )
