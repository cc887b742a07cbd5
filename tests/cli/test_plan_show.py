"""`ronde plan show`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.cli import main
from ronde.plan import expand
from ronde.plan.describe import describe


def show(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["plan", "show", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_ddp_is_shown_whole(capsys: pytest.CaptureFixture[str]):
    assert show("ddp", "--ranks", "4") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines() == [
        "plan           ddp",
        "preset         ddp",
        "mesh           data=4  tensor=1  pipeline=1  context=1  expert=1  tensor-cuts not set"
        "  context-attention=auto  sequence-parallel=auto",
        "state          state=replicated  sparse=replicated  servers not set  offload=none",
        "communication  algorithm=auto  compressor=none  compressed=gradient  error-feedback=false"
        "  density not set  threshold not set  low-rank not set  reduction=mean  predivide not set "
        " bucket-mb=auto",
        "update         update=sync  every not set  adaptive=false  peers not set  warm-up not set"
        "  staleness not set"
        "  optimizer-on=worker",
        "compute        precision=fp32  micro-batches=1  recompute=none  schedule not set  compile=false",
        "data           rng=auto  batch-dim=auto  loading=auto",
        "gradients      on one host: shared memory (all ranks are on one host)",
        "holds          each rank keeps everything",
        "update rule    w[t+1] = U(w[t], g[t]) once per step, alike on every rank",
        "               g = gradient of the loss over the global batch (rank r computes its rows' part, g_r)",
        "exact          yes: the single-device parameters, up to floating-point reordering;",
        "               random draws inside the model: the single-device ones on CPU, independent across"
        " ranks on CUDA (rng=auto)",
        "equals         PyTorch DDP",
        "               TensorFlow MirroredStrategy and MultiWorkerMirroredStrategy",
        "               Paddle collective",
        "               Horovod",
        "               OneFlow data parallel",
    ]


@pytest.mark.parametrize(
    ("plan", "holds", "updates"),
    [
        ("zero1", "all parameters and gradients, and 1/W of the optimizer state", "each rank its part"),
        ("zero2", "all parameters, and 1/W of gradients and optimizer state", "each rank its part"),
        ("zero3", "1/W of parameters, gradients and optimizer state", "each rank its part"),
        ("central", "rank 0 keeps everything, other ranks nothing", "on rank 0"),
    ],
)
def test_what_a_rank_holds_is_said(
    capsys: pytest.CaptureFixture[str], plan: str, holds: str, updates: str
) -> None:
    assert show(plan) == 0
    shown = capsys.readouterr().out.splitlines()
    kept = next(line for line in shown if line.startswith("holds"))
    assert holds in kept
    rule = next(line for line in shown if line.startswith("update rule"))
    assert rule.endswith(f"U(w[t], g[t]) once per step, {updates}")


@pytest.mark.parametrize(
    ("plan", "holds"),
    [
        ("expert=2", ["1/2 of the experts of each mixture"]),
        ("tensor=2,pipeline=2", ["the parameters of its stage", "1/2 of the matrices that are cut"]),
        ("zero1,tensor=2", ["1/2 of the matrices that are cut", "and 1/W of the optimizer state"]),
        (
            "tensor=4,pipeline=2,expert=8,zero2",
            ["its stage", "1/4 of the mat", "1/32 of the exp", "1/W of grad"],
        ),
        ("context=2", ["each rank keeps everything"]),
    ],
)
def test_each_axis_says_what_it_leaves_to_a_rank(plan: str, holds: list[str]) -> None:
    shown = describe(expand(plan)).holds
    assert [part for part in holds if part not in shown] == []
    assert ("everything" in shown) == (plan == "context=2")


@pytest.mark.parametrize("plan", ["tensor=2", "pipeline=2", "context=2"])
def test_ranks_of_one_cut_model_exchange(capsys: pytest.CaptureFixture[str], plan: str) -> None:
    assert show(plan, "--ranks", "2") == 0
    shown = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("gradients"))
    assert shown.endswith(
        "of the whole batch on each rank (data=1); inside of the model ranks exchange by shared memory (all "
        "ranks are on one host)"
    )


def test_one_rank_holds_everything_under_every_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("zero3", "--ranks", "1") == 0
    assert "holds          one rank keeps everything, and nothing moves" in capsys.readouterr().out


def test_a_plan_that_is_not_built_is_refused_and_not_shown(capsys: pytest.CaptureFixture[str]):
    assert show("local-sgd,compressor=fp16") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "ronde: error[R280]: compressor=fp16 with update=local is not available in this version; available "
        "with: update=sync, or for int8 update=decentralized with peers=shift-one\n"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("data=3", "--ranks", "4"), "data=3 and 4 ranks contradict each other"),
        (("zero1,offload=all",), "offload=all and state=zero1 contradict each other"),
        (("compile=true,recompute=full",), "compile=true and recompute=full contradict each other"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_without_a_page(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
):
    assert show(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert why in captured.err


@pytest.mark.parametrize("plan", ["zero3", "central"])
def test_where_a_model_is_whole_for_a_while_it_is_said_how_not(
    capsys: pytest.CaptureFixture[str], plan: str
) -> None:
    assert show(plan, "--ranks", "2") == 0
    assert "inside `with ronde.deferred():`" in capsys.readouterr().out
    assert show("zero2", "--ranks", "2") == 0
    assert "ronde.deferred" not in capsys.readouterr().out


def test_an_unknown_plan_is_refused_without_a_page(capsys: pytest.CaptureFixture[str]):
    assert show("zero4") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ronde: error[R214]: unknown preset 'zero4' (did you mean zero3?)")
    assert captured.err.count("\n") == 1


def test_a_file_and_items_are_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "plan.toml"
    file.write_text("bucket-mb = 5\n", encoding="utf-8")
    assert show("rng=global", "--plan", str(file)) == 0
    assert capsys.readouterr().out.startswith("plan           bucket-mb=5,rng=global\n")
    assert show("--plan", str(file)) == 0
    assert capsys.readouterr().out.startswith("plan           bucket-mb=5\n")


def test_no_plan_at_all_says_what_to_write(capsys: pytest.CaptureFixture[str]):
    assert show() == 2
    said = capsys.readouterr().err
    assert said == "ronde: error[R217]: no plan given; write one, such as: ronde plan show ddp\n"


def test_a_number_of_ranks_below_one_is_refused(capsys: pytest.CaptureFixture[str]):
    assert show("ddp", "--ranks", "0") == 2
    assert "--ranks" in capsys.readouterr().err


def test_verbose_lists_strategies_in_order(capsys: pytest.CaptureFixture[str]):
    assert show("context=2,zero1", "--ranks", "2", "--verbose") == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line[15:].split(":")[0] for line in lines if ": " in line]
    assert found[-2:] == ["zero", "context"]
