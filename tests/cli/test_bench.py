"""The command line of `ronde bench`; what it measures is in tests/bench."""

from __future__ import annotations

from pathlib import Path

import pytest

import ronde
from bench.samples import memory_report, report, result
from ronde.cli.entry import main


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--workloads", "alexnet"),
            "there is no workload 'alexnet'; choose among transformer, gpt, resnet18-gn",
        ),
        (
            ("--against", "ddp,byteps"),
            "there is no peer 'byteps'; choose among ddp, zero, horovod, fsdp2, accelerate, fabric",
        ),
        (("--method", "mlperf"), "there is no method 'mlperf'; choose among global, dlperf"),
        (("--method", "dlperf", "--steps", "3"), "--method dlperf times 100 steps; leave out --steps 3"),
        (("--ranks", "1"), "--ranks 1 has nothing to compare"),
        (("--plot", "x.txt"), "--plot x.txt does not end in .png"),
    ],
)
def test_a_mistake_is_a_usage_error(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "dp", *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("option", "file"), [("--json", "x.json"), ("--plot", "x.png")])
def test_a_file_that_cannot_be_written_is_refused_at_once(
    option: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if option == "--plot":
        pytest.importorskip("matplotlib")
    assert run("bench", "overhead", option, str(tmp_path / "absent" / file)) == 2
    assert f"cannot write {option}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workload", "alexnet"), "there is no workload 'alexnet'; choose among transformer, gpt"),
        (("--plans", "ddp,zero9"), "zero9"),
        (("--plans", "ddp,context=2"), "the memory of context=2 has no formula"),
        (("--plot", "x.txt"), "--plot x.txt does not end in .png"),
    ],
)
def test_a_mistake_about_memory_is_a_usage_error(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "memory", *words) == 2
    assert message in capsys.readouterr().err


def test_a_report_on_memory_is_shown_and_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    kept, picture = tmp_path / "kept.json", tmp_path / "kept.svg"
    kept.write_text(memory_report().to_json())
    assert run("bench", "show", str(kept), "--plot", str(picture)) == 0
    assert "zero1" in capsys.readouterr().out
    assert picture.stat().st_size > 1000


def test_a_report_is_shown_and_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    kept, picture = tmp_path / "kept.json", tmp_path / "kept.png"
    kept.write_text(report(result("mlp", ronde=[98], ddp=[100])).to_json())
    assert run("bench", "show", str(kept), "--plot", str(picture)) == 0
    assert "0.980" in capsys.readouterr().out
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize("name", ["chaos", "first-call", "planner"])
def test_a_command_that_has_moved_runs_with_one_line(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    module = f"benchmarks.{name.replace('-', '_')}"
    assert run("bench", name, "--help") == 0
    told = capfd.readouterr()
    assert told.err == f"ronde: ronde bench {name} is deprecated; use python -m {module}\n"
    assert f"usage: python -m {module}" in told.out


def test_a_wheel_says_where_a_command_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ronde, "__file__", str(tmp_path / "site-packages" / "ronde" / "__init__.py"))
    assert run("bench", "chaos") == 2
    assert "ronde bench chaos is now python -m benchmarks.chaos" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot read"), ("{}", "not a report of ronde bench")]
)
def test_what_is_no_report_is_not_shown(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    if content is not None:
        kept.write_text(content)
    assert run("bench", "show", str(kept)) == 2
    assert message in capsys.readouterr().err
